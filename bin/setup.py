"""Bring a checkout up to date: virtual environment, requirements, database, static files, caches.

Usage: setup.py run|manage|test|dev. Needs only the standard library, as it runs before any package
is installed. Every step leaves a digest of what it depends on and is skipped while that is
unchanged.
"""

import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from planner.installation import (  # noqa: E402 - found through the path above
    Installation,
    SetUpError,
    data_folder,
    digest,
    fresh,
    run,
    say,
    turn,
)

VENV = ROOT / ".venv"
PYTHON = VENV / "bin" / "python"


def main(kind: str) -> None:
    os.chdir(ROOT)
    # Several worktrees may share one environment.
    with turn(VENV.resolve().parent / "requirements.txt"):
        install(dev=kind in ("dev", "test"))
    product = Installation(data_folder(), PYTHON)
    if kind in ("run", "manage"):
        product.prepare(web=kind == "run")
    elif kind == "test":
        product.make_data_folder()
        with turn(product.data / "preparing"):
            product.compile_simulator()


def install(*, dev: bool) -> None:
    """The virtual environment with the pinned packages; those of development hold the others."""
    allowed = ["requirements-dev.txt"] if dev else ["requirements.txt", "requirements-dev.txt"]
    if PYTHON.exists() and any(fresh(*requirements_stamp(name)) for name in allowed):
        return
    stopped = VENV / "headroom-installing"  # in the middle: packages without all of their files
    anew = stopped.exists() or not succeeds(PYTHON, "-m", "pip", "--version")
    if anew:
        create_venv()
    say(f"installing {allowed[0]} (the first time: a minute or two, more to download)")
    stopped.touch()
    # Not compiled: most modules are never imported, and those that are compile in a second.
    pip = [PYTHON, "-m", "pip", "install", "--disable-pip-version-check", "--no-compile"]
    if anew:
        # The pip that Python brings along looks at every file of an index for a third of the time
        # that the installation takes; where no newer one can be had, it does too.
        newer = ("--upgrade", "--constraint", "constraints.txt", "--retries=0", "pip")
        succeeds(*pip, *newer)
    quiet = [] if sys.stderr.isatty() else ["--quiet"]
    run(
        "Installing the requirements failed; see pip's message above.",
        *(*pip, *quiet, "--requirement", allowed[0]),
        at_end=stopped.unlink,
    )
    stamp, wanted = requirements_stamp(allowed[0])
    stamp.write_text(wanted)


def requirements_stamp(name: str) -> tuple[Path, str]:
    files = [ROOT / file for file in ("requirements.txt", "constraints.txt", name)]
    return VENV / f"headroom-{name}.stamp", digest(files, ROOT)


def create_venv() -> None:
    if not succeeds(sys.executable, "-c", "import venv, ensurepip"):
        raise SetUpError(
            f"{sys.executable} cannot make virtual environments; install its venv module "
            "(Debian and Ubuntu: the package python3-venv) and start again."
        )
    say("creating .venv")
    run(
        "Creating .venv failed; see the message above.",
        *(base_python(), "-m", "venv", "--clear", VENV),
    )


def base_python() -> str:
    """The interpreter behind this one: a broken .venv must not be rebuilt by itself."""
    return getattr(sys, "_base_executable", sys.executable)


def succeeds(*command: str | Path) -> bool:
    with suppress(FileNotFoundError):
        return subprocess.run(command, check=False, capture_output=True).returncode == 0
    return False


if __name__ == "__main__":
    try:
        main(sys.argv[1])
    except SetUpError as problem:
        sys.exit(str(problem))
    except KeyboardInterrupt:
        sys.exit("Set-up was stopped; start again to finish it.")
