"""Report the basis that plans, backtests and outlooks share: window, inputs, errors and sources."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from functools import partial
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
    table_section,
)
from planner.domain.results.assumptions import ASSUMED, MODELLED, Assumption
from planner.domain.results.basis import Forecasts, Frame, SizedReplica, WindowFacts
from planner.domain.traffic.groups import tier_label
from planner.domain.traffic.traffic import FORECAST
from planner.domain.verification.profile_error import ProfileError

INDEX = re.compile(r"\[\d+\]")  # in a key such as traffic.sources[0].tiers


def window_text(window: WindowFacts) -> str:
    """Return the begin and the end of the window, with the time zone if it has calendar dates."""
    begins = when(window.start, window.clock, zoned=False)
    times = f"{begins} to {when(window.end, window.clock, zoned=False)}"
    return f"{times} {zone_name()}" if window.clock == "utc" else times


def window_title(window: WindowFacts) -> str:
    """Return whether a window is a backtest or a forecast, with its day or times.

    It also says if the window has no demand.
    """
    kind = "Forecast" if window.replay == FORECAST else "Backtest"
    start, whole_day = local(window.start), window.end - window.start == timedelta(days=1)
    if whole_day and window.clock == "utc" and start.hour == start.minute == 0:
        parts = [f"{kind}, {start.day} {start:%b %Y}"]
    else:
        parts = [f"{kind}, {window_text(window)}".removesuffix(f" {zone_name()}")]
    if window.rank is not None and not window.rank.amount and window.rank.rank is not None:
        parts.append("no demand")
    if window.clock == "utc":
        parts.append(zone_name())
    return " · ".join(parts)


def basis_sections(frame: Frame, notes: Sequence[str] = ()) -> tuple[Section, ...]:
    """Return the sections of assumptions, notes and sources; ``notes`` come first."""
    return (*assumptions_section(frame, Group.BASIS), *notes_and_sources_section(frame, notes))


def notes_and_sources_section(frame: Frame, notes: Sequence[str] = ()) -> tuple[Section, ...]:
    """Return the section of notes, and of sources that are not among the assumptions."""
    stated = {row.what for row in frame.assumptions}
    sources = [source for source in frame.provenance if source.what not in stated]
    return sources_section(sources, (*notes, *frame.notes))


def trust_facts(frame: Frame, *, speed_tested: bool) -> Iterator[Fact]:
    """Yield how sure the inputs are: the speed of replicas, and the number of assumed inputs.

    ``speed_tested``: the plan also meets the SLO on replicas that are slower by their error.
    """
    provenances = {replica.provenance for replica in frame.capacity}
    if provenances and frame.speed_error is not None:
        kind = provenances.pop() if len(provenances) == 1 else MODELLED
        error = f"±{percent(frame.speed_error, 0)}"
        note, meaning = ("", Meaning.NEUTRAL) if speed_tested else ("untested", Meaning.RISK)
        label = f"{kind.capitalize()} speed"
        yield Fact(label, error, note=note, meaning=meaning, link="profiles")
    if frame.assumptions:
        rows = list(_merge_similar(frame.assumptions))
        assumed = sum(row.provenance == ASSUMED for row in rows)
        yield Fact("Assumed inputs", f"{assumed:,}", link="assumptions")


def _pool_capacity(size: int, row: SizedReplica) -> float | None:
    """Return the capacity of a pool of ``size`` replicas in tokens/s; None if it is not known."""
    return row.pool_tps[size - 1] if len(row.pool_tps or ()) >= size else None


def assumptions_section(frame: Frame, group: Group | None = None) -> Iterator[Section]:
    """Return the section of inputs, if there are any.

    Those with the largest effect come first. Of equal ones, the assumed come before the others.
    """
    rows = list(_merge_similar(frame.assumptions))
    assumed = sum(row.provenance == ASSUMED for row in rows)
    rows.sort(key=lambda row: (-_effect(row), not row.matters, row.provenance != ASSUMED))
    return table_section(
        f"Assumed inputs: {assumed} of {len(rows)}",
        rows,
        (Head("Input", width=2), lambda row: row.what),
        (Head("Effect", width=2), lambda row: row.matters),
        (Head("Value", width=3), lambda row: row.value),
        (Head("Provenance"), lambda row: row.provenance),
        (Head("Source", width=3), lambda row: row.source),
        name="Assumptions",
        group=group,
        note="Inputs of this run. Other analyses of the scenario may have more or fewer.",
    )


def _merge_similar(assumptions: Sequence[Assumption]) -> Iterator[Assumption]:
    """Yield the assumptions, with similar ones merged into one row.

    Similar assumptions differ only in their value, or only in the index of their source or tier in
    the scenario. Of those, the one with the largest effect is kept.
    """
    # First merge rows that differ only in their value, then the result by index.
    same_but_value: dict[tuple[str, ...], list[Assumption]] = {}
    for row in assumptions:
        same_but_value.setdefault((row.what, row.provenance, row.source, row.key), []).append(row)
    same_but_index: dict[tuple[str, ...], list[Assumption]] = {}
    for rows in same_but_value.values():
        row, others = max(rows, key=_effect), len(rows) - 1
        if others:
            noun = " series" if "sources" in row.key else ""
            row = replace(row, value=f"{rows[0].value} (and {others} more{noun})")
        # Keys such as tiers[2]: rows with an index in the key may also differ in ``what``.
        key = INDEX.sub("[]", row.key)
        what = row.what if key == row.key else ""
        same_group = what, row.value, row.provenance, row.source, key
        same_but_index.setdefault(same_group, []).append(row)
    for rows in same_but_index.values():
        row = max(rows, key=_effect)
        if len(rows) > 1:
            row = replace(row, what=f"{rows[0].what} (and {len(rows) - 1} more)")
        yield row


def _effect(row: Assumption) -> float:
    """Return the effect of an input on the plan; 0 if it is not known."""
    return row.effect or 0.0


def forecasts_section(forecasts: Forecasts | None) -> Iterator[Section]:
    """Yield the section on the errors of past forecasts; nothing without forecasts (None)."""
    series = cast(Sequence[Mapping[str, Any]], forecasts.series if forecasts else ())
    tiers = [row["tier"] for row in series]
    yield from table_section(
        "Forecast errors",
        series,
        (Head("Model", width=2), lambda row: row["model"]),
        (Head("Region", width=2), lambda row: row["region"]),
        (Head("Tier", width=2), lambda row: tier_label(row["tier"], tiers)),
        (Head("Forecaster", width=2), lambda row: row["method"].replace("-", " ")),
        (Head("WAPE", Form.SHARE), lambda row: row["wape"]),
        (Head("Peak WAPE", Form.SHARE), lambda row: row["peak_wape"]),
        (Head("Coverage of the 80% band", Form.SHARE), lambda row: row["coverage80"]),
        name="Forecast",
        group=Group.BASIS,
        note="WAPE of past forecasts (summed error as a share of demand), and how often demand was "
        "within the band.",
    )


def profiles_section(errors: Sequence[ProfileError]) -> Iterator[Section]:
    """Yield the section on the errors of profiles, if there are any.

    It also has the replicas needed if the replicas are slower or faster by that error.
    """
    note = (
        "Replicas at the forecast peak, also for a profile that is slower or faster by its error. "
        "Computed by formulas, not simulated."
    )
    yield from table_section(
        "Profile errors",
        errors,
        (Head("Model", width=2), lambda row: row.model),
        (Head("GPUs", width=2), lambda row: row.arrangement or f"{row.tp} x {row.gpu}"),
        (Head("Error", Form.SHARE), lambda row: row.error),
        (Head("Basis", width=3), lambda row: row.basis),
        (Head("Replicas", Form.COUNT), lambda row: row.replicas),
        (Head("Replicas if profile slower", Form.COUNT), lambda row: row.replicas_if_slower),
        (Head("Replicas if profile faster", Form.COUNT), lambda row: row.replicas_if_faster),
        name="Profiles",
        group=Group.BASIS,
        note=" ".join((note, *dict.fromkeys(row.note for row in errors if row.note))),
    )


def capacity_section(frame: Frame) -> Iterator[Section]:
    """Yield the section on the capacity of a replica within the SLO, if it is known."""
    yield from table_section(
        "Replica capacity",
        frame.capacity,
        (Head("Model", width=2), lambda row: row.replica.model),
        (Head("GPUs", width=2), lambda row: row.replica.arrangement),
        (Head("Capacity", Form.NUMBER, "req/s"), lambda row: row.max_rps),
        (Head("Capacity", Form.NUMBER, "input tokens/s"), lambda row: row.input_tps),
        (Head("Limited by"), lambda row: limit_name(row.bound_by)),
        (Head("Tier"), lambda row: row.tier),
        *(
            (Head(f"Pool of {size}", Form.NUMBER, "input tokens/s"), partial(_pool_capacity, size))
            for size in (8, 64)
        ),
        name="Capacity",
        group=Group.PLAN,
        note="Load that a pool of 1, 8 or 64 replicas sustains within the SLO.",
    )
