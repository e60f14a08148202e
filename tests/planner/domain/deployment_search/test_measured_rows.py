"""Measured rows of one's own move the search as they move ``size``, and no further than they share
something with a deployment."""

from collections.abc import Iterator
from typing import Any

import pytest

from planner.domain.deployment_search.candidates import instances_of
from planner.domain.deployment_search.query import DeploymentQuery, price_of
from planner.domain.deployment_search.results import WIDTHS
from planner.domain.deployment_search.search import DeploymentSearchResult, search_deployments
from planner.inputs import catalogue
from planner.inputs.catalogue.estimate_calibration import estimate_fit
from planner.inputs.estimates.measured_corrections import (
    MeasuredCorrections,
    corrections_from,
    measurements,
)
from planner.inputs.scenario.schema import Profile
from planner.inputs.scenario.speeds import speed_of
from planner.inputs.scenario.user_facts import UserFacts
from simulation.performance.estimate.calibration import ENGINES
from simulation.performance.profile import iteration_s
from simulation.search.values import Instance

MODEL, GPU = "llama-3.1-8b", "A100-80GB"  # without fp8, so that all serve one precision
ASKED = DeploymentQuery(
    model=MODEL, isl=1024, osl=128, ttft_ms=2000, tbt_ms=150, top=2, gpus=(GPU,), engines=("vllm",)
)  # fmt: skip


def _rows(engine: str, ms_per_user: float) -> list[dict[str, Any]]:
    """A server that is slower than estimates have it, at every load."""
    return [
        {"model": MODEL, "gpu": GPU, "tp": 1, "engine": engine, "isl": 1000, "osl": 200,
         "concurrency": users, "ttft_ms": 250 + 9 * users, "tbt_ms": 17 + ms_per_user * users}
        for users in (1, 8, 32, 64, 128)
    ]  # fmt: skip


@pytest.fixture(scope="module")
def measured() -> MeasuredCorrections:
    rows, left = measurements(_rows("vllm", 0.62), "mine.csv")
    measured = corrections_from(rows, left, estimate_fit())
    assert measured is not None and len(measured.rows) == 5
    return measured


@pytest.fixture(scope="module")
def both(measured: MeasuredCorrections) -> tuple[DeploymentSearchResult, DeploymentSearchResult]:
    return search_deployments(ASKED), search_deployments(ASKED, measurements=measured)


def _instances(measured: MeasuredCorrections | None) -> Iterator[Instance]:
    gpu = catalogue.gpu(GPU)
    yield from instances_of(
        catalogue.shape(MODEL), "bf16", [gpu], {GPU: price_of(GPU, {})}, ENGINES,
        lambda done, what: None, measured.times if measured else None,
    ).instances  # fmt: skip


def test_what_is_searched_is_as_fast_as_what_a_scenario_makes_of_it(
    measured: MeasuredCorrections,
) -> None:
    known, checked = UserFacts(own=measured.times), set()
    for instance in _instances(measured):
        if instance.where.pp > 1 or instance.where.weights != "bf16":
            continue
        roles = {"agg": ["mixed"], "disagg": ["prefill", "decode"], "any": ["mixed", "decode"]}
        for engine in instance.engines:
            for role in roles[instance.mode]:
                section = Profile.model_validate(
                    {"model": MODEL, "gpu": GPU, "kind": "roofline", "engine": engine,
                     "precision": "bf16", "role": role}
                    | {n: getattr(instance.where, n) for n in WIDTHS if not n.startswith("moe")}
                )  # fmt: skip
                speed = speed_of(section, catalogue.model(MODEL), catalogue.gpu(GPU), known)
                for batch in ((64.0, 7e4, 0.0, 0.0), (0.0, 0.0, 1000.0, 5e5)):
                    assert float(iteration_s(instance.profile, *batch)) == pytest.approx(
                        float(iteration_s(speed, *batch)), rel=1e-6
                    )
                checked.add((engine, role))
    assert checked >= {(e, r) for e in ENGINES for r in ("mixed", "prefill", "decode")}


def test_every_candidate_there_was_is_there_once(measured: MeasuredCorrections) -> None:
    def served(instances: Iterator[Instance], modes: set[str]) -> list[tuple[object, ...]]:
        return sorted(
            (str(instance.where), engine) for instance in instances if instance.mode in modes
            for engine in instance.engines
        )  # fmt: skip

    for mode in ("agg", "disagg"):
        assert served(_instances(measured), {mode, "any"}) == served(_instances(None), {"any"})


def test_a_slower_server_carries_less_and_its_error_is_not_larger(
    both: tuple[DeploymentSearchResult, DeploymentSearchResult],
) -> None:
    before, after = both
    assert all(row.own is None for row in before.candidates)
    assert before.evaluated == after.evaluated and before.ruled_out == after.ruled_out
    rows = [(row, row.own) for row in (*after.pareto, *after.candidates) if row.own]
    aggregated = [(row, known) for row, known in rows if row.mode == "agg"]
    for row, known in aggregated:
        assert known.rows == 5 and known.decode_factor > 1.0
        assert row.expected_error.tbt <= known.tbt_before
    apart = after.candidates[0].own  # nothing of it was measured; it shares engine, GPU and model
    assert apart is not None and (apart.rows, apart.alike) == (0, 5)
    assert apart.decode_factor > 1.0
    best = [max(row.rps_per_gpu for row in outcome.candidates) for outcome in both]
    assert best[1] < best[0]
    assumptions = {assumption.what: assumption for assumption in after.assumptions}[
        "Your measured rows"
    ]
    assert assumptions.value.startswith("5 ") and assumptions.source == "mine.csv"
