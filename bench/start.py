"""How long a newcomer waits, in a fresh clone with an empty compile cache.

    python -m bench.start [--json]

- ``page_seconds``: from ``bin/run`` to the first page, with packages in pip's cache.
- ``compile_cpu_seconds``: CPU that compiling the simulator takes.
- ``check_cpu_seconds``: CPU of a whole ``bin/run --check``, which installs and compiles too.
- ``second_start_seconds``: from ``bin/run`` to the first page once all is there.
- ``quick_size_seconds``: of ``bin/manage quick-size`` with three arguments, then.

The clone is of what is committed, lies in a temporary folder and is removed. CPU is that of a
command and of all it started; seconds are those of the clock, so they need a quiet machine.
"""

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).parents[1]
OURS = ("HEADROOM_", "NUMBA_", "DATABASE_URL", "REDIS_URL", "SECRET_KEY", "DJANGO_", "VIRTUAL_ENV")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        clone = Path(folder) / "clone"
        subprocess.run(["git", "clone", "--quiet", ROOT, clone], check=True)
        figures = measure(clone)
    if args.json:
        print(json.dumps(figures))
        return
    for name, value in figures.items():
        print(f"{name:22} {value:6.1f}")


def measure(clone: Path) -> dict[str, float]:
    page = first_page(clone)
    shutil.rmtree(clone / "var" / "numba", ignore_errors=True)
    compiling = cpu(clone, ".venv/bin/python", "manage.py", "warm_up")
    for made in ("var", ".venv"):
        shutil.rmtree(clone / made)
    check = cpu(clone, "bin/run", "--check")
    return {
        "page_seconds": page,
        "compile_cpu_seconds": compiling,
        "check_cpu_seconds": check,
        "second_start_seconds": first_page(clone),
        "quick_size_seconds": first_answer(clone),
    }


def first_page(clone: Path) -> float:
    """Return the seconds from ``bin/run`` until a page was read; stop it then."""
    began = time.perf_counter()
    with run_command(clone, "bin/run", "--port=0", stdout=subprocess.PIPE) as run:
        assert run.stdout is not None
        line = run.stdout.readline()
        if not line:
            raise SystemExit("bin/run ended before it served a page; see above.")
        address = line.split()[-1]
        with urllib.request.urlopen(address) as response:
            response.read()
        seconds = time.perf_counter() - began
        run.send_signal(signal.SIGINT)
    return seconds


def first_answer(clone: Path) -> float:
    """Return the seconds until a question of three arguments is answered."""
    began = time.perf_counter()
    question = ("--model", "llama-3.1-8b", "--gpu", "H100-SXM", "--users", "100")
    with run_command(
        clone, "bin/manage", "quick-size", *question, stdout=subprocess.DEVNULL
    ) as run:
        if run.wait():
            raise SystemExit("bin/manage quick-size failed; see above.")
    return time.perf_counter() - began


def cpu(clone: Path, *command: str) -> float:
    """Return the CPU seconds of a command and its children, user's and system's."""
    with run_command(clone, *command, stdout=sys.stderr) as run:
        _, status, usage = os.wait4(run.pid, 0)
        run.returncode = os.waitstatus_to_exitcode(status)
    if run.returncode:
        raise SystemExit(f"{' '.join(command)} ended with status {run.returncode}; see above.")
    return usage.ru_utime + usage.ru_stime


@contextmanager
def run_command(
    clone: Path, *command: str, stdout: int | object
) -> Iterator[subprocess.Popen[str]]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith(OURS)}
    run = subprocess.Popen(command, cwd=clone, env=environment, stdout=stdout, text=True)
    try:
        yield run
    finally:
        if run.poll() is None and sys.exc_info()[0] is not None:
            run.send_signal(signal.SIGINT)
        run.wait()


if __name__ == "__main__":
    main()
