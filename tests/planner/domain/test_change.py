"""The gates of a proposal, from stored results."""

from datetime import timedelta
from typing import Any

from planner.domain.reports.change import SEASON, Simulated, change_facts, checks, simulated_policy
from planner.domain.results.stored import StoredResult
from planner.domain.serialise import from_json

FIGURES = {
    "label": "Predictive", "cost_usd": 300.0, "gpu_hours": 100.0, "energy_kwh": 40.0,
    "carbon_kg": 10.0, "slo_attainment": {"interactive": 0.97, "batch": 1.0},
    "slo_met": {"interactive": True, "batch": True}, "worst_hour": {},
    "tiers": {"interactive": {"target": 0.95}, "batch": {"target": 0.99}}, "meets_slo": True,
    "hindsight": False, "survives": 1.0, "n_plus_1": True,
}  # fmt: skip


def day(level: str, *, passes: bool, kind: str = "past") -> dict[str, Any]:
    on_day = {"cost_usd": 1.0, "attainment": {"interactive": 0.9}, "passes": passes, "reason": ""}
    return {
        "name": kind, "kind": kind, "parameters": {}, "required": level == "economy",
        "weight": 1.0, "cases": 1,
        "pass_share": 1.0, "not_applicable": "", "policies": {"plan": on_day}, "level": level,
    }  # fmt: skip


def plan_of(result: dict[str, Any]) -> Simulated | None:
    return simulated_policy(from_json(StoredResult, result), "plan")


def gates(result: dict[str, Any], **others: Any) -> list[bool | None]:
    known = {"usd_30d": 5.0, "budget_usd_30d": 6.0, "data_age": SEASON, **others}
    return [check.passed for check in checks(plan_of(result), **known)]


def of(*days: dict[str, Any], **changes: Any) -> dict[str, Any]:
    figures = {**FIGURES, **changes}
    return {"policies": {"plan": figures}, "test_days": list(days), "deferrable": ["batch"]}


def test_each_gate_fails_alone() -> None:
    assert gates(of(day("economy", passes=True))) == [True] * 5
    missed = {"interactive": True, "batch": False}
    assert gates(of(day("economy", passes=True), slo_met=missed)) == [False, *[True] * 4]
    assert gates(of(day("economy", passes=True), survives=0.9, n_plus_1=False))[1] is False
    assert gates(of(day("economy", passes=False)))[2] is False
    lost = day("safe", passes=False, kind="replica_lost")
    assert gates(of(day("economy", passes=True), lost))[1:3] == [False, True]
    assert gates(of(), usd_30d=7.0)[3] is False
    assert gates(of(), data_age=SEASON + timedelta(seconds=1))[4] is False


def test_what_is_not_known_is_no_failure() -> None:
    unknown = gates({"policies": {}}, budget_usd_30d=None, data_age=None)
    assert unknown == [None] * 5
    assert gates(of(survives=None, n_plus_1=None))[1:3] == [None, None]


def test_tiles_hold_the_proposal_against_now() -> None:
    before, after = (plan_of(of(cost_usd=usd)) for usd in (600.0, 300.0))
    tiles = list(change_facts(before, after, (4, 4), (1, 2), 0.5))
    assert [tile.value for tile in tiles[:2]] == ["1 to 2", 300.0]
    assert tiles[1].change == "−50%"
    guarded = next(change_facts(before, after, (4, 4), (1, 2), 0.5, simulated=(1, 5)))
    assert guarded.value == "1 to 2" and " 5 " in guarded.note
    alone = list(change_facts(None, after, None, (1, 2), None))
    assert [tile.note for tile in alone[:4]] == [""] * 4
