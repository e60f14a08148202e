"""Report the basis that plans, backtests and outlooks share: window, inputs, errors and sources."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any, cast

from planner.domain.formats import local, percent, when, zone_name
from planner.domain.report import (
    Fact,
    Form,
    Group,
    Head,
    Meaning,
    Section,
    limit_name,
    sources_section,
    table,
)
from planner.domain.results.assumptions import ASSUMED, MODELLED, Assumption
from planner.domain.results.basis import Forecasts, Frame, WindowFacts
from planner.domain.traffic.groups import tier_label
from planner.domain.traffic.traffic import FORECAST
from planner.domain.verification.profile_error import ProfileError

NUMBER = re.compile(r"\[\d+\]")  # of a row in a key such as traffic.sources[0].tiers
ERRORS_NOTE = (
    "How far past forecasts were off: the summed error as a share of the demand, and how often "
    "demand was within the band."
)


def window_text(window: WindowFacts) -> str:
    """Return the begin and the end of the window."""
    begins, ends = (when(each, window.clock, zoned=False) for each in (window.start, window.end))
    return f"{begins} to {ends} {zone_name()}" if window.clock == "utc" else f"{begins} to {ends}"


def window_title(window: WindowFacts) -> str:
    """Return what the window is: a backtest or a forecast, its day, and whether it has demand."""
    kind = "Forecast" if window.replay == FORECAST else "Backtest"
    start, whole_day = local(window.start), window.end - window.start == timedelta(days=1)
    if whole_day and window.clock == "utc" and start.hour == start.minute == 0:
        parts = [f"{kind}, {start.day} {start:%b %Y}"]
    else:
        parts = [f"{kind}, {window_text(window)}".removesuffix(f" {zone_name()}")]
    if window.rank is not None and not window.rank.amount and window.rank.rank is not None:
        parts.append("no demand")
    return " · ".join([*parts, zone_name()] if window.clock == "utc" else parts)


def basis_sections(frame: Frame, notes: Sequence[str] = ()) -> tuple[Section, ...]:
    """Return the sections of inputs and sources."""
    return (*assumptions_section(frame, Group.BASIS), *notes_and_sources_section(frame, notes))


def notes_and_sources_section(frame: Frame, notes: Sequence[str] = ()) -> tuple[Section, ...]:
    """Return the section of notes, and of the sources that the assumptions do not state."""
    stated = {row.what for row in frame.assumptions}
    sources = [source for source in frame.provenance if source.what not in stated]
    return sources_section(sources, (*notes, *frame.notes))


def trust_facts(frame: Frame, *, speed_tested: bool) -> Iterator[Fact]:
    """Yield how sure a result is of its inputs: the speed of replicas, and what is assumed.

    ``speed_tested`` tells whether the plan meets the SLO on replicas that are slower by it.
    """
    if kinds := {replica.provenance for replica in frame.capacity}:
        kind = kinds.pop() if len(kinds) == 1 else MODELLED
        error = (
            "error unknown" if frame.speed_error is None else f"±{percent(frame.speed_error, 0)}"
        )
        note, meaning = ("", Meaning.NEUTRAL) if speed_tested else ("untested", Meaning.RISK)
        label = f"{kind.capitalize()} speed"
        yield Fact(label, error, note=note, meaning=meaning, link="profiles")
    if frame.assumptions:
        rows = list(_merge_similar(frame.assumptions))
        assumed = sum(row.provenance == ASSUMED for row in rows)
        yield Fact("Assumed inputs", f"{assumed} of {len(rows)}", link="assumptions")


def assumptions_section(frame: Frame, group: Group | None = None) -> tuple[Section, ...]:
    """Return the section of inputs: those with the largest effect first, then the assumed ones."""
    if not frame.assumptions:
        return ()
    rows = list(_merge_similar(frame.assumptions))
    assumed = sum(row.provenance == ASSUMED for row in rows)
    ordered = sorted(
        rows,
        key=lambda row: (-(row.effect or 0.0), row.provenance != ASSUMED),
    )
    inputs = table(
        ordered,
        (Head("Input", wide=2), lambda row: row.what),
        (Head("Effect", wide=2), lambda row: row.matters),
        (Head("Value", wide=3), lambda row: row.value),
        (Head("Provenance"), lambda row: row.provenance),
        (Head("Source", wide=3), lambda row: row.source),
        note="Inputs of this analysis. Another one of the scenario may have more or fewer.",
    )
    title = f"Assumptions: {assumed} of {len(rows)} inputs"
    return (Section(title, (inputs,), "Assumptions", group),)


def _merge_similar(assumptions: Sequence[Assumption]) -> Iterator[Assumption]:
    """Yield the assumptions, with similar ones merged into one row.

    Similar assumptions differ only in their value, or only in the number of their source or tier.
    """
    same_but_value: dict[tuple[str, ...], list[Assumption]] = {}
    for row in assumptions:
        same_but_value.setdefault((row.what, row.provenance, row.source, row.key), []).append(row)
    same_but_number: dict[tuple[str, ...], list[Assumption]] = {}
    for first, *others in same_but_value.values():
        row = max((first, *others), key=lambda each: each.effect or 0.0)
        if others:
            more = f"{len(others)} other series" if "sources" in row.key else f"{len(others)} more"
            row = replace(row, value=f"{first.value}, and {more}")
        # Keys such as tiers[2]: rows with a number in the key may also differ in ``what``.
        key = NUMBER.sub("[]", row.key)
        what = row.what if key == row.key else ""
        group = what, row.value, row.provenance, row.source, key
        same_but_number.setdefault(group, []).append(row)
    for rows in same_but_number.values():
        row = max(rows, key=lambda each: each.effect or 0.0)
        if len(rows) > 1:
            row = replace(row, what=f"{rows[0].what} (and {len(rows) - 1} more)")
        yield row


def forecasts_section(forecasts: Forecasts | None) -> Iterator[Section]:
    """Yield the section of forecast errors, if there are forecasts (not None)."""
    series = cast(Sequence[Mapping[str, Any]], forecasts.series if forecasts else ())
    if not series:
        return
    tiers = [row["tier"] for row in series]
    errors = table(
        series,
        (Head("Model", wide=2), lambda row: row["model"]),
        (Head("Region", wide=2), lambda row: row["region"]),
        (Head("Tier", wide=2), lambda row: tier_label(row["tier"], tiers)),
        (Head("Forecaster", wide=2), lambda row: row["method"].replace("-", " ")),
        (Head("WAPE", Form.SHARE), lambda row: row["wape"]),
        (Head("Peak WAPE", Form.SHARE), lambda row: row["peak_wape"]),
        (Head("Coverage of the 80% band", Form.SHARE), lambda row: row["coverage80"]),
        note=ERRORS_NOTE,
    )
    yield Section("Forecast errors", (errors,), "Forecast", group=Group.BASIS)


def profiles_section(errors: Sequence[ProfileError]) -> Iterator[Section]:
    """Yield the section of profile errors, with the replicas needed if profiles are off by them."""
    if not errors:
        return
    rows = table(
        errors,
        (Head("Model", wide=2), lambda row: row.model),
        (Head("GPUs", wide=2), lambda row: row.arrangement or f"{row.tp} x {row.gpu}"),
        (Head("Error", Form.SHARE), lambda row: row.error),
        (Head("Basis", wide=3), lambda row: row.basis),
        (Head("Replicas", Form.COUNT), lambda row: row.replicas),
        (Head("If slower", Form.COUNT), lambda row: row.replicas_if_slower),
        (Head("If faster", Form.COUNT), lambda row: row.replicas_if_faster),
        note=" ".join(
            (
                "Replicas at the peak of the forecast. If slower, if faster: with profiles that "
                "are off by their error, by formulas without a simulation.",
                *dict.fromkeys(row.note for row in errors if row.note),
            )
        ),
    )
    yield Section("Profile errors", (rows,), "Profiles", group=Group.BASIS)


def capacity_section(frame: Frame) -> Iterator[Section]:
    """Yield the section on the capacity of a replica within the SLO."""
    if not frame.capacity:
        return
    rows = table(
        frame.capacity,
        (Head("Model", wide=2), lambda row: row.replica.model),
        (Head("GPUs", wide=2), lambda row: row.replica.arrangement),
        (Head("Capacity", Form.NUMBER, "req/s"), lambda row: row.max_rps),
        (Head("Capacity", Form.NUMBER, "input tokens/s"), lambda row: row.input_tps),
        (Head("Limited by"), lambda row: limit_name(row.bound_by)),
        (Head("Tier"), lambda row: row.tier),
        (Head("Pool of 8", Form.NUMBER, "input tokens/s"), lambda row: _pool(row.pool_tps, 8)),
        (Head("Pool of 64", Form.NUMBER, "input tokens/s"), lambda row: _pool(row.pool_tps, 64)),
        note="What one replica alone, and pools of replicas, sustain within the SLO. Larger pools "
        "sustain more per replica.",
    )
    yield Section("Replica capacity", (rows,), "Capacity", group=Group.PLAN)


def _pool(joint_tps: Sequence[float], size: int) -> float | None:
    """Return the capacity of a pool of ``size`` replicas in tokens/s; None if it is not known.

    ``joint_tps`` has the capacity of pools of 1, 2, ... replicas.
    """
    return joint_tps[size - 1] if len(joint_tps or ()) >= size else None
