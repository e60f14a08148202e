"""Report a forecast: of the window of a scenario, or of what follows a trace."""

from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from typing import Any, cast

import polars as pl

from forecasting.method_choice import MARGIN
from planner.domain.formats import compact, percent, zone_name
from planner.domain.kinds.forecast import ForecastResult
from planner.domain.report import (
    Axis,
    Chart,
    Fact,
    Form,
    Group,
    Head,
    Meaning,
    Note,
    Report,
    Role,
    Section,
    Series,
    Shape,
    Table,
    table,
    table_section,
    without_constants,
)
from planner.domain.reports.frame import window_text
from planner.domain.reports.over_time import band_label, thin
from planner.domain.reports.tables import Tables
from planner.domain.traffic.groups import tier_label
from planner.domain.traffic.past_forecasts import NaiveComparison

Rows = Sequence[Mapping[str, Any]]
ERROR = "Error (WAPE)"
WELL_COVERED = 0.7  # least share of bins in the 80% band of a forecast that can be planned on
MOST_BY_HOUR = timedelta(days=2)  # longest forecast that is shown by hour, else by day
VALUES = ("actual", "mean", "p10", "p90")


def report(result: ForecastResult, tables: Tables) -> Report:
    """Return the report of ``forecast``: of a scenario's window, or of a trace without a window.

    The series of a trace may have several units, such as requests and tokens.
    """
    rows = cast(Rows, result.series)
    window = result.window
    clock = window.clock if window else "utc"
    ahead = tables("forecast") if window else pl.DataFrame()
    facts = tuple(_facts(rows, ahead))
    answer = _answer(facts, result.compared)
    answer = answer or result.headline or f"Forecast of {len(rows):,} series."
    sections = [Section("Forecast of each series", (_series(rows),), "Series")]
    # Without actual demand, the expected peak is the answer instead of past errors.
    is_in_future = not ahead.is_empty() and ahead["actual"].null_count() == len(ahead)
    if is_in_future:
        total = _summed(ahead)
        facts = (_peak(total),)
        answer = f"Expect a peak of {facts[0].text}."
        over_time = _over_time(total, clock)
        sections.append(Section("Forecast over time", (over_time,), printed=True))
    sections += [*_planned_for(result), *_methods_section(result)]
    if result.notes:
        notes = tuple(Note(note) for note in result.notes)
        sections.append(Section("Notes", notes, group=Group.BASIS))
    return Report(
        title=result.scenario or "Forecast",
        answer=answer,
        about=window_text(window) if window else "After the trace",
        facts=facts,
        sections=tuple(sections),
        clock=clock,
        charts=tuple(_charts(result, tables)),
    )


def _peak(total: pl.DataFrame) -> Fact:
    """Return the peak of the forecast of a window ahead, as summed over its series."""
    peak = total.row(int(total["mean"].arg_max() or 0), named=True)
    band = f"{compact(peak['p10'])} to {compact(peak['p90'])}"
    return Fact(
        "Forecast peak", peak["mean"], "input tokens/s",
        note=f"P10 to P90: {band} · for errors, set horizon.start to a past day",
    )  # fmt: skip


def _over_time(total: pl.DataFrame, clock: str) -> Table:
    """Return a table of the forecast demand: means of hours, or of days in a long window."""
    zone = zone_name() if clock == "utc" else "trace time"
    length = total["time"][-1] - total["time"][0]
    step, word = ("1h", "hour") if length <= MOST_BY_HOUR else ("1d", "day")
    means = total.group_by_dynamic("time", every=step).agg(pl.col(*VALUES).mean())
    return table(
        means.iter_rows(named=True),
        (Head(f"From ({zone})", Form.MOMENT), lambda row: row["time"]),
        (Head("Forecast", Form.NUMBER, "input tokens/s"), lambda row: row["mean"]),
        (Head("P10", Form.NUMBER, "input tokens/s"), lambda row: row["p10"]),
        (Head("P90", Form.NUMBER, "input tokens/s"), lambda row: row["p90"]),
        note=f"Mean of each {word}.",
    )


