"""Small scenarios and stored traces, made by the product's own reader from a few lines of text."""

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from planner.domain.planning.inputs import PlanInput
from planner.domain.progress import silent
from planner.domain.replay.replay import prepare
from planner.domain.sizing.sizing import Sizes, size
from planner.domain.study import Study
from planner.domain.traffic.demand import Demand
from planner.domain.traffic.sources import StoredTrace
from planner.domain.traffic.traffic import Traffic, build_traffic
from planner.domain.traffic.window import Window, resolve_window
from planner.inputs.ingest import IngestOptions, ingest_file
from planner.inputs.scenario.build import Hardware, build_hardware
from planner.inputs.scenario.document import edit, parse
from planner.inputs.scenario.schema import Scenario
from planner.inputs.scenario.settings import Settings, TrafficSettings, settings_of
from simulation.arrays import FloatArray
from simulation.sizing.pool import MAX_INSTANCES
from tests.planner.toy import FLEET

ROOT = Path(__file__).parents[3]
EPOCH = datetime(2024, 5, 13, tzinfo=UTC).timestamp()  # a Monday

SCENARIO = (
    """\
version: 1
name: Toy
seed: 3
"""
    + FLEET
    + """\
traffic:
  sources:
    - {trace: t, model: m, regions: {east: 1}, tiers: {chat: 1}}
fleet: {startup_s: 60}
policies: [flat-peak, lt-i]
test_days: []
forecast: {method: last-value}
"""
)
EAST = {
    "name": "east", "capacity": {"G": 32}, "usd_per_gpu_hour": {"G": 2},
    "carbon_g_per_kwh": 400, "pue": 1.2,
}  # fmt: skip
WEST = {
    "name": "west", "capacity": {"G": 32}, "usd_per_gpu_hour": {"G": 3},
    "carbon_g_per_kwh": 300, "pue": 1.1,
}  # fmt: skip


def text(**changes: Any) -> str:
    """SCENARIO with values at dotted paths changed, ``__`` standing for the dot."""
    return edit(SCENARIO, {path.replace("__", "."): value for path, value in changes.items()})


def scenario(**changes: Any) -> Scenario:
    return parse(text(**changes))


def settings(**changes: Any) -> Settings:
    return settings_of(scenario(**changes))


def traffic_settings(**changes: Any) -> TrafficSettings:
    return settings(**changes).traffic


def source(**changes: Any) -> dict[str, Any]:
    """The scenario's one source, changed; None removes a key."""
    fields = {"trace": "t", "model": "m", "regions": {"east": 1}, "tiers": {"chat": 1}} | changes
    return {key: value for key, value in fields.items() if value is not None}


def ingested(path: Path, kind: str, store: Path, **options: Any) -> StoredTrace:
    report = ingest_file(path, store, IngestOptions(**options))
    assert report.kind == kind
    return StoredTrace(path.name, kind, report.clock, store)


