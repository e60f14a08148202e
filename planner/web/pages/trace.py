"""What the page of a trace shows: what stands out in words, charts, and the figures behind them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from planner.models import Trace
from planner.selectors.traces import trace_character, trace_rates
from planner.studies.character.volumes import LINES
from planner.studies.plain import moment
from planner.templatetags.headroom import digits, duration, percent
from planner.web.charts.figure import Figure
from planner.web.charts.traffic import days_figure, lengths_figure, rate_figure, week_figure

Character = Mapping[str, Any]
AMOUNTS = ("requests", "input_tokens", "output_tokens", "total_tokens")
ROWS = 12  # of a table that could have hundreds; the API has them all
# Autocorrelations from which on a day repeats the one before.
REPEATS = ((0.5, "repeat"), (0.2, "only partly repeat"), (float("-inf"), "do not repeat"))
BURSTY = 2.0  # times the variance of Poisson arrivals


def trace_context(trace: Trace, params: Mapping[str, str]) -> dict[str, Any]:
    """``by`` of the query says what traffic is told apart by: model, region, tier or series."""
    said = trace_character(trace)
    kinds = list(dict.fromkeys(volume["by"] for volume in said["volumes"]))
    several = [
        kind for kind in kinds if sum(volume["by"] == kind for volume in said["volumes"]) > 1
    ]
    asked = params.get("by", "")
    by = asked if asked in kinds else next(iter([*several, *kinds]), "all")
    volumes = [volume for volume in said["volumes"] if volume["by"] == by]
    lengths = [length for length in said["lengths"] if length["by"] in ("all", by)]
    return {
        "said": said,
        "kinds": kinds,
        "by": by,
        "stands_out": list(_stands_out(said)),
        "rates": _rates(trace, said, by),
        "stretch_s": _stretch_s(trace, by),
        "week": _week(said),
        "lengths": _lengths(said, by, volumes),
        "length_rows": lengths[: 2 * ROWS],
        "days": days_figure(said["days"]["days"], said["unit"], said["clock"])
        if len(said["days"]["days"]) > 1
        else None,
        "volumes": [said["total"], *volumes[:ROWS]],
        "more_volumes": max(0, len(volumes) - ROWS),
        "cells": said["cells"][:ROWS],
        "more_cells": max(0, len(said["cells"]) - ROWS),
        "outages": [
            outage
            | {"from": moment(outage["start_s"]), "lasts": outage["end_s"] - outage["start_s"]}
            for outage in said["outages"][:ROWS]
        ],
        "more_outages": max(0, said["outages_found"] - ROWS),
        "utility": said["total"]["utility"] is not None,
    }


def _rates(trace: Trace, said: Character, by: str) -> dict[str, Figure]:
    rates, total = trace_rates(trace, by), trace_rates(trace, "all")
    return {
        field: rate_figure(
            rates,
            total,
            field,
            unit="requests/s" if field == "requests" else f"{field.replace('_', ' ')}/s",
            clock=said["clock"],
            lost=said["outages"],
        )
        for field in AMOUNTS
        if field in rates.columns
    }


def _stretch_s(trace: Trace, by: str) -> float:
    """Seconds that one point of the charts is the mean of."""
    return float(trace_rates(trace, by)["seconds"][0])


def _week(said: Character) -> Figure | None:
    """Where all hours of the day were seen."""
    if said["rhythm"]["peak_hour"] is None:
        return None
    unit = "requests/s" if said["unit"] == "requests" else f"{said['unit'].replace('_', ' ')}/s"
    return week_figure(said["rhythm"], unit=unit, clock=said["clock"])


def _lengths(said: Character, by: str, volumes: list[Any]) -> dict[str, Figure]:
    """Of the labels that charts tell apart; their colours are those of the other charts."""
    places = {one["label"]: place for place, one in enumerate(volumes)}
    few = len(places) if len(places) <= LINES else LINES - 1
    figures = {}
    for field in ("input_tokens", "output_tokens"):
        lines = [
            length
            for length in said["lengths"]
            if length["field"] == field
            and length["by"] == by
            and length["quantiles"]
            and places.get(length["label"], 0) < few + (by == "all")
        ]
        lines.sort(key=lambda one: places.get(one["label"], 0))
        if lines:
            figures[field] = lengths_figure(lines, said["levels"], places)
    return figures


def _stands_out(said: Character) -> Iterator[str]:
    """What somebody who plans for this traffic has to know, most important first."""
    yield from said["days"]["words"]
    if said["outages_found"]:
        many = said["outages_found"]
        yield (
            f"{many:,} outage{'s' * (many > 1)} (bins without anything that cannot be demand) "
            f"{'are' if many > 1 else 'is'} shaded below and not counted as demand."
        )
    if said["gaps"]:
        yield f"Of {said['gaps']:,} bins the file says nothing: they are gaps, not zero."
    yield from _rhythm(said)
    for one in said["imbalance"]:
        kind = one["by"] if one["by"] == "series" else f"{one['by']}s"
        unit = said["unit"].replace("_", " ")
        yield (
            f"Of {one['labels']:,} {kind} {one['most']} has {percent(one['most_share'], 0)} and "
            f"{one['least']} {percent(one['least_share'], 0)} of the {unit}: in effect "
            f"{digits(one['effective'])} equal ones."
        )
    yield from said["notes"]


def repeats(correlation: float) -> str:
    """How a day stands to the one before, by the autocorrelation at a day."""
    return next(words for least, words in REPEATS if correlation >= least)


def _rhythm(said: Character) -> Iterator[str]:
    rhythm = said["rhythm"]
    day, week = rhythm["autocorrelation_day"], rhythm["autocorrelation_week"]
    if day is not None:
        words = f"Days {repeats(day)} each other (autocorrelation {day:.2f} at a day"
        words += f", {week:.2f} at a week)" if week is not None else ")"
        if rhythm["peak_to_trough"]:
            words += (
                f": the hour from {rhythm['peak_hour']:02d}:00 has "
                f"{digits(rhythm['peak_to_trough'])} times as much as that from "
                f"{rhythm['trough_hour']:02d}:00"
            )
        yield f"{words}."
    local = [one for one in said["burstiness"] if one["within_10_min"] is not None]
    if local:
        one = local[0]
        times = one["within_10_min"]
        how = "in bursts" if times >= BURSTY else "about as by chance"
        yield (
            f"Within ten minutes traffic comes {how}: over {duration(one['bin_s'])} its variance "
            f"is {digits(times)} times that of Poisson arrivals."
        )
