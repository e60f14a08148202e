"""How right the simulator is: against closed forms, an independent simulator and real engines.

    python -m bench.fidelity [--json] [--seeds 20] [--requests 1000000] [--only NAME]

- ``queueing_error``: worst relative error of mean and p95 waits at load 0.7 over M/M/1, M/M/4 and
  M/D/1, mean of the seeds; ``queueing_outside`` counts the figures at 0.3, 0.7 and 0.9 that the 99%
  confidence interval over the seeds misses.
- ``splitwise_p50_error``, ``splitwise_p95_error``, ``splitwise_p99_error``: worst relative error of
  TTFT, TBT and E2E over the four scenarios of ``../shared/reference``.
- ``vllm_mean_error``, ``vllm_p95_error``, ``vllm_throughput_error``: worst relative errors of TTFT,
  TPOT and E2E, and of output tokens/s, on the two single-GPU runs of vLLM (``bench/engines.py``);
  those of the runs on two GPUs are among the rows.

``--json`` prints these and, in ``rows``, everything compared.
"""

import argparse
import json
import sys
from math import exp, factorial, floor, log
from typing import Any

import numpy as np
from scipy.optimize import brentq
from scipy.stats import t as student

from bench import engines, reference
from simulation.engine.run import simulate
from simulation.errors import SimulationError
from simulation.performance.linear import LinearProfile
from simulation.policies.static import Static
from simulation.sizing.queueing import erlang_c, mmc_mean_wait

LOADS = (0.3, 0.7, 0.9)
STEP = 1e-4  # of M/M/4, seconds of an iteration: service times are whole numbers of them
TOKEN = 1e-6  # of M/M/1, seconds of a prompt token
SCENARIOS = ("mixed_azure_conv", "mixed_poisson80", "pd_azure_conv", "pd_poisson80")
Row = dict[str, Any]


def queueing(seeds: int, requests: int) -> list[Row]:
    """Return the simulated waits of plain queues with mean service 1 s, and the closed forms."""
    return [
        _queue_row(system, load, seeds, requests)
        for system in ("M/M/1", "M/M/4", "M/D/1")
        for load in LOADS
    ]


def _queue_row(system: str, load: float, seeds: int, requests: int) -> Row:
    servers = 4 if system == "M/M/4" else 1
    if system == "M/D/1":
        exact = (load / (2 * (1 - load)), md1_wait_quantile(load, 0.95))
    else:
        rate = load * servers
        exact = (mmc_mean_wait(servers, rate, 1.0), mmc_wait_quantile(servers, rate, 1.0, 0.95))
    waits = np.array([_waits(system, load * servers, seed, requests) for seed in range(seeds)])
    spread = student.ppf(0.995, seeds - 1) * waits.std(axis=0, ddof=1) / np.sqrt(seeds)
    row: Row = {"system": system, "load": load}
    for i, name in enumerate(("mean", "p95")):
        mean = float(waits[:, i].mean())
        resolution = STEP if servers > 1 else TOKEN
        near = abs(mean - exact[i]) <= max(float(spread[i]), resolution)
        error = abs(mean / exact[i] - 1.0) if exact[i] > 0 else float(mean > resolution)
        row |= {f"{name}_s": mean, f"{name}_exact_s": exact[i], f"{name}_error": error}
        row |= {f"{name}_ci99_s": float(spread[i]), f"{name}_inside": bool(near)}
    return row


def _waits(system: str, rate: float, seed: int, n: int) -> tuple[float, float]:
    """Return mean and 95th percentile of the simulated waits.

    One server is an instance that takes one prompt at a time, of exponential or equal length. Four
    servers are a batch of four whose iterations always take ``STEP``.
    """
    rng = np.random.default_rng([seed, n])
    arrival = np.cumsum(rng.exponential(1 / rate, n))
    service = np.ones(n) if system == "M/D/1" else rng.exponential(1.0, n)
    ones = np.ones(n)
    if system == "M/M/4":
        times, lengths = (STEP, 0.0, STEP, 0.0), (ones, np.maximum(np.rint(service / STEP), 1))
    else:
        times, lengths = (0.0, 0.0, 0.0, TOKEN), (np.maximum(np.rint(service / TOKEN), 1), ones)
    batch = 4 if system == "M/M/4" else 1
    limit = 2**31 - 1
    profile = LinearProfile(
        reference.MODEL, "queue", 1, *times, batch, limit, limit, reference.SOURCE
    )
    result = simulate(
        reference.trace(arrival, *lengths),
        reference.fleet(reference.pool(1, profile)),
        Static([1], interval_s=3600.0),
        interval_s=3600.0,
    )
    first = STEP if system == "M/M/4" else lengths[0] * TOKEN
    waits = result.requests.ttft_s - first
    return float(waits.mean()), float(np.quantile(waits, 0.95))


