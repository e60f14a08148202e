"""Build the page of a trace: notable facts in words, charts, and their figures."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from planner.domain.formats import compact, digits, duration, percent
from planner.domain.report import Fact
from planner.domain.reports.trace import trace_report
from planner.domain.trace_statistics.figures import Burstiness, Character, Imbalance, Volume
from planner.domain.trace_statistics.volumes import MAX_CHART_LINES, MAX_LISTED_LABELS
from planner.domain.traffic.window import UTC_CLOCK
from planner.inputs.ingest.formats import OFFERED
from planner.inputs.ingest.options import AUTO
from planner.models import Trace
from planner.outputs.render.figure import Figure
from planner.outputs.render.html import display_sections
from planner.selectors.traces import trace_character, trace_rates
from planner.web.charts.traffic import days_figure, lengths_figure, rate_figure, week_figure
from planner.web.request import TemplateContext

AMOUNTS = ("requests", "input_tokens", "output_tokens", "total_tokens")
ROWS = 12  # most rows of a table that could have hundreds; the API returns all
MOST_LABELS = 5  # with their share in a sentence
# Smallest autocorrelations at a day for each description of the daily pattern.
REPEATS = (
    (0.8, "Strong daily pattern"),
    (0.4, "Daily pattern differs between days"),
    (float("-inf"), "No daily pattern"),
)
BURSTY = 2.0  # times the variance of Poisson arrivals


def trace_context(trace: Trace, params: Mapping[str, str]) -> TemplateContext:
    """Return the context of a trace's page.

    ``by`` in ``params`` selects how traffic is split: by model, region, tier or series.
    """
    character = trace_character(trace)
    labels_of_kind = Counter(volume.by for volume in character.volumes)
    by = _chosen_kind(labels_of_kind, params.get("by", ""))
    volumes = [volume for volume in character.volumes if volume.by == by]
    all_series = trace.report.get("series", ())
    series = all_series
    if len(all_series) > MAX_LISTED_LABELS:  # show the largest ones
        by_size = sorted(all_series, key=lambda series: -(series["requests"] or 0.0))
        series = by_size[:MAX_LISTED_LABELS]
    assumptions = trace.report.get("assumptions", ())
    days = character.days.days
    return {
        "format": OFFERED["format"].choices.get(trace.format, trace.format),
        "chosen": list(chosen_options(trace.options)),
        "notes": [note for note in trace.report["notes"] if note not in assumptions],
        "series": series,
        "more_series": len(all_series) > len(series),
        "kinds": list(labels_of_kind),
        "by": by,
        "facts": list(_facts(character)),
        "stands_out": [*_model_limits(trace.report), *_unusual_traits(character)],
        "sections": display_sections(trace_report(character, by), live=True),
        "rates": _rates(trace, character, by),
        # seconds over which each point of the charts is averaged
        "stretch_s": float(trace_rates(trace, by)["seconds"][0]),
        "week": _week(character),
        "lengths": _lengths(character, by, volumes),
        "days": days_figure(days, character.unit, character.clock) if len(days) > 1 else None,
    }


def _chosen_kind(labels_of_kind: Mapping[str, int], chosen: str) -> str:
    """Return the kind of label by which the page splits the traffic.

    ``labels_of_kind`` counts the labels of each kind. Without a valid choice, it is the first kind
    with several labels, else the first kind.
    """
    if chosen in labels_of_kind:
        return chosen
    for kind, labels in labels_of_kind.items():
        if labels > 1:
            return kind
    return next(iter(labels_of_kind), "all")


def amounts_figure(trace: Trace) -> Figure:
    """Draw the requests of a trace over time, or its tokens if it has no requests."""
    character = trace_character(trace)
    return next(iter(_rates(trace, character, "all").values()))


def chosen_options(options: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield label and value of each reading option that was given, and of each mapped column."""
    for name, offered in OFFERED.items():
        value = options.get(name)
        if value not in (None, "", False, AUTO):
            yield offered.label, str(offered.choices.get(value, value))
    for field, column in (options.get("mapping") or {}).items():
        yield f"Column of {field}", str(column)


def _facts(character: Character) -> Iterator[Fact]:
    """Yield amount, rate, peak hour and mean lengths of the traffic."""
    total, rhythm = character.total, character.rhythm
    requests = total.requests  # None or 0 if the trace has only tokens
    length, bin_length = duration(character.end_s - character.start_s), duration(character.bin_s)
    yield Fact("Requests", round(requests) if requests else requests, note=f"in {length}")
    unit = f"{character.unit.replace('_', ' ')}/s"
    yield Fact(f"Mean {unit}", total.mean, note=f"peak {digits(total.peak)} ({bin_length} mean)")
    if rhythm.peak_to_trough:
        ratio = f"{digits(rhythm.peak_to_trough)}x the quietest hour, {rhythm.trough_hour:02d}:00"
        zone = " (UTC)" if character.clock == UTC_CLOCK else ""
        yield Fact(f"Peak hour{zone}", f"{rhythm.peak_hour:02d}:00", note=ratio)
    for label, tokens in (
        ("Input tokens", total.input_tokens),
        ("Output tokens", total.output_tokens),
    ):
        if requests and tokens:
            note = f"per request, {compact(tokens)} in all"
            yield Fact(label, tokens / requests, note=note)


def _rates(trace: Trace, character: Character, by: str) -> dict[str, Figure]:
    """Draw the rates of requests and of tokens, split by ``by``; return the figures by field."""
    rates, total = trace_rates(trace, by), trace_rates(trace, "all")
    figures = {}
    for field in AMOUNTS:
        if field in rates.columns:
            unit = f"{field.replace('_', ' ')}/s"
            figures[field] = rate_figure(
                rates, total, field, unit=unit, clock=character.clock, lost=character.outages
            )
    return figures


