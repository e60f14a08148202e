"""How plans on a perfect forecast do on bursty and on smooth traffic.

Synthetic traffic has a known dispersion at one second. Its rate follows a wave. Public traces of
../shared/data stand beside it, where they are there: copies of each, turned in time, so that
fleets have several replicas. The first half of each is known, the second
half is the window. Nothing is known of the window but its demand per bin.

- ``perfect_forecast_attainment_gap_points_bursty``: the most that the plan on a perfect forecast
  lacks of its target, in points, on the bursty cases.
- ``poisson_sizes_attainment_gap_points_bursty``: the same with sizes for Poisson arrivals.
- ``perfect_forecast_cost_over_oracle_smooth``: the most that this plan costs over the oracle plan,
  on the smooth cases. The oracle plan is the cheapest schedule that replays find.
- ``perfect_forecast_cost_over_turned_smooth``: the same over the cheapest plan of the same periods
  for one factor on all demand, found afterwards.
- ``oracle_beaten_by_max``: how far the cheapest of some policies that can be run, with their
  parameter chosen afterwards, is below the oracle plan in any case.
"""

import json
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from planner.domain.outcome import Inputs
from planner.domain.preparation import study_of
from planner.domain.progress import silent
from planner.domain.replay.replay import ReplayOptions, run_policy
from planner.domain.sizing.sizing import size
from planner.domain.study import PolicyRun, Study
from planner.domain.traffic.sources import StoredTrace
from planner.inputs.ingest import IngestOptions, ingest_file
from planner.inputs.scenario.document import parse
from planner.policies.choice import policy_of
from simulation.arrays import FloatArray
from simulation.arrival_pattern import dispersion
from simulation.early_stop import TargetMissed
from simulation.synthesis import arrivals_from_bins

TRACES = Path(__file__).parents[1] / "../shared/data/traces"
MODEL, GPU = "llama-3.1-70b", "H100-SXM"
HOURS, BIN_S, PERIOD_S = 4, 60.0, 900.0
RATE = 50.0  # requests/s of synthetic traffic on average
BURSTY = 3.0  # dispersion at one second from which a case counts as bursty
TARGET = 0.95
DEPLOYABLE: tuple[tuple[str, dict[str, float]], ...] = (
    ("flat-min", {}),
    *(("lt-i-last-value", {"load_factor": factor}) for factor in (0.9, 1.0, 1.1, 1.25)),
    *(("hpa", {"target_factor": factor}) for factor in (0.1, 0.2, 0.4)),
)
FACTORS = (0.8, 0.85, 0.9, 0.95)  # on all demand
Row = dict[str, Any]


@dataclass(frozen=True, slots=True, eq=False)
class Bursts:
    """A case: arrivals with lengths, and the limit of TTFT."""

    name: str
    arrival_s: FloatArray
    ttft_ms: float
    seed: int = 1

    @property
    def hours(self) -> float:
        return float(self.arrival_s[-1] / 3600.0)


def synthetic(level: float, rate: float, seed: int) -> FloatArray:
    """Return arrivals at ``rate`` requests/s on average with dispersion ``level``.

    The rate has a wave of half its mean.
    """
    rng = np.random.default_rng([seed, int(10 * level)])
    middle = (np.arange(HOURS * 3600 / BIN_S) + 0.5) * BIN_S
    mean = rate * BIN_S * (1.0 + 0.5 * np.sin(2 * np.pi * middle / 7200.0))
    return arrivals_from_bins(np.round(mean), BIN_S, 0.0, rng, level)[0]


def superpose_copies(arrival_s: FloatArray) -> FloatArray:
    """Return the arrivals of as many copies of a trace as make RATE requests/s.

    Each copy is shifted by another offset, modulo the length of the trace.
    """
    span = float(arrival_s.max() - arrival_s.min()) + 1.0
    copies = max(1, round(RATE * span / len(arrival_s)))
    since = arrival_s - arrival_s.min()
    turned = [(since + copy * span / copies + 0.137 * copy) % span for copy in range(copies)]
    return np.sort(np.concatenate(turned))


def cases() -> Iterator[Bursts]:
    for level in (1.0, 4.0, 12.0):
        for ttft_ms in (800.0, 3000.0):
            name = f"dispersion {level:g}, TTFT {ttft_ms:g} ms"
            yield Bursts(name, synthetic(level, RATE, seed=1), ttft_ms)
    azure = TRACES / "azure2023_conv.csv.gz"
    if azure.exists():
        times = pl.read_csv(azure, try_parse_dates=True)["TIMESTAMP"].cast(pl.Datetime("us"))
        seconds = (times - times.min()).dt.total_microseconds().to_numpy() / 1e6
        yield Bursts("azure2023-conv", superpose_copies(seconds), 800.0)
    mooncake = TRACES / "mooncake_conversation.jsonl.gz"
    if mooncake.exists():
        stamps = pl.read_ndjson(mooncake)["timestamp"].to_numpy()
        yield Bursts("mooncake", superpose_copies(stamps.astype(np.float64) / 1000.0), 3000.0)


