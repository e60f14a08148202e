"""A run of more requests than fit in memory: replayed as a stream, told, and the same."""

import numpy as np
import pytest
from polars.testing import assert_frame_equal

from planner.domain.kinds import simulate
from planner.domain.kinds.simulate import Options
from planner.domain.outcome import Inputs, Outcome
from planner.domain.progress import silent
from planner.domain.traffic.sources import StoredTrace
from planner.errors import ScenarioError
from simulation import trace_replay
from simulation.stream.tally import ERROR
from tests.planner.domain import builders as make

FINEST_MS = 0.13  # below it a bucket tells no more
TAILS = [f"{what}_ms_p{share}" for what in ("ttft", "tbt", "e2e") for share in (50, 95, 99)]


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> StoredTrace:
    folder = tmp_path_factory.mktemp("streamed")
    return make.request_file(folder, make.steady(2.0, 1200), isl=200, osl=20)


def run(stored: StoredTrace, policy: str, **options: bool) -> Outcome:
    scenario = make.scenario(policies=[policy], horizon={"duration_s": 600, "period_s": 300})
    return simulate.run(Inputs(scenario, {"t": stored}), Options(policy=policy, **options), silent)


@pytest.mark.parametrize("policy", ["flat-min", "reactive"])
def test_a_long_window_has_the_figures_of_a_short_one(
    stored: StoredTrace, policy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The flat fleet is searched on streams too, and its timetable the same.

    Streams begin without the requests in flight, so both do here.
    """
    monkeypatch.setattr("planner.domain.preparation.carried_into", lambda study: None)
    at_once = run(stored, policy)
    monkeypatch.setattr(trace_replay, "LONG", 100)
    monkeypatch.setattr(trace_replay, "PIECE", 64)
    streamed = run(stored, policy)
    assert at_once.document["replayed"]["percentiles_within"] == 0.0
    assert streamed.document["replayed"]["percentiles_within"] == ERROR
    assert "Replayed as a stream" in streamed.document["replayed"]["sentence"]
    for name in (
        "arrived", "completed", "rejected", "unfinished", "input_tokens", "output_tokens",
        "gpu_hours", "cost_usd", "energy_kwh", "carbon_kg", "slo_attainment", "worst_hour",
        "meets_slo", "starts", "tokens_in_time", "reject_reasons", "settings",
    ):  # fmt: skip
        assert streamed.document[name] == at_once.document[name], name
    assert_frame_equal(streamed.tables["replicas"], at_once.tables["replicas"])
    exact, near = at_once.tables["groups"], streamed.tables["groups"]
    assert_frame_equal(near.drop(TAILS), exact.drop(TAILS))
    for tail in TAILS:
        np.testing.assert_allclose(near[tail], exact[tail], rtol=ERROR + 1e-9, atol=FINEST_MS)
    assert near[TAILS[0]].is_not_null().all()


def test_rows_of_requests_are_kept_of_as_many_as_fit(
    stored: StoredTrace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trace_replay, "LONG", 100)
    kept = run(stored, "flat-peak", requests=True)
    assert kept.tables["requests"].height == kept.document["arrived"]
    assert kept.document["replayed"]["percentiles_within"] == 0.0
    monkeypatch.setattr(simulate, "MOST_KEPT", 1000)
    with pytest.raises(ScenarioError, match="can be kept of 1,000"):
        run(stored, "flat-peak", requests=True)
