"""Report a comparison: the recommended plan, its alternatives, and what both rest on."""

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, NamedTuple, cast

import polars as pl

from planner.domain.formats import counted, duration, figure, key_words, percent, signed_percent
from planner.domain.kinds.compare import CompareResult
from planner.domain.report import (
    Alternative,
    Fact,
    Facts,
    Form,
    Group,
    Head,
    Meaning,
    Report,
    Section,
    Table,
    TableColumns,
    key_columns,
    table,
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
from planner.domain.reports.modules import modules_section
from planner.domain.reports.over_time import Load, demand_chart, replicas_chart, replicas_of
from planner.domain.reports.plan_details import plan_sections
from planner.domain.reports.policies import (
    LOST_REPLICA,
    NO_SAVING,
    Outcome,
    ReplicaLoss,
    Row,
    Span,
    cost_chart,
    guard_text,
    parameters_section,
    policies_table,
    replica_loss,
    saving_change,
    simulation_section,
    span_text,
    tightest_tier,
    time_text,
)
from planner.domain.reports.schedule import (
    Schedule,
    schedule_from,
    schedule_of,
    schedule_table,
)
from planner.domain.reports.tables import Tables
from planner.domain.results.assurance import AssuranceFigures, PolicyOnDay, TestDayFigures
from planner.domain.results.basis import Frame
from planner.domain.results.equal_attainment_savings import EqualSlo
from planner.domain.results.ranking import PolicyComparison
from planner.domain.serialise import from_json
from planner.inputs.scenario.schema.test_days import LEVELS
from planner.policies.base import TODAY
from planner.policies.base import Group as PolicyGroup
from planner.policies.registry import traits_of

MINIMUM_STATIC = "flat-min"  # the policy
STATIC = "static"  # name of the static fleet among the plans to choose from
CURRENT = "current"  # the current fleet of the scenario, in a change
CURRENT_REPLICAS, VS_CURRENT = f"{CURRENT}:", f"vs {CURRENT}"  # words before such a change
NO_BREAK_SPACE = "\N{NO-BREAK SPACE}"
SLOWER = "slower_profile"  # kind of test day: replicas are slower by the error of their profile
PAST = "past"  # kind of test day: a past day as it was
MOSTLY_IDLE = 0.25  # use of capacity in the busiest bin, below which smaller replicas would do
GUARDED = "Simulated. The guard adds replicas for minutes: {}."


@dataclass(frozen=True, slots=True)
class Plan:
    """A plan that the report can show: one per level of assurance, or the static fleet."""

    name: str  # a level of assurance, or STATIC; "" if the result has only one plan
    outcome: Outcome
    level: AssuranceFigures | None  # the recommendation of that level; None: no level

    @property
    def label(self) -> str:
        """Return the name of the plan for people, or that of its policy if it has none."""
        return self.name.capitalize() or self.outcome.label

    @property
    def title(self) -> str:
        """Return the names of the plan and of its policy, for people."""
        return f"{self.label} · {self.outcome.label}" if self.name else self.label


@dataclass(frozen=True, slots=True)
class Tests:
    """The test days, the recommendation of each level of assurance, and the plans to choose from.

    ``alternatives`` maps the name of a plan (a level, or "static") to its policy.
    """

    __test__ = False  # pytest would collect the class because of its name

    days: tuple[TestDayFigures, ...] = ()
    levels: Mapping[str, AssuranceFigures] = field(default_factory=dict)
    alternatives: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ComparisonView:
    """A comparison of policies with its tables, and the plan among them that the report shows."""

    frame: Frame
    comparison: PolicyComparison
    tests: Tests
    tables: Tables
    figures: Mapping[str, Mapping[str, Any]]  # the stored row of each policy, by its key
    outcomes: Mapping[str, Outcome]  # the same figures, typed
    plans: tuple[Plan, ...]  # those to choose from
    plan: Plan  # the one shown

    @property
    def key(self) -> str:
        """Return the key of the plan's policy in results and tables."""
        return self.plan.outcome.name

    @property
    def base(self) -> Outcome | None:
        """Return the baseline of savings; None without one, or if the plan is the baseline."""
        name = self.comparison.baseline
        return None if name == self.key else self.outcomes.get(name)

    @property
    def window_words(self) -> str:
        """Return the time that costs and energy refer to, such as "per day"."""
        return time_text(self.frame.window.end - self.frame.window.start)

    def requires(self, day: TestDayFigures) -> bool:
        """Return whether a test day is required at the plan's level of assurance."""
        if self.plan.name in LEVELS and day.level:
            return day.required_by(self.plan.name)
        return day.required

    def equal_slo(self, key: str) -> EqualSlo | None:
        """Return the cost of policy ``key`` at the SLO attainment of the baseline.

        None if the attainments of the two are equal.
        """
        return next((row for row in self.comparison.equal_slo if row.policy == key), None)

    def saving(self, key: str) -> float | None:
        """Return the saving of policy ``key`` as a share of the baseline's cost; None: unknown.

        If attainments differ, it is the saving at equal SLO attainment.
        """
        equal_slo = self.equal_slo(key)
        if equal_slo is not None:
            return equal_slo.saving
        base = self.outcomes.get(self.comparison.baseline)
        if base is None or not base.cost_usd or key == base.name:
            return None
        return 1 - self.outcomes[key].cost_usd / base.cost_usd

    def replica_loss(self, outcome: Outcome) -> ReplicaLoss:
        """Return what losing one replica does to a policy, in the window and on test days."""
        return replica_loss(outcome, self.tests.days, self.frame.deferrable)


def report(result: CompareResult, tables: Tables, chosen: str = "") -> Report:
    """Return the report of ``compare`` about the plan ``chosen``; "": the recommended one."""
    accuracy = (
        *forecasts_section(result.forecast),
        *profiles_section(result.profile_error),
        *plan_sections(result.plan, simulated=True),
        *modules_section(result.modules, result.frame, tables),
    )
    tests = Tests(result.test_days, result.assurance, result.alternatives or {})
    return comparison_report(
        result.frame, result.comparison, tables, tests=tests, chosen=chosen, more=accuracy
    )


def comparison_report(
    frame: Frame,
    comparison: PolicyComparison,
    tables: Tables,
    *,
    tests: Tests,
    chosen: str = "",
    more: tuple[Section, ...] = (),
) -> Report:
    """Return the report of simulated policies, about one plan.

    ``chosen`` names that plan (a level of assurance, "static" or a policy); "": the recommended.
    ``more`` are sections to put before the sources. Without policies, the report has a headline
    alone.
    """
    runs = cast(Mapping[str, Mapping[str, Any]], comparison.runs)
    # The figures of each policy, as a row and as an object.
    figures = {name: {**row, "name": name} for name, row in runs.items()}
    recommendation = comparison.recommended
    spare = _requires_spare(comparison, tests)
    outcomes: dict[str, Outcome] = {}
    for name, row in figures.items():
        outcome = from_json(Outcome, row)
        # Of the oracles, only this one is sized with spare replicas that serve nothing.
        if spare and name == MINIMUM_STATIC:
            outcome = replace(outcome, label=f"{outcome.label}, N+1")
        outcomes[name] = outcome
    plans = _plans(comparison, outcomes, tests)
    if not plans:
        return Report(frame.scenario, comparison.headline, ())
    # The plan that the report is about.
    wanted = chosen or (recommendation.assurance if recommendation is not None else "")
    plans_by_name = {plan.name: plan for plan in plans}
    if wanted not in plans_by_name and chosen in outcomes:
        plan = Plan("", outcomes[chosen], None)
    else:
        plan = plans_by_name.get(wanted, plans[0])
    view = ComparisonView(frame, comparison, tests, tables, figures, outcomes, plans, plan)
    # The charts: demand with capacity, and replicas.
    schedule = _schedule(view)
    base = TODAY if TODAY in outcomes else comparison.baseline
    meets_slo = all(plan.outcome.slo_met.values())
    over_time, load = demand_chart(tables, frame, view.key, plan.label, base, meets_slo=meets_slo)
    if over_time is not None:
        scheduled = _guard_words(view, schedule)
        notes = (
            GUARDED.format(scheduled) if scheduled else "",
            _queue_note(load) if meets_slo else "",
        )
        over_time = replace(over_time, note=" ".join(filter(None, notes)))
    replicas = replicas_chart(tables, frame, view.key)
    if replicas is not None and schedule is not None and schedule.ratios:
        replicas = replace(replicas, title=f"{replicas.title} · {schedule.ratios}")
    replayed = frame.replayed.sentence if frame.replayed else ""
    why = ""
    if recommendation is not None and recommendation.policy == view.key:
        why = recommendation.why or recommendation.sentence
    return Report(
        title=frame.scenario,
        answer=_answer(view, schedule),
        meaning=Meaning.RISK if _fails_test_days(plan) else Meaning.NEUTRAL,
        opening=comparison.autoscaler,
        why=why,
        about=window_title(frame.window),
        facts=tuple(_deciding_facts(view, schedule)),
        warnings=(*_load_warnings(view, load), *comparison.warnings),
        sections=(
            *_sections(view, schedule),
            *more,
            *capacity_section(frame),
            *notes_and_sources_section(frame, [replayed] if replayed else []),
        ),
        clock=frame.window.clock,
        alternatives=tuple(_alternatives(view)),
        charts=tuple(chart for chart in (over_time, replicas) if chart is not None),
        trust=(
            _test_days_fact(view),
            *trust_facts(view.frame, speed_tested=_speed_tested(view)),
        ),
    )


def _requires_spare(comparison: PolicyComparison, tests: Tests) -> bool:
    """Return whether the recommended level of assurance requires N+1."""
    recommended = comparison.recommended
    level = tests.levels.get(recommended.assurance) if recommended is not None else None
    return level is not None and level.spare


def _plans(
    comparison: PolicyComparison, outcomes: Mapping[str, Outcome], tests: Tests
) -> tuple[Plan, ...]:
    """Return the plans to choose from: one per level of assurance, and the static fleet.

    If the result has none of these, return one plan: the recommended policy, else the best
    deployable one, else the best one. ``outcomes`` are the simulated policies by key.
    """
    plans = []
    for name in (*LEVELS, STATIC):
        outcome = outcomes.get(tests.alternatives.get(name, ""))
        if outcome is not None:
            plans.append(Plan(name, outcome, tests.levels.get(name)))
    if plans or not outcomes:
        return tuple(plans)
    recommended = comparison.recommended
    if recommended is not None and recommended.policy in outcomes:
        return (Plan("", outcomes[recommended.policy], None),)
    best_first = [name for name in comparison.ranking if name in outcomes] or list(outcomes)
    deployable = [name for name in best_first if not outcomes[name].hindsight]
    return (Plan("", outcomes[(deployable or best_first)[0]], None),)


def _schedule(view: ComparisonView) -> Schedule | None:
    """Return the plan's schedule; None if it has none.

    A policy that scales by its own rule has only its first replicas, if it is recommended.
    """
    schedule = schedule_of(view.tables, view.key)
    recommended = view.comparison.recommended
    if schedule is None and recommended is not None and recommended.policy == view.key:
        return schedule_from(recommended.timetable)
    return schedule


def _replicas(view: ComparisonView, schedule: Schedule | None, key: str) -> Span | None:
    """Return the (fewest, most) replicas of policy ``key``, by its ``schedule`` if it has one.

    Otherwise they are counted in the simulation. None if they are not known.
    """
    # A policy that scales by its own rule has a schedule of its first replicas only.
    if schedule is not None and not schedule.by_itself and schedule.rows:
        return schedule.span
    rows = replicas_of(view.tables, key)
    if rows.is_empty():
        return None
    totals = rows.group_by("time").agg(pl.col("ready").sum())["ready"].to_list()
    return round(min(totals)), round(max(totals))


def _answer(view: ComparisonView, schedule: Schedule | None) -> str:
    """Return what to run in a sentence, such as "Run 4 to 7 replicas: static fleet."."""
    counts = _replicas(view, schedule, view.key)
    if counts is None:
        return f"Run {view.plan.outcome.label}."
    _, most = counts
    noun = "replica" if most == 1 else "replicas"
    return f"Run {span_text(counts)} {noun}: {view.plan.outcome.label}."


def _fails_test_days(plan: Plan) -> bool:
    """Return whether the plan is of a level of assurance but fails a test day that it requires."""
    return plan.level is not None and not plan.level.qualifies


def _deciding_facts(view: ComparisonView, schedule: Schedule | None) -> Iterator[Fact]:
    """Yield the five figures that decide: replicas, cost, SLO attainment, energy and risk."""
    yield from _replicas_fact(view, schedule)
    yield _cost_fact(view)
    yield from _attainment_fact(view)
    outcome, base = view.plan.outcome, view.base
    saving = None
    if base is not None and base.energy_kwh:
        saving = 1 - outcome.energy_kwh / base.energy_kwh
    label, note = f"Energy {view.window_words}", f"{figure(outcome.carbon_kg)} kg CO2e"
    yield Fact(label, outcome.energy_kwh, "kWh", **saving_change(saving), note=note)
    yield _risk_fact(view)


def _cost_fact(view: ComparisonView) -> Fact:
    """Return the cost of the plan with the saving against the baseline.

    If there is none at equal SLO attainment, compare it with the static fleet in a note.
    """
    saved, notes = saving_change(view.saving(view.key)), []
    if saved:
        saved["change"] += f" {_comparison_words(view)}"
    else:
        notes.append(_comparison_words(view))
        if not view.equal_slo(view.key):
            notes.append(_static_comparison(view))
    has_parameter = traits_of(view.key).group is not PolicyGroup.FIXED
    if has_parameter and not view.tests.levels and not view.tests.days:
        notes.append("not tuned on test days")
    note, cost_usd = " · ".join(filter(None, notes)), view.plan.outcome.cost_usd
    return Fact(f"Cost {view.window_words}", cost_usd, "$", **saved, note=note)


def _replicas_fact(view: ComparisonView, schedule: Schedule | None) -> Iterator[Fact]:
    """Yield the replicas of the plan, compared with those of today's fleet.

    Nothing if the result has no replica counts. A note has the replicas that a guard adds.
    """
    counts = _replicas(view, schedule, view.key)
    if counts is None:
        return
    today = None
    if TODAY in view.outcomes and view.key != TODAY:
        today = _replicas(view, schedule_of(view.tables, TODAY), TODAY)
    yield Fact(
        "Replicas", span_text(counts),
        change="" if today is None else f"{CURRENT_REPLICAS} {span_text(today)}",
        note=_guard_words(view, schedule, with_mean=False),
        link="schedule" if schedule is not None else "",
    )  # fmt: skip


def _guard_words(view: ComparisonView, schedule: Schedule | None, *, with_mean: bool = True) -> str:
    """Return the most replicas in words, if a guard adds some in the simulation, and the mean.

    Otherwise return "".
    """
    scheduled = _replicas(view, schedule, view.key)
    simulated = _replicas(view, None, view.key)
    if scheduled is None:
        return ""
    window = view.frame.window
    hours = (window.end - window.start).total_seconds() / 3600
    replica_hours = view.figures[view.key].get("instance_hours")
    mean = replica_hours / hours if replica_hours and with_mean else None
    return guard_text(scheduled, simulated, mean)


def _comparison_words(view: ComparisonView) -> str:
    """Return the words after a saving: the baseline, and whether SLO attainment is equal.

    Without a baseline, say why there is no saving; "" if the baseline was not simulated.
    """
    base = view.base
    if base is None:
        if view.comparison.baseline != view.key or len(view.outcomes) == 1:
            return ""
        return "same as current" if TODAY in view.outcomes else "saving unknown: no current fleet"
    baseline = CURRENT if base.name == TODAY else base.label[:1].lower() + base.label[1:]
    if base.hindsight:
        baseline += " (oracle)"
    equal_slo = view.equal_slo(view.key)
    if equal_slo is None:
        return f"vs {baseline}"
    if equal_slo.saving is None:
        return f"{figure(base.cost_usd, '$')} {baseline}, at another SLO"
    return f"vs {baseline} at equal SLO"


def _static_comparison(view: ComparisonView) -> str:
    """Return the difference in cost from the static fleet that is as safe as the plan, in words.

    Such a fleet passes the same required test days, and is N+1 if the plan is. Return "" without
    one, and if savings refer to it anyway. The words do not break over lines.
    """
    key = view.tests.alternatives.get(STATIC, "")
    static = view.outcomes.get(key)
    if static is None or not static.cost_usd or key in (view.key, view.comparison.baseline):
        return ""
    static_survives = view.replica_loss(static).survives
    plan_survives = view.replica_loss(view.plan.outcome).survives
    is_safe = _expected_cost(view, key) is not None if view.tests.days else static.meets_slo
    if not is_safe or (plan_survives and not static_survives):
        return ""
    change = view.plan.outcome.cost_usd / static.cost_usd - 1
    words = f"{signed_percent(change, 0)} vs static{' N+1' if static_survives else ''}"
    return words.replace(" ", NO_BREAK_SPACE)


def _attainment_fact(view: ComparisonView) -> Iterator[Fact]:
    """Yield the SLO attainment of the tier with the least margin; nothing without requests.

    It is marked as missed if any tier misses its target.
    """
    outcome, deferrable = view.plan.outcome, view.frame.deferrable
    tier = tightest_tier(outcome, [t for t in outcome.slo_attainment if t not in deferrable])
    if tier is None:
        return
    target = outcome.target(tier)
    met = all(outcome.slo_met.values())
    yield Fact(
        f"SLO attainment, {tier}", outcome.slo_attainment[tier], form=Form.SHARE,
        note="" if target is None else f"target {percent(target, 0)}",
        meaning=Meaning.MET if met else Meaning.MISSED,
    )  # fmt: skip


def _risk_fact(view: ComparisonView) -> Fact:
    """Return whether the plan is N+1, with the extra cost of the next level of assurance.

    If the plan fails test days, return their number instead.
    """
    plan, price = view.plan, _next_level_words(view)
    if plan.level is not None and not plan.level.qualifies:
        failing = len(plan.level.failing)
        days = f"Fails {counted(failing, 'test day')}"
        return Fact("Redundancy", days, note=price, meaning=Meaning.MISSED)
    loss = view.replica_loss(plan.outcome)
    meaning = loss.meaning
    if loss.survives and view.frame.speed_error and not _speed_tested(view):
        meaning = Meaning.NEUTRAL  # green would promise that speeds are right
    note = " · ".join(filter(None, (loss.effect, price)))
    link = "test-days" if view.tests.days else ""
    return Fact("Redundancy", loss.verdict, note=note, meaning=meaning, link=link)


def _speed_tested(view: ComparisonView) -> bool:
    """Return whether the plan passes a required day with replicas slower by their profile error."""
    days = (day for day in _required_days(view) if day.kind == SLOWER)
    return any(day.policies[view.key].passes for day in days)


def _test_days_fact(view: ComparisonView) -> Fact:
    """Return how many of the required test days the plan passes, or fails."""
    required = _required_days(view)
    if not required:
        return Fact("Test days", "none simulated", meaning=Meaning.RISK)
    passed = [day for day in required if day.policies[view.key].passes]
    failed = len(required) - len(passed)
    if failed:
        return Fact("Failed", counted(failed, "test day"), meaning=Meaning.MISSED, link="test-days")
    return Fact("Passed", counted(len(passed), "test day"), meaning=Meaning.MET, link="test-days")


def _required_days(view: ComparisonView) -> list[TestDayFigures]:
    """Return the test days on which the plan was simulated and which its level requires.

    A plan without a level has the required days of the run.
    """
    return [day for day in view.tests.days if view.requires(day) and view.key in day.policies]


def _next_level_words(view: ComparisonView) -> str:
    """Return the extra cost of the next level of assurance over the plan, in words.

    Return "" if that level has the same plan, or no test day of its own.
    """
    if view.plan.name not in LEVELS:
        return ""
    higher_levels = LEVELS[LEVELS.index(view.plan.name) + 1 :]
    # The plans are in the order of their levels.
    higher = [plan for plan in view.plans if plan.name in higher_levels]
    if not higher:
        return "" if _is_untested(view, view.plan) else "highest assurance"
    next_plan = higher[0]
    if _is_untested(view, next_plan):
        return ""
    if _fails_test_days(next_plan):
        return f"no plan passes {next_plan.name}"
    if next_plan.outcome.name == view.key:
        return ""
    name = next_plan.name.capitalize()
    extra_usd = next_plan.outcome.cost_usd - view.plan.outcome.cost_usd
    if round(extra_usd, 2) == 0:
        return f"{name}: same cost"
    if _is_n_plus_1(view, next_plan) and not _is_n_plus_1(view, view.plan):
        name = "N+1"
    sign = "+" if extra_usd >= 0 else ""
    return f"{name}: {sign}{figure(extra_usd, '$')}"


def _is_n_plus_1(view: ComparisonView, plan: Plan) -> bool:
    """Return whether the plan is N+1: in the simulation, if its level does not require it.

    If the level requires it, the plan counts as N+1 unless a simulation shows that it is not.
    """
    survives = view.replica_loss(plan.outcome).survives
    if plan.level is None or not plan.level.spare:
        return survives is True
    return survives is not False


def _alternatives(view: ComparisonView) -> Iterator[Alternative]:
    """Yield the plans that the reader can choose from, with their costs in the window.

    Nothing if there is only one. A level without a test day of its own has the plan of a lower
    level, so it is left out unless it is recommended or shown.
    """
    plans = [
        plan
        for plan in view.plans
        if plan is view.plan or _is_recommended(view, plan) or not _is_untested(view, plan)
    ]
    if len(plans) < 2:
        return
    for plan in plans:
        if plan.level is not None:
            risky = not (plan.level.qualifies and _is_n_plus_1(view, plan))
        else:
            risky = view.replica_loss(plan.outcome).survives is False
        price = Fact(
            plan.label, plan.outcome.cost_usd, "$", note=_plan_note(view, plan),
            meaning=Meaning.RISK if risky else Meaning.NEUTRAL,
        )  # fmt: skip
        yield Alternative(plan.name, plan.label, price, plan is view.plan)


def _is_recommended(view: ComparisonView, plan: Plan) -> bool:
    """Return whether the plan is of the level of assurance that the run recommends."""
    recommended = view.comparison.recommended
    return recommended is not None and recommended.assurance == plan.name


def _is_untested(view: ComparisonView, plan: Plan) -> bool:
    """Return whether no test day belongs to the plan's level of assurance.

    Such a level has the plan of a lower level. False without test days.
    """
    tested = {day.level for day in view.tests.days} - {""}
    return bool(tested) and plan.level is not None and plan.name not in tested


def _plan_note(view: ComparisonView, plan: Plan) -> str:
    """Return the note at a plan's price: its redundancy, and whether it is recommended.

    A plan that fails test days, or has the policy of the shown plan, has a note on that alone.
    """
    if plan.name == STATIC:
        survives = view.replica_loss(plan.outcome).survives
        return {True: "N+1", False: "not N+1", None: ""}[survives]
    if plan.level is not None and not plan.level.qualifies:
        return f"fails {len(plan.level.failing)} test days"
    if plan is not view.plan and plan.outcome.name == view.key:  # two levels with the same policy
        return f"same as {view.plan.label}"
    redundancy = "N+1"
    if not _is_n_plus_1(view, plan):
        has_spare = plan.level is not None and plan.level.spare
        redundancy = "N+1 on test days only" if has_spare else "not N+1"
    recommended = "recommended" if _is_recommended(view, plan) else ""
    untested = "no test day of its own" if _is_untested(view, plan) else ""
    return " · ".join(filter(None, (recommended, untested, redundancy)))


def _load_warnings(view: ComparisonView, load: Load | None) -> Iterator[str]:
    """Yield warnings if the plan misses an SLO target in this window, or is mostly idle.

    With missed targets, also yield how long, and by how much at most, demand exceeds capacity. With
    deferrable tiers, no plan counts as idle: the demand of ``load`` lacks them.
    """
    missed = [tier for tier, met in view.plan.outcome.slo_met.items() if not met]
    if missed:
        qualifies = view.plan.level is not None and view.plan.level.qualifies
        tested = " It passes every required test day." if qualifies else ""
        yield f"{view.plan.outcome.label} misses its SLO target for {' and '.join(missed)}.{tested}"
    if load is None:
        return
    if missed and load.hours_short:
        yield (
            f"Demand exceeds {load.capacity_words} for {duration(3600 * load.hours_short)}, "
            f"by up to {percent(load.largest_share, 0)}."
        )
    pairs = zip(load.demand, load.capacity, strict=True)
    uses = [demand / capacity for demand, capacity in pairs if capacity > 0]
    highest_use = max(uses, default=1.0)
    if highest_use < MOSTLY_IDLE and not view.frame.deferrable:
        yield (
            f"Demand uses at most {percent(highest_use, 0)} of capacity. "
            "Replicas on smaller GPUs may cost less."
        )


def _queue_note(load: Load | None) -> str:
    """Return how long requests wait in queues because demand exceeds capacity; "" if they do not.

    It is for a plan that meets every SLO in its simulation.
    """
    if load is None or not load.hours_short:
        return ""
    short, most = duration(3600 * load.hours_short), percent(load.largest_share, 0)
    return (
        f"Queued (amber): for {short}, up to {most} of demand exceeds {load.capacity_words}. "
        "Every SLO is met."
    )


def _sections(view: ComparisonView, schedule: Schedule | None) -> Iterator[Section]:
    """Yield the sections in the order in which a reader decides."""
    if schedule is not None:
        today = schedule_of(view.tables, TODAY)
        rows = schedule_table(schedule, view.frame.window, today)
        yield Section("Replica schedule", (rows,), "Schedule")
    reasons = tuple(_reasons(view))
    if reasons:
        yield Section(f"Why: {view.plan.title}", (Facts(reasons),), "Why")
    yield from _test_days(view)
    yield from assumptions_section(view.frame)
    yield from _policies(view)


def _reasons(view: ComparisonView) -> Iterator[Fact]:
    """Yield the reasons for the plan, each with a figure.

    They are test days passed, expected cost, utility, and the next best policy, where known.
    """
    if _required_days(view):
        tests = _test_days_fact(view)
        result = "passed" if tests.meaning is Meaning.MET else "failed"
        yield replace(tests, label=f"Required tests {result}", link="")
    level = view.plan.level
    if level is not None and level.expected.cost_usd is not None:
        expected = level.expected.cost_usd
        if expected.low is None:
            note = "from one test day"
        else:
            low, high = figure(expected.low, "$"), figure(expected.high, "$")
            note = "equal on test days" if low == high else f"80% interval {low} to {high}"
        yield Fact("Expected cost of the window", expected.mean, "$", note=note)
    utility = view.plan.outcome.utility
    if utility is not None:
        highest = max(other.utility or 0.0 for other in view.outcomes.values())
        change = f"{signed_percent(utility / highest - 1, 1)} vs the highest" if highest else ""
        yield Fact("Value of requests within SLO", utility, form=Form.NUMBER, change=change)
    next_policy = _next_policy(view)
    if next_policy is not None:
        outcome, extra_cost = next_policy
        more = f"+{percent(extra_cost, 0)}" if extra_cost >= NO_SAVING else "same"
        change = f"{more} cost on the test days"
        loss = view.replica_loss(outcome)
        note = f"not N+1: {loss.effect}" if loss.survives is False else ""
        yield Fact("Runner-up", outcome.label, change=change, note=note)


def _next_policy(view: ComparisonView) -> tuple[Outcome, float] | None:
    """Return the cheapest other policy that passes every required test day, and its extra cost.

    The extra cost is expected, as a share of the plan's. None if no other policy passes, or if the
    plan is static.
    """
    days = view.tests.days
    if not days or view.plan.name == STATIC:
        return None
    tested = dict.fromkeys(key for day in days for key in day.policies)
    costs_usd = {}
    for key in tested:
        cost_usd = _expected_cost(view, key) if key in view.outcomes else None
        if cost_usd is not None:  # it passes every required day
            costs_usd[key] = cost_usd
    own_usd = costs_usd.pop(view.key, None)
    if not own_usd or not costs_usd:
        return None
    cheapest = min(costs_usd, key=lambda key: costs_usd[key])
    return view.outcomes[cheapest], costs_usd[cheapest] / own_usd - 1


def _expected_cost(view: ComparisonView, key: str) -> float | None:
    """Return the mean cost of policy ``key`` over the test days, weighted by day, in dollars.

    None unless the policy passes every required day and has a cost on every day with a weight.
    """
    total = weights = 0.0
    for day in view.tests.days:
        result = day.policies.get(key)
        if view.requires(day) and (result is None or not result.passes):
            return None
        if day.weight and day.cases:
            if result is None or result.cost_usd is None:
                return None
            total += day.weight * result.cost_usd
            weights += day.weight
    return total / weights if weights else None


class DayRow(NamedTuple):
    """A test day, and the plan's result on it; None: not simulated."""

    day: TestDayFigures
    required: bool
    result: PolicyOnDay | None

    @property
    def passes(self) -> str:
        """Return "yes" or "no", or "not run" if the plan was not simulated on the day."""
        if self.result is None:
            return "not run"
        return "yes" if self.result.passes else "no"

    @property
    def passing_policies(self) -> str:
        """Return how many policies pass the day, such as "3 of 4"; "" if none was simulated."""
        passed = sum(result.passes for result in self.day.policies.values())
        return f"{passed} of {len(self.day.policies)}" if self.day.policies else ""


def _test_days(view: ComparisonView) -> Iterator[Section]:
    """Yield the section on the test days: results of the plan, and how many policies pass."""
    days = view.tests.days
    rows = [DayRow(day, view.requires(day), day.policies.get(view.key)) for day in days]
    attained = Head("SLO attainment: {}", Form.SHARE)
    note = (
        f"Results of {view.plan.title}. A plan must pass every required day. Policies that cannot "
        "be recommended skip some days."
    )
    kinds = {day.kind for day in days if day.cases}
    if LOST_REPLICA in kinds:
        note += " A lost replica is not billed."
    if PAST in kinds:
        note += " Costs of past days are scaled to the planned window."
    yield from table_section(
        "Test days",
        rows,
        (Head("Test day", width=3), lambda row: row.day.name),
        (Head("Required"), lambda row: "yes" if row.required else "no"),
        (Head("Weight", Form.NUMBER), lambda row: row.day.weight or None),
        (Head("Passes"), lambda row: row.passes),
        (Head("Cost", Form.NUMBER, "$"), lambda row: row.result.cost_usd if row.result else None),
        *key_columns(rows, attained, lambda row: row.result.attainment if row.result else None),
        (Head("Policies passing"), lambda row: row.passing_policies),
        (Head("Not applicable", width=2), lambda row: row.day.not_applicable),
        note=note,
    )


def _policies(view: ComparisonView) -> Iterator[Section]:
    """Yield the sections that compare policies, show the plan's parameters and the simulation."""
    best_first = dict.fromkeys((*view.comparison.ranking, *view.outcomes))
    outcomes = [view.outcomes[name] for name in best_first if name in view.outcomes]
    rows = []
    for outcome in outcomes:
        # The stored attainment without a replica is that in the window. Test days may have less.
        survives = view.replica_loss(outcome).attainment
        rows.append(Row(outcome.title, {**view.figures[outcome.name], "survives": survives}))
    # Nobody can run an oracle, so it has no saving.
    savings = {row.name: None if row.hindsight else view.saving(row.name) for row in outcomes}
    compared = policies_table(rows, view.key, savings, *_test_day_columns(view))
    label = "Recommended" if _is_recommended(view, view.plan) else view.plan.label
    not_n_plus_1 = set()  # if the recommended level requires N+1
    if _requires_spare(view.comparison, view.tests):
        not_n_plus_1 = {row.name for row in outcomes if view.replica_loss(row).survives is False}
    charts = cost_chart(outcomes, view.key, label, not_n_plus_1)
    yield Section("Policies", (*charts, compared), group=Group.POLICIES, printed=True)
    yield from parameters_section(Row(view.plan.outcome.title, view.figures[view.key]))
    plan_and_baseline = (view.key, view.comparison.baseline)
    shown = [row for row in rows if row.figures["name"] in plan_and_baseline]
    yield simulation_section(rows, shown)


def _test_day_columns(view: ComparisonView) -> TableColumns[Row]:
    """Return two columns of a table of policies: required days passed, and those failed by name.

    The days are those that the plan's level of assurance requires.
    """
    required = [day for day in view.tests.days if view.requires(day)]

    def passed_days(row: Row) -> str:
        """Return how many required test days the policy passes, such as "2 of 3"."""
        key = row.figures["name"]
        passes = [day.policies[key].passes for day in required if key in day.policies]
        return f"{sum(passes)} of {len(passes)}" if passes else ""

    def failed_days(row: Row) -> str:
        """Return the names of the test days that the policy fails, each with a known reason."""
        names = []
        for day in required:
            result = day.policies.get(row.figures["name"])
            if result is not None and not result.passes:
                names.append(f"{day.name} ({result.reason})" if result.reason else day.name)
        return ", ".join(names)

    passed = (Head("Required test days passed"), passed_days)
    return (passed, (Head("Fails on", width=2), failed_days))


class LevelRow(NamedTuple):
    """A level of assurance and its recommended policy."""

    level: str
    policy: AssuranceFigures

    @property
    def parameters(self) -> str:
        """Return the parameters of the policy as text."""
        values = self.policy.parameters.items()
        return ", ".join(f"{key_words(key)} {value:.4g}" for key, value in values)

    @property
    def cost_usd(self) -> dict[str, float | None]:
        """Return the expected cost: "mean", and "low" and "high" if there are several days."""
        cost = self.policy.expected.cost_usd
        return {} if cost is None else asdict(cost)

    @property
    def attainment(self) -> dict[str, float]:
        """Return the mean SLO attainment by tier, where it is known."""
        known = self.policy.expected.attainment.items()
        return {tier: interval.mean for tier, interval in known if interval is not None}


def assurance_table(recommended: Mapping[str, AssuranceFigures]) -> Table:
    """Return a table with a row per level of assurance; ``recommended`` is by level."""
    rows = [LevelRow(name, recommended[name]) for name in LEVELS if name in recommended]
    cost = Head("Cost of the test days: {}", Form.NUMBER, "$")
    attained = Head("SLO attainment on test days: {}", Form.SHARE)
    note = "Means are over the weighted test days. The planned day is not one of them."
    if any(row.cost_usd.get("low") is not None for row in rows):
        note += " Low and high: 80% interval."
    return table(
        rows,
        (Head("Assurance"), lambda row: row.level.capitalize()),
        (Head("Policy", width=3), lambda row: row.policy.label),
        (Head("Parameters", width=2), lambda row: row.parameters),
        (Head("Passes required days"), lambda row: "yes" if row.policy.qualifies else "no"),
        *key_columns(rows, cost, lambda row: row.cost_usd),
        *key_columns(rows, attained, lambda row: row.attainment),
        (Head("Fails", width=2), lambda row: ", ".join(row.policy.failing)),
        note=note,
    )