def study(case: Bursts, folder: Path) -> Study:
    """Return a study whose window is the second half of a case, with random lengths."""
    rng = np.random.default_rng(case.seed)
    n = len(case.arrival_s)
    table = pl.DataFrame(
        {
            "timestamp": case.arrival_s,
            "input_tokens": np.clip(rng.lognormal(6.5, 0.8, n), 1, 8000).astype(int),
            "output_tokens": np.clip(rng.lognormal(4.5, 0.7, n), 1, 800).astype(int),
        }
    )
    path = folder / "trace.csv"
    table.write_csv(path)
    report = ingest_file(path, folder / "store", IngestOptions())
    stored = StoredTrace(path.name, report.kind, report.clock, folder / "store")
    half = case.hours * 1800.0 // PERIOD_S * PERIOD_S
    scenario = {
        "version": 1,
        "name": case.name,
        "seed": case.seed,
        "models": [MODEL],
        "profiles": [{"model": MODEL, "gpu": GPU, "tp": 4}],
        "regions": [{"name": "east", "like": "us-east-1", "capacity": {GPU: 1024}}],
        "tiers": [{"name": "chat", "ttft_ms": case.ttft_ms, "tbt_ms": 100}],
        "traffic": {"sources": [{"trace": "t", "model": MODEL}], "bin_s": BIN_S},
        "fleet": {"startup_s": 120},
        "horizon": {"duration_s": half, "period_s": PERIOD_S},
        "policies": ["lt-i"],
    }
    return study_of(Inputs(parse(json.dumps(scenario)), {"t": stored}), silent)


def replay_policy(its: Study, name: str = "lt-i-perfect", **parameters: Any) -> PolicyRun | None:
    """Return the run of a policy in the window; None if it ended early by missing the tier."""
    policy = policy_of(name, **parameters)
    bars = None if name == "lt-i-perfect" else {"chat": TARGET}
    try:
        options = ReplayOptions(detailed=False, bars=bars)
        return run_policy(its, policy, seed=1, progress=silent, options=options)
    except TargetMissed:
        return None


def attainment_of(run: PolicyRun | None) -> float:
    share = None if run is None else run.summary.slo_attainment["chat"]
    assert share is not None
    return share


def beaten_by(its: Study, usd: float) -> float:
    """Return how far the cheapest policy that meets the tier is below ``usd``, as a share.

    It is 0 if none is cheaper.
    """
    runs = [replay_policy(its, name, **parameters) for name, parameters in DEPLOYABLE]
    return max(0.0, 1.0 - min(cheapest(runs), usd) / usd)


def cheapest(runs: Sequence[PolicyRun | None]) -> float:
    """Return the cost of the cheapest run that meets the tier; infinite without one."""
    paid = [run.summary.cost_usd for run in runs if run is not None and run.meets_slo]
    return min(paid, default=float("inf"))


def measure_case(case: Bursts) -> Row:
    begun = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        its = study(case, Path(folder))
        sized = time.perf_counter() - begun
        plan, oracle = replay_policy(its, load_factor=1.0), replay_policy(its)
        assert plan is not None
        assert oracle is not None
        poisson = size(its.hardware, its.traffic.lengths, its.settings.seed, silent)
        without = replay_policy(replace(its, sizes=poisson), load_factor=1.0)
        turned = [replay_policy(its, load_factor=factor) for factor in FACTORS]
        beaten = beaten_by(its, oracle.summary.cost_usd)
    return {
        "case": case.name,
        "dispersion": dispersion(its.trace.arrival_s, 1.0, BIN_S),
        "replicas": plan.summary.instance_hours / (plan.summary.duration_s / 3600),
        "attainment": attainment_of(plan),
        "attainment_poisson_sizes": attainment_of(without),
        "attainment_oracle": attainment_of(oracle),
        "cost_over_oracle": plan.summary.cost_usd / oracle.summary.cost_usd,
        "cost_over_turned": plan.summary.cost_usd / cheapest([plan, *turned]),
        "oracle_beaten_by": beaten,
        "sizing_seconds": sized,
    }


def figures(rows: list[Row]) -> Row:
    """Return the figures of the bench by key."""
    bursty = [row for row in rows if row["dispersion"] >= BURSTY]
    smooth = [row for row in rows if row["dispersion"] < BURSTY]

    def gap(key: str) -> float:
        return max(100 * max(0.0, TARGET - float(row[key])) for row in bursty)

    return {
        "perfect_forecast_attainment_gap_points_bursty": gap("attainment"),
        "poisson_sizes_attainment_gap_points_bursty": gap("attainment_poisson_sizes"),
        "perfect_forecast_cost_over_oracle_smooth": max(row["cost_over_oracle"] for row in smooth),
        "perfect_forecast_cost_over_turned_smooth": max(row["cost_over_turned"] for row in smooth),
        "oracle_beaten_by_max": max(row["oracle_beaten_by"] for row in rows),
        "burst_cases": len(rows),
    }


def measured_all() -> list[Row]:
    rows = []
    for case in cases():
        rows.append(measure_case(case))
        print(json.dumps(rows[-1]), file=sys.stderr, flush=True)
    return rows
