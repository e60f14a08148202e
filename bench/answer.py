"""How long a planner waits for an answer, each case from an empty data folder.

    python -m bench.answer [--json]

- ``first_answer_seconds``: the plan of the README example, with sizes, without a simulation.
- ``answer_seconds``: the comparison of the README example.
- ``cpu_seconds``: CPU of the comparison of a day with 12 policies.
- ``large_day_cpu_seconds``: CPU of the comparison of two models, two regions and three tiers.
- ``pd_ratio_seconds``: the best prefill to decode ratio.
- ``whatif_seconds``: a what-if on a limit, from the stored comparison of the README example.
- ``whatif_simulated_seconds``: the same, with the recommended policy simulated at that limit.

Seconds are those of the clock on all cores, so they need a quiet machine. CPU is that of a command
and of all it started. Only compiled code is cached: the first command of all compiles it.
"""

import argparse
import compileall
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
EXAMPLES = ROOT / "docs" / "examples"
DAY = str(EXAMPLES / "first-plan.yml")
LARGE_DAY = str(EXAMPLES / "two-regions.yml")
RATIO = str(EXAMPLES / "prefill-decode.yml")
POLICIES = (
    "today,flat-peak,flat-min,flat-before,flat-g,reactive,hpa,lt-i,lt-u,lt-g,lt-i-last-value,"
    "lt-i-seasonal"
)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    figures = measure()
    if args.json:
        print(json.dumps(figures))
        return
    for name, value in figures.items():
        print(f"{name:24} {value:6.1f}")


def measure() -> dict[str, float]:
    run("warm_up")  # compiles, which no case counts
    for package in ("planner", "simulation", "forecasting"):  # bytecode, as an installation does
        compileall.compile_dir(ROOT / package, quiet=1)
    figures: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder:
        figures["first_answer_seconds"] = run("plan", DAY, folder=folder)[0]
    with tempfile.TemporaryDirectory() as folder:
        figures["answer_seconds"] = run("compare", DAY, folder=folder)[0]
        whatif = ("whatif", "1", "--limit=chat.ttft_ms=800")
        figures["whatif_seconds"] = run(*whatif, folder=folder)[0]
        figures["whatif_simulated_seconds"] = run(*whatif, "--simulate", folder=folder)[0]
    with tempfile.TemporaryDirectory() as folder:
        figures["cpu_seconds"] = run("compare", DAY, f"--policies={POLICIES}", folder=folder)[1]
    with tempfile.TemporaryDirectory() as folder:
        figures["large_day_cpu_seconds"] = run("compare", LARGE_DAY, folder=folder)[1]
    with tempfile.TemporaryDirectory() as folder:
        figures["pd_ratio_seconds"] = run(
            "pd-ratio", RATIO, "--service=llama-3.1-70b", folder=folder
        )[0]
    return figures


def run(*command: str, folder: str | None = None) -> tuple[float, float]:
    """Return the seconds and the CPU seconds of a command with its data in ``folder``."""
    environment = dict(os.environ)
    if folder is not None:
        environment["HEADROOM_DATA_DIR"] = folder
        manage("migrate", "--verbosity=0", environment=environment)
    began = time.perf_counter()
    usage = manage(*command, environment=environment)
    return time.perf_counter() - began, usage.ru_utime + usage.ru_stime


def manage(*command: str, environment: dict[str, str]) -> resource.struct_rusage:
    process = subprocess.Popen(
        [sys.executable, ROOT / "manage.py", *command],
        cwd=ROOT, env=environment, stdout=sys.stderr,
    )  # fmt: skip
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{' '.join(command)} ended with status {process.returncode}; see above.")
    return usage


if __name__ == "__main__":
    main()
