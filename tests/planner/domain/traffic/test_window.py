"""The window of a study: defaults, 'end', and what was known at each decision."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from forecasting.demand import SeriesKey
from planner.domain.traffic.demand import Demand
from planner.domain.traffic.window import Window, resolve_window
from planner.errors import ScenarioError
from tests.planner.domain import builders as make

HOUR, DAY = 3600.0, 86400.0


def demand(span_s: float, bin_s: float, start_s: float = make.EPOCH) -> Demand:
    values = np.ones((1, round(span_s / bin_s)))
    return Demand((SeriesKey("m", "east", "chat"),), start_s, bin_s, values, values, values)


def window_of(span_s: float, bin_s: float, **horizon: Any) -> Window:
    return resolve_window(make.settings(horizon=horizon, fleet={}).window, demand(span_s, bin_s))


def refusal(span_s: float, bin_s: float, **horizon: Any) -> str:
    with pytest.raises(ScenarioError) as error:
        window_of(span_s, bin_s, **horizon)
    return str(error.value)


@pytest.mark.parametrize(
    ("span_s", "bin_s", "duration_s", "period_s"),
    [
        (HOUR, 60, 1200, 300),  # less than half: 27 bins stay before the first decision
        (DAY, 300, DAY / 2, HOUR),
        (7 * DAY, 900, DAY, HOUR),
    ],
)
def test_defaults_follow_the_length_of_the_trace(
    span_s: float, bin_s: float, duration_s: float, period_s: float
) -> None:
    window = window_of(span_s, bin_s)
    assert (window.duration_s, window.period_s) == (duration_s, period_s)
    assert window.end_s == make.EPOCH + span_s and not window.after_traffic
    assert window.lead_s == 600  # fleet.startup_s: asked for early enough to be up


def test_end_is_right_after_the_trace_and_decided_there() -> None:
    window = window_of(7 * DAY, 900, start="end")
    assert window.after_traffic and window.start_s == make.EPOCH + 7 * DAY
    assert window.duration_s == DAY
    assert set(window.origins_s) == {window.start_s}


def test_a_time_without_a_zone_is_utc() -> None:
    for start in ("2024-05-15T06:00:00", "2024-05-15T06:00:00Z", "2024-05-15T08:00:00+02:00"):
        assert window_of(7 * DAY, 900, start=start).start_s == make.EPOCH + 2.25 * DAY


def test_start_falls_on_the_nearest_bin_edge() -> None:
    window = window_of(7 * DAY, 900, start="2024-05-15T06:05:00Z")
    assert window.start_s == make.EPOCH + 2.25 * DAY


@pytest.mark.parametrize("bin_s", [60.0, 900.0])
@pytest.mark.parametrize("lead_s", [0.0, 1.0, 600.0, 899.0, 900.0, 5000.0])
@pytest.mark.parametrize("period_s", [900.0, 3600.0])
def test_decisions_fall_on_bin_edges_a_lead_before_their_period(
    bin_s: float, lead_s: float, period_s: float
) -> None:
    window = window_of(7 * DAY, bin_s, lead_s=lead_s, period_s=period_s)
    early = window.period_starts_s - window.origins_s
    assert (early >= lead_s).all() and (early < lead_s + bin_s).all()
    np.testing.assert_allclose((window.origins_s - make.EPOCH) % bin_s, 0)
    assert len(window.period_starts_s) == round(window.duration_s / period_s)


@pytest.mark.parametrize(
    ("horizon", "words"),
    [
        ({"period_s": 1000}, "horizon.period_s: 1000 s is not a whole multiple"),
        ({"period_s": 1000}, "Choose 900 or 1800"),
        ({"period_s": 400}, "Choose 900, or set it and traffic.bin_s to 300"),
        ({"duration_s": 5000, "period_s": 3600}, "horizon.duration_s: 5000 s is not a whole"),
        ({"duration_s": 5000, "period_s": 3600}, "Choose 3600"),
        ({"start": "2024-06-01"}, "horizon.start: 2024-06-01 00:00 is after the traffic"),
        ({"start": "2024-05-19T12:00:00", "duration_s": DAY}, "past the end of the traffic"),
        ({"start": "2024-05-19T12:00:00", "duration_s": DAY}, "Shorten it to 43200"),
        ({"start": "2024-05-13T00:30:00"}, "before there is any history"),
        ({"start": "2023-05-13"}, "before there is any history"),
        ({"duration_s": 8 * DAY}, "before there is any history"),
    ],
)
def test_each_misfit_names_its_field_and_a_remedy(horizon: dict[str, Any], words: str) -> None:
    message = refusal(7 * DAY, 900, **horizon)
    assert message.startswith("horizon") and words in message
    assert "\n" not in message and message.endswith(".")


def test_what_is_advised_is_accepted() -> None:
    assert window_of(7 * DAY, 900, period_s=1800).period_s == 1800
    assert window_of(7 * DAY, 900, duration_s=3600, period_s=3600).duration_s == 3600
    start = "2024-05-19T12:00:00"
    assert window_of(7 * DAY, 900, start=start, duration_s=43200).end_s == make.EPOCH + 7 * DAY


def window_of_hours(tmp_path: Path, **horizon: Any) -> Window:
    """Return the window of a trace without calendar, of 52 hours."""
    stored = make.demand_file(tmp_path, {"a": [9.0] * 52}, bin_s=3600, start_s=0, relative=True)
    lengths = {"input_tokens": {"mean": 100}, "output_tokens": {"mean": 10}}
    scenario = make.scenario(traffic={"sources": [make.source(**lengths)]}, horizon=horizon)
    return make.parts(scenario, stored)[2]


@pytest.mark.parametrize(
    ("horizon", "moments"),
    [
        ({"start": "2024-05-19"}, ("horizon.start", "no calendar")),
        ({"start": 4 * DAY}, ("Day 3, 04:00",)),
        ({"start": 2 * DAY, "duration_s": DAY}, ("Day 3, 00:00", "Day 3, 04:00")),
        ({"start": 3600, "duration_s": DAY}, ("Day 1, 00:00",)),
    ],
)
def test_errors_of_a_trace_without_calendar_name_the_day_and_the_time(
    tmp_path: Path, horizon: dict[str, Any], moments: tuple[str, ...]
) -> None:
    with pytest.raises(ScenarioError, match=r"horizon") as refused:
        window_of_hours(tmp_path, **horizon)
    assert all(moment in str(refused.value) for moment in moments)


def test_seconds_from_the_start_are_a_moment_of_a_trace_without_calendar(tmp_path: Path) -> None:
    window = window_of_hours(tmp_path, start=36_000, duration_s=14_400, period_s=3600)
    assert window.start_s == 36_000


def test_more_decisions_or_bins_than_can_be_worked_through_are_refused() -> None:
    many = refusal(400 * DAY, 60, duration_s=300 * DAY, period_s=3600)
    assert many.startswith("horizon.period_s: ") and "7,200 decisions and 2,000 are allowed" in many
    long = refusal(400 * DAY, 60, duration_s=300 * DAY, period_s=DAY)
    assert long.startswith("horizon.duration_s: ") and "432,000 bins of 60 s" in long
