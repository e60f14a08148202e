"""Plans against what came: the plan that knew it, forecasts off by a known share, and drifts."""

import numpy as np
import pytest

from forecasting.demand import SeriesKey
from planner.domain.outcome import Inputs
from planner.domain.progress import silent
from planner.domain.retrospective.drift import speed_drift
from planner.domain.retrospective.evaluation import evaluate_plan
from planner.domain.retrospective.figures import ForecastBin, RequestedPool
from planner.errors import ScenarioError
from planner.inputs.live.replica_speed import ServedSpeed
from tests.planner.domain import builders as make
from tests.simulation.performance.fitting.test_kalman import TRUE, profile, watched

STARTUP = 600.0  # cold start in seconds, the default of scenarios
SCALE, HOUR, HOURS, BEGINS = 4, 3600.0, 4, make.EPOCH + 32 * 3600
COUNTS = [300 + 60 * (q % 16) for q in range(36 * 4)]  # a quarter of an hour each
SERIES = SeriesKey("m", "east", "interactive")


@pytest.fixture(scope="module")
def stored(tmp_path_factory):
    lengths = {kind: {"m": [n * each for n in COUNTS]}
               for kind, each in (("input_tokens", 2000), ("output_tokens", 100))}  # fmt: skip
    folder = tmp_path_factory.mktemp("came")
    return make.demand_file(folder, {"m": COUNTS}, bin_s=900.0, tokens=lengths)


def judged(stored, replicas, times: float = 1.0, served=(), **changes):
    scenario = make.scenario(
        horizon={"start": "2024-05-14T08:00:00Z", "duration_s": HOURS * HOUR, "period_s": HOUR},
        traffic={"sources": [make.source(scale=SCALE)], "bin_s": 900},
        **changes,
    )
    forecast_bins = {
        (SERIES, make.EPOCH + 900.0 * q): ForecastBin(*[times * SCALE * n * 2000 / 900] * 2)
        for q, n in enumerate(COUNTS)
    }
    # More replicas are requested one cold start before their hour.
    starts = HOUR * np.arange(len(replicas))
    times = np.unique(np.concatenate([starts, starts[1:] - STARTUP]))
    hour_of = [np.searchsorted(starts, times + ahead, side="right") - 1 for ahead in (0, STARTUP)]
    counts = np.max([np.array(replicas)[hours.clip(0)] for hours in hour_of], axis=0)
    held = RequestedPool("m", "east", "G", None, "mixed", None, None, BEGINS + times, counts)
    return evaluate_plan(
        Inputs(scenario, {"t": stored}), [held], forecast_bins, silent, served=served
    )


def test_a_plan_that_knew_what_came(stored):
    """What would have done is what is held, when that is held; less is short of what came."""
    ample = judged(stored, [9] * HOURS)
    needed = [hour.needed_replicas for hour in ample.hours]
    assert max(needed) < 9 and ample.short_hours == 0 and ample.met["chat"]
    assert ample.replica_hours == 9 * HOURS and ample.planned_usd == 9 * HOURS * 2
    same = judged(stored, needed)
    assert (
        [hour.plan_replicas for hour in same.hours]
        == [hour.needed_replicas for hour in same.hours]
        == needed
    )
    assert (same.planned_usd, same.short_hours) == (same.needed_usd, 0)
    assert same.cost_usd < ample.cost_usd
    assert "It came true" in same.sentence and "target 95%" in same.sentence
    short = judged(stored, [1] * HOURS)
    assert short.short_hours > 0 and short.attainment["chat"] < same.attainment["chat"]
    assert short.sentence.startswith("It missed chat")
    assert same.speed == ()
    served = [watched_live("m", "east", 1.2), watched_live("m", "west", 1.0)]
    slow = judged(stored, needed, served=served)
    (drift,) = slow.speed
    assert drift.flagged and drift.times == pytest.approx(1.2, abs=0.03)
    assert "the speed of m on G in east has drifted: iterations take 20% longer" in slow.sentence
    assert any("m in west was observed" in note for note in slow.notes)
    assert not same.lengths[0].flagged and same.lengths[0].input_came == pytest.approx(
        2000, rel=0.1
    )


def watched_live(model: str, region: str, times: float) -> ServedSpeed:
    """Replicas with seven others beside a token, which take ``times`` what the profile says."""
    ones = np.ones(24)
    prompts = 0.2 * 0.0144  # requests/s by about the seconds of an iteration
    seconds = times * (0.012 + 0.15e-3 * 8 + 0.06e-3 * prompts * 2000)
    return ServedSpeed(
        model, region, BEGINS + 300 * np.arange(24), 7 * ones, 0.2 * ones, 2000 * ones, 100 * ones,
        seconds * ones,
    )  # fmt: skip


@pytest.mark.parametrize("times", [1.0, 1.25, 0.8])
def test_errors_of_a_forecast_that_is_off_by_a_known_share(stored, times):
    errors = judged(stored, [9] * HOURS, times).demand
    assert errors.wape == pytest.approx(abs(times - 1))
    assert errors.bias == pytest.approx(times - 1)
    assert errors.covered == pytest.approx(min(1.0, times))
    assert errors.hours == HOURS


def test_a_pool_that_the_scenario_lost_is_named(stored):
    held = RequestedPool("m", "west", "G", 1, "mixed", None, None, np.zeros(1), np.ones(1, int))
    scenario = make.scenario(horizon={"duration_s": HOUR, "period_s": HOUR})
    with pytest.raises(ScenarioError, match="m on G in west"):
        evaluate_plan(Inputs(scenario, {"t": stored}), [held], {}, silent)


@pytest.mark.parametrize(("slower", "flagged"), [(1.0, False), (1.3, True)])
def test_a_profile_that_serves_slower_than_it_says_is_flagged(slower, flagged):
    guess = profile(TRUE)
    seen = watched(TRUE * slower, noise=0.02)
    drift = speed_drift(guess, seen)
    assert drift.times == pytest.approx(slower, abs=0.03) and drift.flagged == flagged
    assert drift.low < slower < drift.high
