"""What a result rests on: one list, with a value, a provenance and the key that says otherwise."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from planner.domain.kinds import plan
from planner.domain.outcome import Inputs, Outcome
from planner.domain.preparation import study_of
from planner.domain.progress import silent
from planner.domain.results.assumptions import REQUESTS, SLO_OF, Assumption, assumptions_of
from planner.domain.traffic.sources import StoredTrace
from tests.planner.domain import builders as make

LENGTHS = {"input_tokens": {"mean": 600}, "output_tokens": {"mean": 40, "cv": 0.5}}


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> StoredTrace:
    return make.demand_file(tmp_path_factory.mktemp("flat"), {"a": [300.0] * 40})


def assumptions_in(stored: StoredTrace, **changes: Any) -> dict[str, Assumption]:
    fields: dict[str, Any] = {
        "traffic": {"sources": [make.source(**LENGTHS)]},
        "horizon": {"period_s": 300, "duration_s": 300},
    }
    study = study_of(Inputs(make.scenario(**(fields | changes)), {"t": stored}), silent)
    return {assumption.what: assumption for assumption in assumptions_of(study)}


def test_what_the_scenario_gives_by_hand_is_assumed_and_says_which_key(
    stored: StoredTrace,
) -> None:
    tiers = [{"name": "fast", "ttft_ms": 1000}, {"name": "slow", "e2e_ms": 60000}]
    shares = {"tiers": {"fast": 0.7, "slow": 0.3}, "scale": 0.5}
    assumptions = assumptions_in(
        stored,
        tiers=tiers,
        traffic={"sources": [make.source(**LENGTHS, **shares)]},
        fleet={"startup_s": 90, "today": [{"model": "m", "region": "east", "gpu": "G",
                                           "replicas": 4}]},
        forecast={"method": "last-value", "quantile": 0.9},
    )  # fmt: skip
    answers = assumptions["Answer lengths of m"]
    assert (answers.value, answers.provenance) == ("mean 40 tokens, CV 0.5", "assumed")
    assert answers.effect is not None and 0 < answers.effect <= 0.2  # a part of the work
    assert f"{answers.effect:.0%}" in answers.matters
    assert assumptions["Split of t by tier"].value == "fast 70%, slow 30%"
    assert assumptions["Split of t by tier"].key == "traffic.sources[0].tiers"
    assert assumptions["Volume of t"].value == "0.5 times what the trace has"
    assert assumptions[f"{SLO_OF}slow"].value == "E2E 1 min for 95% of requests"
    assert assumptions["Cold start of a replica"].value == "90 s"
    assert assumptions["Forecast of demand"].value == "last-value"
    assert assumptions["Planned percentile, all interactive tiers"].value == "P90"
    assert assumptions["Current fleet"].value.startswith("4 replicas")
    assert assumptions["Price of G in east"].value == "$2 per GPU and hour"
    assert "not checked" in assumptions["Speed of m on 1 x G"].value
    assert {assumption.provenance for assumption in assumptions.values()} <= {
        "measured", "published", "modelled", "assumed"
    }  # fmt: skip


def test_lengths_of_a_trace_of_requests_are_measured(tmp_path: Path) -> None:
    arrivals = make.steady(2.0, 2400.0)
    trace = make.request_file(tmp_path, arrivals, isl=200, osl=np.arange(len(arrivals)) % 2 + 1)
    assumptions = assumptions_in(trace, traffic={"sources": [make.source()]})
    prompts, answers = assumptions["Prompt lengths of m"], assumptions["Answer lengths of m"]
    assert (prompts.value, prompts.provenance) == ("mean 200 tokens, CV 0.00", "measured")
    assert answers.value == "mean 2 tokens, CV 0.33"
    assert assumptions[REQUESTS].provenance == "measured"
    assert "Volume of t" not in assumptions


def _planned(stored: StoredTrace, **options: Any) -> Outcome:
    scenario = make.scenario(
        traffic={"sources": [make.source(**LENGTHS)]},
        horizon={"period_s": 300, "duration_s": 300},
    )
    return plan.run(Inputs(scenario, {"t": stored}), plan.Options(**options), silent)


def test_a_plan_recommends_itself_and_claims_no_attainment_that_nobody_saw(
    stored: StoredTrace,
) -> None:
    document = _planned(stored).document
    take = document["recommended"]
    assert take["policy"] == "lt-i"
    assert take["cost_usd"] == document["totals"]["usd"]
    assert take["gpu_hours"] == document["totals"]["gpu_hours"]
    assert take["attainment"] is None
    assert take["equal_slo_saving"] is None
    assert {"what", "value", "provenance"} <= document["assumptions"][0].keys()


def test_a_verified_plan_says_what_it_attained(stored: StoredTrace) -> None:
    document = _planned(stored, verify=True).document
    take, judged = document["recommended"], document["verification"]["judged"]
    assert take["attainment"] == {row["tier"]: row["attainment"] for row in judged}