def _week(character: Character) -> Figure | None:
    """Draw the weekly pattern; None if the trace does not cover all hours of the day."""
    if character.rhythm.peak_hour is None:
        return None
    return week_figure(
        character.rhythm.weekday_hour,
        unit=f"{character.unit.replace('_', ' ')}/s",
        clock=character.clock,
        start_s=character.start_s,
    )


def _lengths(character: Character, by: str, volumes: list[Volume]) -> dict[str, Figure]:
    """Draw the length distributions of the labels, with the colours of the other charts."""
    # The rank of a label, by which charts choose its colour.
    places = {volume.label: place for place, volume in enumerate(volumes)}
    # If there are more labels, other charts draw the smallest ones as one line, their sum. That has
    # no lengths, so only the labels before it are drawn here.
    drawn_labels = len(places) if len(places) <= MAX_CHART_LINES else MAX_CHART_LINES - 1
    if by == "all":  # draw all traffic even if its volume is not known
        drawn_labels = max(drawn_labels, 1)
    drawn = [
        lengths
        for lengths in character.lengths
        if lengths.by == by and lengths.quantiles and places.get(lengths.label, 0) < drawn_labels
    ]
    drawn.sort(key=lambda lengths: places.get(lengths.label, 0))
    charts = {}
    for field in ("input_tokens", "output_tokens"):
        lines = [lengths for lengths in drawn if lengths.field == field]
        if lines:
            charts[field] = lengths_figure(lines, character.levels, places)
    return charts


def _model_limits(report: Mapping[str, Any]) -> Iterator[str]:
    """Yield sentences on too long prompts, repeated prompts, and unknown models."""
    for excess in report.get("beyond_context", ())[:ROWS]:
        yield (
            f"{excess['requests']:,} requests are longer than the context of {excess['model']} "
            f"({excess['context']:,} tokens). The longest has {excess['longest']:,}."
        )
    repeated_share = report.get("repeated_blocks") or 0.0
    if repeated_share > 0:
        share = percent(repeated_share)
        yield f"{share} of prompts repeat earlier ones. Prefix caches can use that."
    unknown = report.get("unknown_models", ())
    if unknown:
        more = f" and {len(unknown) - 5} more" if len(unknown) > 5 else ""
        yield f"The catalogue lacks these models: {', '.join(unknown[:5])}{more}."


def _unusual_traits(character: Character) -> Iterator[str]:
    """Yield sentences on unusual traits of this traffic, most important first."""
    yield from character.days.words
    if character.outages_found:
        outages = character.outages_found
        noun = "outages" if outages > 1 else "outage"
        yield f"{outages:,} {noun}, shaded below. They are not counted as demand."
    if character.gaps:
        yield f"{character.gaps:,} bins are missing. They count as gaps, not zero."
    rhythm = character.rhythm
    day, week = rhythm.autocorrelation_day, rhythm.autocorrelation_week
    if day is not None:
        with_week = "" if week is None else f", with the previous week {week:.2f}"
        yield f"{repeats(day)}: correlation with the previous day {day:.2f}{with_week}."
    burstiness = bursts(character.burstiness)
    if burstiness:
        yield burstiness
    for unequal in character.imbalance:
        unit = character.unit.replace("_", " ").capitalize()
        yield f"{unit} by {unequal.by}: {_shares(character, unequal)}."
    yield from character.notes


def _shares(character: Character, unequal: Imbalance) -> str:
    """Return the share of each label, if they are few, else those of the largest and smallest.

    They are few if there are at most MOST_LABELS and all their shares are known.
    """
    known = [
        (volume.label, volume.share)
        for volume in character.volumes
        if volume.by == unequal.by and volume.share is not None
    ]
    if len(known) == unequal.labels <= MOST_LABELS:
        largest_first = sorted(known, key=lambda label_and_share: -label_and_share[1])
        return ", ".join(f"{label} {percent(share, 0)}" for label, share in largest_first)
    return (
        f"{unequal.labels:,} labels, from {unequal.most} {percent(unequal.most_share, 0)} "
        f"to {unequal.least} {percent(unequal.least_share, 0)}"
    )


def repeats(correlation: float) -> str:
    """Return how similar days are, in words, by the autocorrelation at a lag of one day."""
    return next(words for least, words in REPEATS if correlation >= least)


def bursts(scales: Sequence[Burstiness]) -> str:
    """Return in words how bursty arrivals are within ten minutes; "" if it is not known.

    Traffic may be bursty at the finest or at the coarsest of the time ``scales`` only.
    """
    known = [scale for scale in scales if scale.within_10_min is not None]
    if not known:
        return ""
    finest, coarsest = known[0], known[-1]
    stated = [finest] if _is_bursty(coarsest) == _is_bursty(finest) else [finest, coarsest]
    return f"Arrivals within ten minutes: {', '.join(map(_burstiness_words, stated))}."


def _is_bursty(scale: Burstiness) -> bool:
    """Return whether the variance of counts is at least ``BURSTY`` times that of Poisson."""
    return (scale.within_10_min or 0.0) >= BURSTY


def _burstiness_words(scale: Burstiness) -> str:
    """Return in words how bursty arrivals are at one time scale."""
    how = "bursty" if _is_bursty(scale) else "near Poisson"
    over, times = duration(scale.bin_s), digits(scale.within_10_min or 0.0)
    return f"{how} over {over} ({times} times the Poisson variance)"
