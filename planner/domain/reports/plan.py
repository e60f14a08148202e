"""Report a plan that was computed without a comparison of policies."""

from collections import Counter
from collections.abc import Iterator

from planner.domain.formats import duration, figure
from planner.domain.kinds.plan import PlanResult
from planner.domain.planning.figures import PlanFigures
from planner.domain.report import (
    Fact,
    Form,
    Head,
    Meaning,
    Report,
    Section,
    table_section,
)
from planner.domain.reports.frame import (
    assumptions_section,
    capacity_section,
    forecasts_section,
    notes_and_sources_section,
    profiles_section,
    trust_facts,
    window_title,
)
from planner.domain.reports.over_time import demand_chart, replicas_chart
from planner.domain.reports.plan_details import plan_sections
from planner.domain.reports.policies import span_text, time_text
from planner.domain.reports.schedule import Schedule, schedule_from, schedule_table
from planner.domain.reports.tables import Tables
from planner.domain.results.basis import CURRENT_FLEET
from planner.domain.results.recommended_policy import RecommendedPlan

THE_PLAN = ""  # key of the capacity and replicas of a plan that was not simulated


def report(result: PlanResult, tables: Tables) -> Report:
    """Return the report of ``plan``."""
    frame, plan, recommended = result.frame, result.plan, result.recommended
    schedule = schedule_from(recommended.timetable if recommended else None)
    shifted = plan.shift.hours if plan.shift else ()
    over_time, load = demand_chart(tables, frame, THE_PLAN, "plan", None, shifted)
    charts = (over_time, replicas_chart(tables, frame, THE_PLAN))
    warnings = [*frame.warnings, *(plan.conflicts or ())]
    if load is not None and load.hours_short:
        short = duration(3600 * load.hours_short)
        warnings.append(f"Demand exceeds {load.capacity_words} for {short}.")
    replicas = _replicas_text(schedule, plan)
    answer = "The plan has no replicas."
    if replicas:
        answer = f"Run {replicas} {'replica' if replicas == '1' else 'replicas'}."
    tested = Fact("Test days", "not simulated", meaning=Meaning.RISK)
    return Report(
        title=frame.scenario,
        answer=answer,
        about=window_title(frame.window).removeprefix("Backtest, "),
        why="" if recommended is None else recommended.sentence,
        facts=tuple(_deciding_facts(result, replicas)),
        warnings=tuple(warnings),
        sections=tuple(_sections(result, schedule)),
        clock=frame.window.clock,
        charts=tuple(chart for chart in charts if chart is not None),
        trust=(tested, *trust_facts(frame, speed_tested=False)),
    )


def _replicas_text(schedule: Schedule | None, plan: PlanFigures) -> str:
    """Return the fewest and the most replicas, such as "4 to 7"; "" if the plan has none.

    They are those of the schedule or, without one, those of the plan's periods.
    """
    if schedule is not None and schedule.span is not None:
        return span_text(schedule.span)
    by_period: Counter[object] = Counter()
    for row in plan.decisions:
        by_period[row.period] += row.target
    totals = by_period.values()
    return span_text((min(totals), max(totals))) if totals else ""


def _deciding_facts(result: PlanResult, replicas: str) -> Iterator[Fact]:
    """Yield the figures that decide: replicas, cost, SLO attainment, energy and risk.

    ``replicas`` are their number as text; "": the plan has none.
    """
    per_window = time_text(result.frame.window.end - result.frame.window.start)
    if replicas:
        decisions = result.plan.decisions
        # The first period begins with the current fleet.
        first_period = min((row.period for row in decisions), default=None)
        current = sum(row.current for row in decisions if row.period == first_period)
        # A fleet that the scenario does not state is only assumed.
        stated = all(fact.what != CURRENT_FLEET for fact in result.frame.provenance)
        change = f"current: {current:,}" if current and stated else ""
        # A comparison would add test days.
        verified = result.verification is not None
        sized_for = "to meet the SLO on earlier windows" if verified else "for the forecast"
        yield Fact("Replicas", replicas, change=change, note=f"sized {sized_for}")
    totals = result.plan.totals
    if totals is not None:
        note = f"{figure(totals.gpu_hours)} GPU-hours{'' if result.plan.spare else ', no spares'}"
        yield Fact(f"Planned cost {per_window}", totals.usd, "$", note=note)
    yield _attainment_fact(result.recommended)
    if totals is not None:
        note = f"at rated load, {figure(totals.carbon_kg)} kg CO2e"
        yield Fact(f"Planned energy {per_window}", totals.kwh, "kWh", note=note)
    spare = result.plan.spare
    if spare is None:
        yield Fact("Redundancy", "Not N+1", note="no spare replicas", meaning=Meaning.RISK)
        return
    price = "" if spare.usd is None else f"spare replicas cost {figure(spare.usd, '$')}"
    survives = "N+1" if spare.instances else "Region loss"
    yield Fact("Redundancy", survives, note=price, meaning=Meaning.MET)


def _attainment_fact(recommended: RecommendedPlan | None) -> Fact:
    """Return the lowest SLO attainment of a tier, or that the plan was not simulated (None)."""
    attainment = recommended.attainment if recommended else None
    known = {tier: share for tier, share in (attainment or {}).items() if share is not None}
    if recommended is None or not known:
        return Fact("SLO attainment", "Not simulated", meaning=Meaning.RISK)
    tier = min(known, key=lambda tier: known[tier])
    meanings = {True: Meaning.MET, False: Meaning.MISSED, None: Meaning.NEUTRAL}
    meaning = meanings[recommended.meets_slo]
    return Fact(f"SLO attainment, {tier}", known[tier], form=Form.SHARE, meaning=meaning)


def _sections(result: PlanResult, schedule: Schedule | None) -> Iterator[Section]:
    """Yield the sections in the order in which a reader decides."""
    if schedule is not None:
        rows = schedule_table(schedule, result.frame.window)
        yield Section("Replica schedule", (rows,), "Schedule")
    if result.verification is not None:
        yield from table_section(
            "Simulation of the plan",
            result.verification.judged,
            (Head("Tier", width=2), lambda row: row.tier),
            (Head("Target", Form.SHARE), lambda row: row.target),
            (Head("SLO attainment", Form.SHARE), lambda row: row.attainment),
            name="Verification",
            note=result.verification.sentence,
        )
    yield from table_section(
        "Prefill and decode",
        [row for row in result.pd_ratios if row.best is not None],
        (Head("Model", width=2), lambda row: row.model),
        (Head("Prefill on", width=2), lambda row: row.prefill_on.removesuffix(", prefill")),
        (Head("Decode on", width=2), lambda row: row.decode_on.removesuffix(", decode")),
        (Head("Replicas", Form.COUNT), lambda row: row.instances),
        (Head("Best ratio"), lambda row: row.best.figures.name if row.best else ""),
        name="Ratio",
        note="The best split of the replicas that the largest region has at its peak.",
    )
    yield from assumptions_section(result.frame)
    yield from forecasts_section(result.forecast)
    yield from profiles_section(result.profile_error)
    yield from plan_sections(result.plan)
    yield from capacity_section(result.frame)
    yield from notes_and_sources_section(result.frame)