def demand_file(
    folder: Path,
    series: dict[str, Sequence[float | None]],
    *,
    bin_s: float = 60.0,
    start_s: float = EPOCH,
    tokens: dict[str, dict[str, Sequence[float | None]]] | None = None,
    name: str = "demand",
    relative: bool = False,
) -> StoredTrace:
    """A demand file of these series; ``tokens`` maps a column to amounts by series."""
    frames = []
    for label, values in series.items():
        count = len(values)
        times = start_s + bin_s * np.arange(count)
        when: Sequence[Any] = [
            t if relative else datetime.fromtimestamp(t, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
            for t in times
        ]
        amounts = {kind: by[label] for kind, by in (tokens or {}).items()} | {"requests": values}
        columns = {kind: pl.Series(held, dtype=pl.Float64) for kind, held in amounts.items()}
        frames.append(pl.DataFrame({"time": when, "series": [label] * count, **columns}))
    path = folder / f"{name}.csv"
    table = pl.concat(frames)
    if table["requests"].null_count() == table.height:
        table = table.drop("requests")
    table.write_csv(path)
    store = folder / f"{name}.store"
    return ingested(path, "demand", store, format="demand", bin_s=bin_s, amounts="counts")


def daily_cycle(
    folder: Path, noise: FloatArray, *, requests: float = 900.0, osl: float = 50.0
) -> StoredTrace:
    """A daily cycle times ``noise`` in whole requests per quarter hour, of 500 prompt tokens."""
    quarter_hours = np.arange(noise.size)
    values = np.round(requests * (1.3 + np.sin(2 * np.pi * quarter_hours / 96)) * noise)
    tokens = {
        "input_tokens": {"t": (values * 500).tolist()},
        "output_tokens": {"t": (values * osl).tolist()},
    }
    return demand_file(folder, {"t": values.tolist()}, bin_s=900.0, tokens=tokens)


def request_file(
    folder: Path,
    arrival_s: npt.ArrayLike,
    *,
    isl: npt.ArrayLike = 100,
    osl: npt.ArrayLike = 10,
    start_s: float = EPOCH,
    name: str = "requests",
    **labels: Any,
) -> StoredTrace:
    """A file of requests at ``start_s + arrival_s``; ``labels`` are columns of names."""
    seconds = np.asarray(arrival_s, np.float64)
    stamps = ((start_s + seconds) * 1e6).round().astype(np.int64)
    when = pl.Series(stamps).cast(pl.Datetime("us", "UTC")).dt.strftime("%Y-%m-%dT%H:%M:%S%.6fZ")
    lengths = {
        "input_tokens": np.broadcast_to(np.asarray(isl), seconds.shape),
        "output_tokens": np.broadcast_to(np.asarray(osl), seconds.shape),
    }
    path = folder / f"{name}.csv"
    pl.DataFrame({"arrival": when, **lengths, **labels}).write_csv(path)
    return ingested(path, "requests", folder / f"{name}.store", format="csv")


def steady(rate_rps: float, seconds: float, seed: int = 0) -> FloatArray:
    """Poisson arrivals, the first at 0 and the last at the very end."""
    rng = np.random.default_rng(seed)
    inner = np.sort(rng.uniform(0.0, seconds, int(rate_rps * seconds) - 2))
    return np.concatenate([[0.0], inner, [seconds]])


def sizes(hardware: Hardware, theta_tps: float = 1000.0) -> Sizes:
    """Every arrangement that has a profile serves ``theta_tps``."""
    theta = np.zeros((len(hardware.models), len(hardware.gpus)))
    for m, g in hardware.profiles:
        theta[m, g] = theta_tps
    pools = theta[:, :, None] * np.arange(1, MAX_INSTANCES + 1)
    return Sizes(theta_tps=theta, pool_tps=pools, capacity={}, notes=())


def parts(scenario: Scenario, stored: StoredTrace) -> tuple[Hardware, Traffic, Window]:
    asked = settings_of(scenario)
    traffic = build_traffic(asked.traffic, {"t": stored})
    window = resolve_window(asked.window, traffic.demand, traffic.clock)
    return build_hardware(scenario), traffic, window


def study(scenario: Scenario, stored: StoredTrace, theta_tps: float | None = None) -> Study:
    """Every arrangement serves ``theta_tps``; None: what the simulator finds."""
    hardware, traffic, window = parts(scenario, stored)
    requests = traffic.requests(window.start_s, window.end_s, scenario.seed)
    if theta_tps is None:
        found = size(hardware, traffic.lengths, scenario.seed, silent)
    else:
        found = sizes(hardware, theta_tps)
    return prepare(settings_of(scenario), hardware, traffic, window, found, requests)


def plan_input(scenario: Scenario, stored: StoredTrace, theta_tps: float = 1000.0) -> PlanInput:
    """From an empty fleet on, every arrangement serving ``theta_tps``."""
    hardware, traffic, window = parts(scenario, stored)
    nothing = np.zeros(hardware.minimum.shape, np.int64)
    return PlanInput(
        settings_of(scenario).plan, hardware, traffic, window, sizes(hardware, theta_tps), nothing
    )


def by_key(demand: Demand) -> dict[tuple[str, str, str], int]:
    return {(key.model, key.region, key.tier): i for i, key in enumerate(demand.keys)}
