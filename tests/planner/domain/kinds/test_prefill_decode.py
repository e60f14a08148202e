"""Prefill and decode apart, end to end: sized by role, planned by stage, replayed together."""

from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import polars as pl
import pytest

from planner.domain.kinds import compare, plan
from planner.domain.outcome import Inputs, Outcome
from planner.domain.pd.service_pools import PairColumns, todays_instances
from planner.domain.progress import silent
from planner.domain.traffic.sources import StoredTrace
from planner.inputs.scenario.schema import Scenario
from tests.planner.domain import builders as make

SPEED = {"model": "m", "gpu": "G", "alpha_ms": 12, "beta_ms": 0.3, "gamma_ms": 12, "delta_ms": 0.06}
MIXED, PREFILL, DECODE = (
    SPEED | ({} if role == "mixed" else {"role": role}) for role in ("mixed", "prefill", "decode")
)
ROLES = {"mixed", "prefill", "decode"}
ONCE = compare.Options()


def apart(*profiles: dict[str, Any], **changes: Any) -> Scenario:
    fields: dict[str, Any] = {
        "profiles": list(profiles),
        "tiers": [{"name": "chat", "ttft_ms": 400, "tbt_ms": 20, "percentile": 90}],
        "serving": [{"kv_transfer": {"gb_s": 10}}],
        "fleet": {"minimum": 0},
        "traffic": {
            "sources": [
                make.source(input_tokens={"mean": 900, "cv": 0.3}, output_tokens={"mean": 60})
            ]
        },
        "horizon": {"period_s": 300, "duration_s": 600},
        "policies": ["flat-peak", "lt-i"],
    }
    return make.scenario(**(fields | changes))


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> StoredTrace:
    steady = np.full(40, 1500.0)
    return make.demand_file(tmp_path_factory.mktemp("steady"), {"a": steady.tolist()})


@pytest.fixture(scope="module")
def compared(stored: StoredTrace) -> Outcome:
    return compare.run(Inputs(apart(PREFILL, DECODE), {"t": stored}), ONCE, silent)


def targets(outcome: Outcome) -> dict[str, int]:
    """Of the first period, by role."""
    decisions = outcome.document["plan"]["decisions"]
    first = decisions[0]["period"]
    return {d["role"]: d["target"] for d in decisions if d["period"] == first}


def test_replicas_of_both_roles_count_once_today() -> None:
    today = np.array([[[5, 2], [6, 0]]])  # [model, region, GPU column]
    hardware = cast(Any, SimpleNamespace(today=today))
    assert todays_instances(hardware, 0, PairColumns(prefill=0, decode=1)) == 7
    assert todays_instances(hardware, 0, PairColumns(prefill=0, decode=0)) == 6


def test_each_stage_covers_the_demand_by_itself(compared: Outcome) -> None:
    sized = {row["role"]: row for row in compared.document["capacity"]}
    assert sized.keys() == {"prefill", "decode"}
    assert sized["prefill"]["bound_by"] == "ttft" and sized["decode"]["bound_by"] == "tbt"
    demand = compared.tables["plan"]["demand_tps"][0]
    for role, count in targets(compared).items():
        carried = [0.0, *sized[role]["pool_tps"]]
        assert carried[count] >= demand > carried[count - 1]
    carries = min(sized[role]["pool_tps"][n - 1] for role, n in targets(compared).items())
    assert compared.tables["plan"]["capacity_tps"][0] == pytest.approx(carries)


def test_requests_go_through_both_pools_and_none_is_lost(compared: Outcome) -> None:
    figures = compared.document["policies"]["lt-i"]
    assert figures["completed"] == figures["arrived"] == compared.document["requests"]
    assert figures["meets_slo"]
    minutes = compared.tables["replicas"].filter(pl.col("policy") == "lt-i")
    by_role = {name: part for (name,), part in minutes.partition_by("role", as_dict=True).items()}
    assert by_role.keys() == {"prefill", "decode"}
    assert by_role["decode"]["input_tps"].sum() == 0
    assert by_role["decode"]["output_tps"].sum() > by_role["prefill"]["output_tps"].sum() > 0
    assert {name: set(part["ready"].round(6)) for name, part in by_role.items()} == {
        name: {float(count)} for name, count in targets(compared).items()
    }


def test_the_plan_takes_what_costs_least_of_both_ways(stored: StoredTrace) -> None:
    three = plan.run(Inputs(apart(MIXED, PREFILL, DECODE), {"t": stored}), plan.Options(), silent)
    usd = {}
    for name, profiles in (("mixed", (MIXED,)), ("apart", (PREFILL, DECODE))):
        outcome = plan.run(Inputs(apart(*profiles), {"t": stored}), plan.Options(), silent)
        usd[name] = outcome.document["fleet_cost"]
    assert three.document["fleet_cost"] <= min(usd.values()) + 1e-9
    assert targets(three).keys() == ROLES


def test_two_variants_of_one_model_share_the_gpus_of_a_type(stored: StoredTrace) -> None:
    fast = SPEED | {"tp": 2, "alpha_ms": 7, "beta_ms": 0.15, "gamma_ms": 7, "delta_ms": 0.03}
    scenario = apart(MIXED, fast)
    outcome = compare.run(Inputs(scenario, {"t": stored}), ONCE, silent)
    rows = outcome.document["plan"]["decisions"]
    assert {row["arrangement"] for row in rows} == {"1 x G", "2 x G"}
    gpus = outcome.tables["plan"].group_by("period_start").agg(pl.col("gpus").sum())["gpus"]
    assert gpus.max() <= sum(region.capacity["G"] for region in scenario.regions)
    pools = outcome.document["policies"]["lt-i"]["pools"]
    assert {pool["gpus_per_instance"] for pool in pools} == {1, 2}


def test_a_timetable_keeps_a_ratio_where_both_roles_share_a_gpu_type(stored: StoredTrace) -> None:
    rows = [
        {"at": "00:00", "role": "prefill", "replicas": 6},
        {"at": "00:00", "role": "decode", "replicas": 2},
    ]
    timed = [{"name": "periodic", "timetable": rows}]
    outcome = compare.run(
        Inputs(apart(PREFILL, DECODE, policies=timed), {"t": stored}), ONCE, silent
    )
    pools = outcome.document["policies"]["periodic"]["pools"]
    assert [pool["peak_instances"] for pool in pools] == pytest.approx([6.0, 2.0])