def _facts(rows: Rows, ahead: pl.DataFrame) -> Iterator[Fact]:
    """Yield the errors (WAPE, peak WAPE) and the coverage of past forecasts, of the worst series.

    ``rows`` are the series. ``ahead`` is the table of the forecast; if it has the actual demand of
    several series, the WAPE is over all of them, with that of the worst as a note.
    """
    errors = _known(rows, "wape")
    if errors:
        worst = _worst(len(errors))
        overall = _overall_error(ahead)
        if overall is None or len(errors) == 1:
            yield Fact(ERROR, max(errors), form=Form.SHARE, note=worst)
        else:
            note = f"{worst}: {percent(max(errors))}"
            yield Fact(ERROR, overall, form=Form.SHARE, note=note)
    peak_errors = _known(rows, "peak_wape")
    if peak_errors:
        worst = _worst(len(peak_errors))
        yield Fact("Error at peaks (peak WAPE)", max(peak_errors), form=Form.SHARE, note=worst)
    covered = _known(rows, "coverage80")
    if covered:
        least = min(covered)
        meaning = Meaning.MET if least >= WELL_COVERED else Meaning.RISK
        note = f"target: at least {percent(WELL_COVERED, 0)}"
        if len(covered) > 1:
            note = f"{_worst(len(covered))} · {note}"
        label = "Demand within the 80% band"
        yield Fact(label, least, form=Form.SHARE, note=note, meaning=meaning)


def _known(rows: Rows, name: str) -> list[float]:
    """Return the figure ``name`` of the series that have it."""
    return [row[name] for row in rows if row.get(name) is not None]


def _answer(facts: Sequence[Fact], compared: NaiveComparison | None) -> str:
    """Return whether to plan on the forecast, its error, and how a naive forecast compares.

    ``facts`` are those of ``_facts``; the last is the coverage of the 80% band. Return "" if that
    is not known.
    """
    if not facts or facts[-1].meaning is Meaning.NEUTRAL:
        return ""
    error = f"error {facts[0].text}" if facts[0].label == ERROR else ""
    if facts[-1].meaning is Meaning.RISK:
        return (
            f"Do not plan on this forecast{error and f' ({error})'}. "
            "Its 80% band is too narrow. Add growth margin."
        )
    if compared is not None and compared.is_worse:
        return f"Plan on {compared.naive_words} instead. This forecast has {error}."
    known = ", ".join(filter(None, (error, compared.standing if compared else "")))
    return f"Plan on this forecast{known and f': {known}'}."


def _overall_error(ahead: pl.DataFrame) -> float | None:
    """Return the WAPE over all series of the forecast's table; None without actual demand.

    Only bins with a forecast and actual demand count.
    """
    if not {"actual", "mean"} <= set(ahead.columns):
        return None
    known = ahead.filter(pl.col("actual").is_finite(), pl.col("mean").is_finite())
    demand = float(known["actual"].sum())
    total_error = float((known["actual"] - known["mean"]).abs().sum())
    return total_error / demand if demand else None


def _worst(series: int) -> str:
    """Return the note "worst of n series" at a figure; "" for one series."""
    return "" if series == 1 else f"worst of {series:,} series"


def _charts(result: ForecastResult, tables: Tables) -> Iterator[Chart]:
    """Yield a chart of demand and forecast in input tokens/s over the window.

    Then yield a chart per unit of the table "series".
    """
    ahead, window = tables("forecast"), result.window
    if window is not None and not ahead.is_empty():
        yield _chart("Demand and forecast", "input tokens/s", ahead)
    series = tables("series")
    if series.is_empty():
        return
    for unit in series["unit"].unique(maintain_order=True):
        name = str(unit).replace("_", " ")
        rows = series.filter(pl.col("unit") == unit)
        yield _chart(f"{name.capitalize()} and forecast", f"{name} per bin", rows)


def _chart(title: str, unit: str, rows: pl.DataFrame) -> Chart:
    """Return a chart of demand and forecast, summed over all series of ``rows``."""
    total = thin(_summed(rows), *VALUES)
    times = tuple(total["time"])
    band = Series(
        band_label(rows), times, tuple(total["p90"]), Role.FORECAST, Shape.BAND,
        tuple(total["p10"]),
    )  # fmt: skip
    lines = [band, Series("Forecast", times, tuple(total["mean"]), Role.RECOMMENDED)]
    if total["actual"].null_count() < total.height:  # demand in the future is unknown
        lines.append(Series("Demand", times, tuple(total["actual"]), Role.DEMAND))
    return Chart(title, Axis(), Axis(unit=unit), tuple(lines))


