"""What a simulation says by interval, by group and by request: a few requests, worked by hand."""

from pathlib import Path

import numpy as np
import polars as pl
import pytest

from planner.domain.kinds.simulate import Options
from planner.domain.kinds.simulate import run as replayed
from planner.domain.outcome import Inputs
from planner.domain.progress import silent
from planner.domain.replay.detail import ALL, Detail, detail_of
from simulation.engine.run import simulate
from simulation.fleet import Fleet, KvLink, Pool, Region, Tier
from simulation.metrics import summarise
from simulation.performance.linear import LinearProfile
from simulation.performance.specs import GpuSpec, Provenance
from simulation.policies.static import Static
from simulation.results import TOO_LONG, SimulationResult
from simulation.trace import Trace
from tests.planner.domain import builders as make

TOLD = Provenance("assumed", "test")
PROFILE = LinearProfile("m", "G", 2, 0.01, 0.001, 0.01, 0.0001, 8, 512, 4_000, TOLD)
GPU = GpuSpec("G", 8e10, 100, 400, 300, TOLD)
LABELS = ("2 x G, prefill", "2 x G, decode")


@pytest.fixture(scope="module")
def result() -> SimulationResult:
    """200 requests over two minutes at a prefill and a decode pool; the 11th cannot fit."""
    rng = np.random.default_rng(1)
    isl = rng.integers(50, 500, 200).astype(np.int32)
    isl[10] = 50_000
    trace = Trace(
        arrival_s=np.sort(rng.uniform(0, 119, 200)),
        input_tokens=isl,
        output_tokens=rng.integers(1, 30, 200).astype(np.int32),
        model=np.zeros(200, np.int16),
        region=(np.arange(200) % 2).astype(np.int16),
        tier=(np.arange(200) % 3 == 0).astype(np.int16),
        models=("m",),
        regions=("east", "west"),
        tiers=("fast", "slow"),
        start_s=1_700_000_000.25,
    )

    def pool(role: str, link: KvLink | None = None) -> Pool:
        return Pool("m", "east", PROFILE, GPU, 1, 1, 1, 0.0, 3.0, role=role, link=link)

    fleet = Fleet(
        tiers=(Tier("fast", ttft_s=0.06), Tier("slow", e2e_s=5.0)),
        regions=(Region("east", 400.0, 1.2), Region("west", 300.0, 1.1)),
        pools=(pool("prefill", KvLink(1e5, 1e9)), pool("decode")),
        latency_s=np.array([[0.0, 0.02], [0.02, 0.0]]),
    )
    policy = Static(np.ones(2, np.int64))
    return simulate(trace, fleet, policy, seed=0, duration_s=130.0, interval_s=60.0)


@pytest.fixture(scope="module")
def detail(result: SimulationResult) -> Detail:
    return detail_of(result, LABELS, requests=True)


def test_every_request_has_its_row_in_order(result: SimulationResult, detail: Detail) -> None:
    rows = detail.requests
    assert rows is not None and rows.height == 200
    assert rows["input_tokens"].to_list() == result.trace.input_tokens.tolist()
    epoch_s = rows["arrival"].dt.epoch("us").to_numpy() / 1e6
    np.testing.assert_allclose(epoch_s - 1_700_000_000.25, result.trace.arrival_s, atol=2e-6)
    assert rows.row(10, named=True) == {
        "arrival": rows["arrival"][10], "model": "m", "region": "east", "tier": "fast",
        "input_tokens": 50_000, "output_tokens": int(result.trace.output_tokens[10]),
        "outcome": "rejected", "ttft_ms": None, "tbt_ms": None, "e2e_ms": None, "met": False,
        "pool": None, "reason": TOO_LONG,
    }  # fmt: skip
    done = rows.filter(pl.col("outcome") == "completed")
    assert done.height == 199 and set(done["pool"].unique()) <= {f"{x} in east" for x in LABELS}
    assert (done["e2e_ms"] >= done["ttft_ms"]).all() and done["reason"].null_count() == 199
    away = done.filter(pl.col("region") == "west")["ttft_ms"]
    assert (away > 20.0).all()  # the way from the other region is in it


def test_groups_are_exact_and_add_up(result: SimulationResult, detail: Detail) -> None:
    groups, rows = detail.groups, detail.requests
    assert rows is not None
    assert groups.height == 3 * 2 * 3  # two tiers, one model, two regions, and all of each
    for row in groups.iter_rows(named=True):
        of_row = rows
        for name in ("tier", "model", "region"):
            if row[name] != ALL:
                of_row = of_row.filter(pl.col(name) == row[name])
        assert row["arrived"] == of_row.height
        assert row["completed"] + row["rejected"] + row["unfinished"] == row["arrived"]
        assert row["attainment"] == pytest.approx(of_row["met"].mean())
        for name in ("ttft_ms", "tbt_ms", "e2e_ms"):
            known = of_row[name].drop_nulls().to_numpy()
            for share in (50, 95, 99):
                assert row[f"{name}_p{share}"] == pytest.approx(np.percentile(known, share))
    summary = summarise(result)
    of_tier = groups.filter((pl.col("tier") == "fast") & (pl.col("region") == ALL)).row(
        0, named=True
    )
    assert of_tier["attainment"] == pytest.approx(summary.slo_attainment["fast"])
    assert of_tier["ttft_ms_p95"] == pytest.approx(summary.tiers["fast"].ttft_ms.p95)


def test_intervals_add_up_to_the_totals(result: SimulationResult, detail: Detail) -> None:
    minutes, summary = detail.minutes, summarise(result)
    assert minutes["arrangement"].unique().sort().to_list() == sorted(LABELS)
    assert minutes["role"].unique().sort().to_list() == ["decode", "prefill"]
    seconds = pl.Series([60.0, 60.0, 10.0])
    prefill = minutes.filter(pl.col("role") == "prefill")
    assert prefill["time"].dt.epoch("ms").to_list() == [
        1_700_000_000_250 + 60_000 * i for i in range(3)
    ]
    assert (prefill["input_tps"] * seconds).sum() == result.series.input_tokens[0].sum()
    kwh = sum(
        (minutes.filter(pl.col("role") == role)["power_kw"] * seconds).sum() / 3600
        for role in ("prefill", "decode")
    )
    assert kwh == pytest.approx(summary.energy_kwh)


def test_a_run_keeps_requests_only_where_they_are_asked_for(tmp_path: Path) -> None:
    stored = make.request_file(tmp_path, make.steady(0.5, 600), isl=100, osl=10)
    scenario = make.scenario(policies=["flat-peak"], horizon={"duration_s": 300})
    inputs = Inputs(scenario, {"t": stored})
    outcome = replayed(inputs, Options(policy="flat-peak", requests=True), progress=silent)
    requests = outcome.tables["requests"]
    assert requests.height == outcome.document["arrived"]
    assert (requests["outcome"] == "completed").sum() == outcome.document["completed"]
    again = replayed(inputs, Options(policy="flat-peak"), progress=silent)
    assert "requests" not in again.tables
