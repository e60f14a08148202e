"""Resolve holidays that a scenario names by country or by date.

The package ``holidays`` provides the public holidays of a country.
"""

from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta
from typing import Annotated

import holidays as library
from pydantic import AfterValidator, BeforeValidator, Field

from forecasting.holidays import DAY_S, Holidays

EPOCH = date(1970, 1, 1)
AHEAD_DAYS = 2 * 366  # after the traffic's end, for which holidays are listed
MOST_NAMED = 6  # holidays in a sentence
GIVE = "a country's code, such as US or DE-BY, or a date, such as 2024-12-24"


def _check_holiday(value: str) -> str:
    """Return ``value`` if it is a date or a known country code; raise ValueError otherwise."""
    if _date(value) is not None:
        return value
    try:
        # Any year shows whether the country is known.
        _country(value, [2000])
    except NotImplementedError:
        raise ValueError(
            f"{value!r} is no country or date that is known here. Give {GIVE}"
        ) from None
    return value


Holiday = Annotated[
    str,
    # YAML parses an unquoted date into a date object.
    BeforeValidator(lambda value: value.isoformat() if type(value) is date else value),
    AfterValidator(_check_holiday),
    Field(min_length=2, max_length=20),
]


def holidays_of(names: Sequence[str], start_s: float, end_s: float) -> Holidays:
    """Return the holidays of ``names`` from ``start_s`` to AHEAD_DAYS after ``end_s`` (epoch)."""
    days = tuple((day - EPOCH).days for day, _ in _days(names, start_s, end_s))
    return Holidays(days, calendar=True)


def holidays_in_words(names: Sequence[str], start_s: float, end_s: float) -> str:
    """Return a sentence on the holidays of ``names`` in ``[start_s, end_s)``; "" without names."""
    if not names:
        return ""
    days = []
    for day, holiday in _days(names, start_s, end_s):
        if (day - EPOCH).days * DAY_S < end_s:
            days.append(f"{day:%Y-%m-%d} {holiday}".strip())
    if not days:
        return (
            f"Holidays ({', '.join(names)}): this traffic has none, so they are forecast like "
            "other days."
        )
    more = f" and {len(days) - MOST_NAMED} before" if len(days) > MOST_NAMED else ""
    listed = ", ".join(days[-MOST_NAMED:])
    return f"Holidays ({', '.join(names)}): {listed}{more}. Days are UTC."


def _days(names: Sequence[str], start_s: float, end_s: float) -> list[tuple[date, str]]:
    """Return (date, name) of each holiday in order; the name of a stated date is ""."""
    first = datetime.fromtimestamp(start_s, UTC).date()
    last = datetime.fromtimestamp(end_s, UTC).date() + timedelta(days=AHEAD_DAYS)
    days: dict[date, str] = {}
    for name in names:
        day = _date(name)
        if day is not None:
            days.setdefault(day, "")
        else:
            days |= dict(_country(name, range(first.year, last.year + 1)))
    return sorted((day, holiday) for day, holiday in days.items() if first <= day <= last)


def _country(code: str, years: Sequence[int]) -> library.HolidayBase:
    """Return holidays of a country or part (DE-BY) by date; or raise NotImplementedError."""
    country, _, part = code.partition("-")
    return library.country_holidays(country, subdiv=part or None, years=years, language="en_US")


def _date(text: str) -> date | None:
    """Return the date in ISO format, or None."""
    try:
        return date.fromisoformat(text)
    except ValueError:
        return None
