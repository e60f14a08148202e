"""Why a recommended number is what it is: a chain from demand to error, of what the run keeps."""

import re

from planner.models import Run, User
from planner.selectors.explanation import explanation_chains, shared_steps
from tests.planner.samples import client_of
from tests.planner.web.pages import signed_in, text_of
from tests.planner.web.study import POOLS, completed_run

(MODEL, REGION), _ = POOLS
NAMES = [
    "Demand", "Forecast", "One replica", "Plan", "Where from", "Simulation error", "Profile error"
]  # fmt: skip


def recommended(run: Run, **more: object) -> Run:
    run.result["capacity"][0] |= {"pool_tps": [3700.0 * n for n in range(1, 65)]}
    run.result["recommended"] = {
        "policy": "lt-i", "label": "Planned (LT-I)", "follows_plan": True, "parameters": {},
        "sentence": "Run it.", "cost_usd": 500.0, "gpu_hours": 200.0,
    } | more  # fmt: skip
    run.save()
    return run


def test_a_chain_has_the_figures_of_its_run(planner: User, viewer: User) -> None:
    run = recommended(completed_run(planner))
    first, second = explanation_chains(run)
    assert (first.model, first.region, first.replicas) == (MODEL, REGION, 6)
    assert [step.name for step in first.steps] == NAMES
    sentences = {step.name: step.sentence for step in first.steps}
    assert "2,000 input tokens/s" in sentences["Demand"]
    assert "arima, peak WAPE 20%" in sentences["Forecast"]
    assert "3,700 input tokens/s (3.2 req/s)" in sentences["One replica"]
    assert "TTFT" in sentences["One replica"] and "IW-F" in sentences["One replica"]
    assert "6 replicas" in sentences["Plan"] and "22,200" in sentences["Plan"]
    assert (
        "measured (a profile)" in sentences["Where from"] and "assumed (a guess)" not in sentences
    )
    assert {"12.0", "6", "7", "5"} <= set(re.findall(r"[\d.]*\d", sentences["Profile error"]))
    # Of the other nothing is known of its size: what is not kept is not made up.
    names = [step.name for step in second.steps]
    assert names == ["Demand", "Forecast", "Plan", "Simulation error", "Profile error"]
    page = text_of(signed_in(viewer).get(f"/runs/{run.pk}/"))
    assert re.search(r"\b200 \w+ GPU-hours", page) and "$2.50" in page
    api = client_of(viewer).get(f"/api/v1/runs/{run.pk}/why/").json()
    assert api[0]["steps"][2]["sentence"] == sentences["One replica"]


def test_a_tuned_factor_is_named_with_the_demand_that_it_scales(planner: User) -> None:
    run = recommended(completed_run(planner), parameters={"load_factor": 0.5})
    steps = explanation_chains(run)[0].steps
    (factor,) = [step for step in steps if step.name == "Load factor"]
    assert factor in shared_steps(explanation_chains(run))


def test_only_limits_that_bind_at_the_most_replicas_explain_them(planner: User) -> None:
    run = recommended(completed_run(planner))
    local = {"family": "local", "where": "", "periods": 2, "role": "mixed", "region": REGION}
    run.result["plan"]["binding"] = [
        {**local, "model": MODEL, "sentence": f"{MODEL} in {REGION}: own.", "replicas": [2, 5]},
        {**local, "model": f"{MODEL}-chat", "sentence": f"{MODEL}-chat in {REGION}: other."},
        {**local, "model": MODEL, "region": None, "sentence": f"{MODEL}: all.",
         "replicas": [9, 9]},
    ]  # fmt: skip
    run.save()
    (plan,) = [step for step in explanation_chains(run)[0].steps if step.name == "Plan"]
    words = plan.sentence.lower()
    assert "all" in words and "own" not in words and "other" not in words
