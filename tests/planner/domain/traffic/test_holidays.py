"""Holidays as a scenario names them: on every series of its traffic, and said."""

from pathlib import Path

import numpy as np
import pytest

from planner.domain.kinds import forecast
from planner.domain.outcome import Inputs
from planner.domain.progress import silent
from planner.errors import ScenarioError
from planner.inputs.scenario.holidays import holidays_in_words, holidays_of
from tests.planner.domain.builders import EPOCH, demand_file, parts, scenario, source

MONDAY = 19_856  # days to EPOCH


def stored(folder: Path, *, relative: bool = False):
    values = np.full(21 * 24, 900.0)
    values[9 * 24 : 10 * 24] = values[14 * 24 : 15 * 24] = 200.0
    start_s = 0.0 if relative else EPOCH
    return demand_file(
        folder, {"t": values.tolist()}, bin_s=3600.0, start_s=start_s, relative=relative,
        tokens={"input_tokens": {"t": (500 * values).tolist()}},
    )  # fmt: skip


def test_a_country_has_its_public_holidays_and_a_date_is_one() -> None:
    holidays = holidays_of(["US", "2024-05-22"], EPOCH, EPOCH + 21 * 86_400)
    assert holidays.days[:3] == (MONDAY + 9, MONDAY + 14, MONDAY + 37)  # the 27th; Juneteenth
    assert max(holidays.days) > MONDAY + 365  # as far as one may plan
    words = holidays_in_words(["US", "2024-05-22"], EPOCH, EPOCH + 21 * 86_400)
    assert "2024-05-22, 2024-05-27 Memorial Day." in words and "Juneteenth" not in words
    assert "forecast like other days" in holidays_in_words(["US"], EPOCH, EPOCH + 86_400)


def test_series_of_a_scenario_know_its_holidays(tmp_path: Path) -> None:
    """The forecast of the second, an hour at a time, is right from its first hour on."""
    sources = [source(output_tokens={"mean": 10})]
    holiday = scenario(
        traffic__sources=sources,
        horizon={"start": "2024-05-27T00:00:00Z", "duration_s": 86_400, "period_s": 3600},
    )
    trace = {"t": stored(tmp_path)}
    (plain,) = forecast.run(Inputs(holiday, trace), forecast.Options(), silent).document["series"]
    options = forecast.Options(holidays=("US", "2024-05-22"))
    result = forecast.run(Inputs(holiday, trace), options, silent).document
    (with_holidays,) = result["series"]
    assert with_holidays["wape"] < 0.05 < plain["wape"]
    assert any("Memorial Day" in note for note in result["notes"])
    _, traffic, _ = parts(scenario(traffic__sources=sources, forecast__holidays=["US"]), trace["t"])
    assert MONDAY + 14 in traffic.demand.holidays.days


def test_what_is_no_holiday_is_refused_with_what_to_give(tmp_path: Path) -> None:
    with pytest.raises(ScenarioError, match=r"'XX' is no country or date.*US or DE-BY"):
        scenario(forecast__holidays=["XX"])
    us_scenario = scenario(
        forecast__holidays=["US"], traffic__sources=[source(output_tokens={"mean": 10})]
    )
    with pytest.raises(ScenarioError, match="no calendar times"):
        parts(us_scenario, stored(tmp_path, relative=True))
