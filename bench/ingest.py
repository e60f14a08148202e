"""How fast and in how much memory a large request trace is read.

``python -m bench.ingest [--json] [--rows N]`` writes a CSV in the Azure format with N rows (10
million by default, fixed seed) into a temporary folder and ingests it in a fresh process that may
use two cores. ``seconds_10m`` and ``rss_mb_10m`` (peak resident memory of that process) are given
for 10 million rows; ``seconds`` and ``rss_mb`` always. Fails when the rows or the token sums found
are not those written.

``many_models_cpu_seconds`` is the CPU time of ``bin/manage ingest`` for a file of 10,000 requests
that each name another model, the start of the program included.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROWS = 10_000_000
CORES = 2
MODELS = 10_000
ROOT = Path(__file__).parents[1]
GOALS = {"seconds_10m": 20, "rss_mb_10m": 1500, "many_models_cpu_seconds": 3}
_STEP = 500_000
_CHILD = """
import json, sys
from bench.ingest import measure
print(json.dumps(measure(sys.argv[1], sys.argv[2])))
"""


def generate(path: Path, rows: int, seed: int = 1) -> tuple[int, int]:
    """Write the trace and return its sums of input and output tokens."""
    import numpy as np
    import polars as pl

    rng = np.random.default_rng(seed)
    now_ns = 1_715_299_200_000_000_000
    prompted = made = 0
    with path.open("wb") as file:
        for start in range(0, rows, _STEP):
            size = min(_STEP, rows - start)
            steps = rng.exponential(0.06e9, size).astype(np.int64)
            stamps = now_ns + np.cumsum(steps)
            now_ns = int(stamps[-1])
            frame = pl.DataFrame(
                {
                    "TIMESTAMP": pl.Series(stamps)
                    .cast(pl.Datetime("ns"))
                    .dt.strftime("%Y-%m-%d %H:%M:%S%.9f")
                    .str.head(27),
                    "ContextTokens": rng.lognormal(6.5, 1.0, size).astype(np.int64) + 1,
                    "GeneratedTokens": rng.lognormal(4.5, 1.0, size).astype(np.int64) + 1,
                }
            )
            prompted += int(frame["ContextTokens"].sum())
            made += int(frame["GeneratedTokens"].sum())
            frame.write_csv(file, include_header=start == 0)
    return prompted, made


def measure(path: str, store_dir: str) -> dict[str, float]:
    """Ingest one file in this process; what it took and found."""
    began = time.perf_counter()
    from planner.inputs.ingest import ingest_file

    report = ingest_file(path, store_dir)
    return {
        "seconds": time.perf_counter() - began,
        "rss_mb": _peak_rss_mb(),
        "rows": report.rows,
        "rejected": report.rejected,
        "input_tokens": report.input_tokens or 0,
        "output_tokens": report.output_tokens or 0,
    }


def _peak_rss_mb() -> float:
    """Return the peak resident memory of this process; getrusage would include the parent's."""
    status = Path("/proc/self/status")
    if status.exists():
        fields = dict(line.split(":", 1) for line in status.read_text().splitlines())
        return int(fields["VmHWM"].split()[0]) / 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (1 << 20 if sys.platform == "darwin" else 1 << 10)


def run(rows: int) -> dict[str, float]:
    """Generate, ingest in a fresh process, check, and return the figures."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.csv"
        print(f"writing {rows:,} rows", file=sys.stderr)
        sums = generate(path, rows)
        megabytes = path.stat().st_size / 1e6
        print(f"reading {megabytes:,.0f} MB", file=sys.stderr)
        child = subprocess.run(
            [sys.executable, "-c", _CHILD, str(path), str(Path(folder) / "store")],
            check=True,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env={**os.environ, "POLARS_MAX_THREADS": str(CORES)},
            preexec_fn=_two_cores,
        )
    result = json.loads(child.stdout)
    if (result["rows"], result["rejected"]) != (rows, 0) or sums != (
        result["input_tokens"],
        result["output_tokens"],
    ):
        raise SystemExit(f"What was read ({result}) is not what was written ({rows}, {sums}).")
    figures = {**result, "file_mb": megabytes, "mb_per_second": megabytes / result["seconds"]}
    if rows == ROWS:
        figures |= {"seconds_10m": result["seconds"], "rss_mb_10m": result["rss_mb"]}
    return figures


def many_models() -> float:
    """Read a file of as many models as rows by the command line; return the CPU seconds."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "models.csv"
        rows = (f"{second},{100 + second % 900},10,model-{second}\n" for second in range(MODELS))
        path.write_text("arrival,input_tokens,output_tokens,model\n" + "".join(rows))
        without = {name: value for name, value in os.environ.items() if name != "DATABASE_URL"}
        environment = without | {"HEADROOM_DATA_DIR": f"{folder}/data"}
        manage = [sys.executable, "manage.py"]
        subprocess.run([*manage, "migrate", "--verbosity=0"], cwd=ROOT, env=environment, check=True)
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        done = subprocess.run(
            [*manage, "ingest", path, "--json"],
            cwd=ROOT, env=environment, check=True, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if len(json.loads(done.stdout)["models"]) != MODELS:
        raise SystemExit(f"Not all of {MODELS:,} models were read.")
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def _two_cores() -> None:
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:CORES])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")
    parser.add_argument("--rows", type=int, default=ROWS)
    options = parser.parse_args()
    figures = run(options.rows) | {"many_models_cpu_seconds": many_models()}
    out = sys.stderr if options.json else sys.stdout
    for name, value in figures.items():
        goal = f"  (goal: at most {GOALS[name]:,})" if name in GOALS else ""
        print(f"{name:23} {value:>18,.1f}{goal}", file=out)
    if options.json:
        print(json.dumps(figures))


if __name__ == "__main__":
    main()