def _summed(rows: pl.DataFrame) -> pl.DataFrame:
    """Return the sums over all series by time; null where the value of one series is unknown."""
    sums = [
        pl.when(pl.col(name).null_count() == 0).then(pl.col(name).sum()).otherwise(None).alias(name)
        for name in VALUES
    ]
    return rows.group_by("time").agg(sums).sort("time")


def _drift(row: Mapping[str, Any]) -> str:
    """Return a sentence if the forecast of a series has become worse, else ""."""
    drift = row.get("drift") or {}
    return str(drift.get("sentence") or "") if drift.get("flagged") else ""


def _series(rows: Rows) -> Table:
    """Return a table of all series with the errors of past forecasts.

    What all series share is in its note.
    """
    tiers = [row["tier"] for row in rows]
    has_errors = any(row.get("wape") is not None for row in rows)
    series = table(
        rows,
        (Head("Model", width=2), lambda row: row["model"]),
        (Head("Region", width=2), lambda row: row["region"]),
        (Head("Tier", width=2), lambda row: tier_label(row["tier"], tiers)),
        (Head("Unit"), lambda row: (row.get("unit") or "").replace("_", " ")),
        (Head("Forecaster", width=2), lambda row: row["method"].replace("-", " ")),
        (Head("WAPE", Form.SHARE), lambda row: row.get("wape")),
        (Head("Peak WAPE", Form.SHARE), lambda row: row.get("peak_wape")),
        (Head("Within the 80% band", Form.SHARE), lambda row: row.get("coverage80")),
        (Head("Peak", Form.NUMBER, "per bin"), lambda row: row.get("peak")),
        (Head("Peak, P90", Form.NUMBER, "per bin"), lambda row: row.get("peak_p90")),
        (Head("Drift", width=2), _drift),
        (Head("Why", width=3), lambda row: row.get("reason")),
        (Head("Warning", width=3), lambda row: row.get("note")),
        (Head("Bins left out", width=3), lambda row: row.get("cleaned")),
        note="Errors of past forecasts." if has_errors else "",
    )
    return without_constants(series, lambda head: head.text in ("Tier", "Unit", "Forecaster"))


def _methods_section(result: ForecastResult) -> Iterator[Section]:
    """Yield the section on the methods that the method "auto" compared, if it was used."""
    yield from table_section(
        "Methods compared",
        result.methods or (),
        (Head("Model"), lambda row: row.model),
        (Head("Region"), lambda row: row.region),
        (Head("Tier"), lambda row: row.tier),
        (Head("Unit"), lambda row: row.unit.replace("_", " ")),
        (Head("Method", width=2), lambda row: row.method.replace("-", " ")),
        (Head("Chosen"), lambda row: "yes" if row.chosen else ""),
        (Head("Peak error", Form.SHARE), lambda row: row.error),
        (Head("Error ÷ error of the chosen method", Form.NUMBER), lambda row: row.over_chosen),
        (Head("Ensemble weight, start of the horizon", Form.SHARE), lambda row: row.share),
        (Head("Ensemble weight, end of the horizon", Form.SHARE), lambda row: row.end_share),
        name="Methods",
        group=Group.BASIS,
        note="Peak error: error at past peaks ÷ mean demand. A method replaces the ensemble only "
        f"if its peak error is {percent(MARGIN, 0)} lower.",
    )


def _planned_for(result: ForecastResult) -> Iterator[Section]:
    """Yield the section on the forecast percentile that the plan is for, by tier, if known."""
    quantiles = result.forecast.quantile if result.forecast else ()
    tiers = [row.tier for row in quantiles]
    yield from table_section(
        "Planned percentile",
        quantiles,
        (Head("Tiers"), lambda row: tier_label(row.tier, tiers)),
        (Head("Forecast percentile"),
         lambda row: "mean" if row.quantile is None else f"P{100 * row.quantile:.3g}"),
        (Head("Factor", Form.NUMBER), lambda row: row.times),
        (Head("Why", width=4), lambda row: row.why),
        name="Percentile",
        group=Group.BASIS,
    )  # fmt: skip