def mmc_wait_quantile(servers: int, rate: float, service_s: float, p: float) -> float:
    """Return the wait in seconds that a share ``p`` of arrivals does not exceed in M/M/c.

    P(W > t) = C exp(-(c - a) t / service_s).
    """
    if not 0 <= p < 1:
        raise ValueError("A quantile of the wait needs 0 <= p < 1.")
    load = rate * service_s
    if load >= servers:
        return float("inf")
    waits = erlang_c(servers, load)
    if waits <= 1.0 - p:
        return 0.0
    return log(waits / (1.0 - p)) * service_s / (servers - load)


def md1_wait_quantile(load: float, p: float) -> float:
    """Return the wait that a share ``p`` does not exceed in M/D/1 with service 1.

    P(W <= t) = (1 - load) sum_k (load (k - t))^k / k! exp(-load (k - t)), k up to t (Erlang 1909).
    """

    def missing(t: float) -> float:
        terms = (
            (load * (k - t)) ** k / factorial(k) * exp(-load * (k - t)) for k in range(floor(t) + 1)
        )
        return (1 - load) * sum(terms) - p

    return 0.0 if missing(0.0) >= 0 else float(brentq(missing, 0.0, 30.0))


def splitwise(scenario: str) -> list[Row]:
    """Return p50, p95 and p99 of one scenario, of our simulator and of splitwise-sim."""
    theirs = reference.rows(scenario)
    columns = (theirs[name].to_numpy() for name in ("arrival_s", "input_tokens", "output_tokens"))
    fleet = reference.as_splitwise(scenario)
    counts = [pool.initial for pool in fleet.pools]
    result = simulate(reference.trace(*columns), fleet, Static(counts))
    rows = []
    for name in ("ttft_s", "tbt_s", "e2e_s"):
        ours, measured = getattr(result.requests, name), theirs[name].to_numpy()
        if name == "tbt_s":  # theirs counts the first token among the gaps
            ours = ours * (1.0 - 1.0 / result.trace.output_tokens)
        row: Row = {"scenario": scenario, "figure": name}
        for label, q in (("p50", 0.5), ("p95", 0.95), ("p99", 0.99)):
            row[label] = float(np.nanquantile(ours, q))
            row[f"{label}_reference"] = float(np.nanquantile(measured, q))
            row[f"{label}_error"] = abs(row[label] / row[f"{label}_reference"] - 1.0)
        row["median_request_error"] = float(np.nanmedian(np.abs(ours / measured - 1.0)))
        rows.append(row)
    return rows


def _table(rows: list[Row]) -> str:
    def as_text(value: Any) -> str:
        return f"{value:.5g}" if isinstance(value, float) else str(value)

    lines = [list(rows[0])] + [[as_text(value) for value in row.values()] for row in rows]
    widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]
    return "\n".join(
        "  ".join(v.rjust(w) for v, w in zip(line, widths, strict=True)) for line in lines
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--requests", type=int, default=1_000_000)
    parser.add_argument("--only", choices=("queueing", "splitwise", "vllm"))
    args = parser.parse_args()
    out: dict[str, Any] = {"rows": {}}
    if args.only in (None, "splitwise"):
        rows = [row for scenario in SCENARIOS for row in splitwise(scenario)]
        out["rows"]["splitwise"] = rows
        for label in ("p50", "p95", "p99"):
            out[f"splitwise_{label}_error"] = max(row[f"{label}_error"] for row in rows)
        print(_table(rows), file=sys.stderr)
    if args.only in (None, "vllm"):
        rows = [row for run in engines.RUNS for row in engines.replay(run)]
        out["rows"]["vllm"] = rows
        for label in ("mean", "p95", "throughput"):
            counted = [row for row in rows if row["counted"] and row["figure"].endswith(label)]
            out[f"vllm_{label}_error"] = max(row["error"] for row in counted)
        print(_table(rows), file=sys.stderr)
    if args.only in (None, "queueing"):
        rows = queueing(args.seeds, args.requests)
        out["rows"]["queueing"] = rows
        busy = [row for row in rows if row["load"] == 0.7]
        out["queueing_error"] = max(max(row["mean_error"], row["p95_error"]) for row in busy)
        out["queueing_outside"] = sum(
            not row[f"{name}_inside"] for row in rows for name in ("mean", "p95")
        )
        print(_table(rows), file=sys.stderr)
    if args.json:
        print(json.dumps(out))
        return
    for name, value in out.items():
        if name != "rows":
            print(f"{name:24} {value:.4f}")


if __name__ == "__main__":
    try:
        main()
    except SimulationError as error:
        print(error, file=sys.stderr)
        sys.exit(2)
