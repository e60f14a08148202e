"""The bench of decisions: how a case is made of real data, and what is read off its result."""

import json
from typing import Any

import pytest

from bench.decisions.__main__ import summed_up
from bench.decisions.cases import LIMITS, scenario_of
from bench.decisions.data import DATA, UNSEEN
from bench.decisions.outcome import Decision
from planner.inputs.scenario.document import parse


@pytest.mark.parametrize("limits", LIMITS)
@pytest.mark.parametrize("data", [*DATA, *UNSEEN], ids=lambda data: data.name)
def test_every_case_is_a_scenario(data: Any, limits: str) -> None:
    scenario = parse(json.dumps(scenario_of(data, limits, 10.0)))
    roles = {profile.role for profile in scenario.profiles}
    assert roles == ({"prefill", "decode"} if limits == "pd" else {"mixed"})


def level(usd: float, *, met: bool = True, inside: bool = True) -> dict[str, Any]:
    return {
        "usd": usd, "usd_without_spare": usd - 10, "met": met, "met_slower": met,
        "over_static": 0.9, "cost_in_interval": inside, "attainment_in_interval": [inside],
    }  # fmt: skip


def a_case(usd: float, **changes: Any) -> Decision:
    return Decision("a", {
        "levels": {name: level(usd, **changes) for name in ("economy", "balanced", "safe")},
        "hindsight_usd": 100.0, "best_deployable_usd": 100.0, "oracle_usd": 90.0, "replicas": 20,
    })  # fmt: skip


def test_ratios_are_over_the_cases_that_met_the_slo() -> None:
    figures = summed_up([a_case(120.0), a_case(130.0), a_case(50.0, met=False)])
    assert figures["economy_met_share"] == pytest.approx(2 / 3)
    assert figures["economy_paid_over_hindsight_mean"] == pytest.approx(1.15)
    assert figures["balanced_n_plus_1_cost_share"] == pytest.approx((10 / 110 + 10 / 120) / 2)
    assert figures["regret_mean"] == pytest.approx(0.25)
    assert figures["cases_met"]["safe"] == [2, 3]


def test_intervals_count_every_level_of_every_case() -> None:
    figures = summed_up([a_case(120.0), a_case(120.0, inside=False)])
    assert figures["interval_coverage"] == figures["attainment_interval_coverage"] == 0.5


def test_the_oracle_is_beaten_by_what_cost_less() -> None:
    figures = summed_up([a_case(81.0), a_case(10.0, met=False)])
    assert figures["oracle_beaten_by_max"] == pytest.approx(0.1)
    assert figures["never_dearer_than_static"] == pytest.approx(0.9)
