"""Read the plan of a run in the form that exported files need.

A plan holds the replicas of each deployment over time, or the rule of a reactive policy. A row of a
schedule says when scaling to a number of replicas starts. A step is a number of replicas from one
time to another.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any, Literal, NamedTuple, cast
from zoneinfo import ZoneInfo

import polars as pl

from planner.domain.replicas import Replica
from planner.domain.results.stored import (
    PlannedReplicas,
    StoredPolicy,
    StoredRecommendation,
    StoredResult,
)
from planner.domain.serialise import from_json
from planner.domain.study import Setting
from planner.errors import NotFound, NotReady, PlannerError
from planner.models import Run
from planner.outputs.moved_work import WorkRow, moved_work
from planner.outputs.object_names import stored_names, unique_names
from planner.outputs.options import ExportOptions
from planner.outputs.plan_guard import Guard, guards_of, values_by_pool
from planner.outputs.pools import Facts, Pool, facts_of
from planner.outputs.weekly_pattern import (
    MINUTES_PER_DAY,
    Repeat,
    Step,
    fold_steps,
    replicas_without_gaps,
)
from planner.policies.base import Group, Policy
from planner.policies.builtin.token_velocity import TokenVelocity
from planner.policies.choice import policy_of
from planner.policies.registry import TYPES, name_of, traits_of
from planner.selectors.active_plans import active_plan_of_policy
from planner.selectors.review import proposal_approved
from planner.selectors.runs import run_table, run_tables, stored_result, typed_result
from simulation.arrays import IntArray

KINDS = (Run.Kind.PLAN, Run.Kind.COMPARE)
# Text in the default name of a pool, by market and by role; "" is left out.
MARKETS = {"owned": "", "spot": "spot"}
ROLES = {"mixed": "", "both": ""}
# Format of the export of another system's autoscaler, by the first word of its policy.
EXPORT_FORMATS = {"epp": "keda", "dynamo": "dynamo", "aibrix": "aibrix", "token": "keda"}


@dataclass(frozen=True, slots=True)
class Rule:
    """The tuned rule of a reactive policy: a target load, or a policy of another system."""

    export_format: str  # name of the format to which it is exported, such as hpa or keda
    metric: str = ""  # memory, gpu, queue, concurrency or tokens; "": policy of another system
    target: float = 0.0  # load per replica, in the unit of the metric
    tolerance: float = 0.0
    stabilisation_s: float = 0.0
    policy: Policy | None = None  # the autoscaler of another system, as tuned
    # Values that its simulation computed, by name of the pool (``place_of``) and of the value.
    simulated_values: Mapping[str, Mapping[str, float]] = field(default_factory=dict)

    def simulated_value(self, pool: Pool, name: str) -> float | None:
        """Return the value called ``name`` that the simulation computed for a pool, or None."""
        pool_name = place_of(pool.model, pool.region, pool.arrangement)
        return self.simulated_values.get(pool_name, {}).get(name)


@dataclass(frozen=True, slots=True)
class Plan:
    """A plan to export; times are in UTC."""

    run: int
    scenario: str
    policy: str
    label: str
    computed: datetime | None
    begins: datetime
    ends: datetime
    clock: str  # utc or relative
    repeat: Repeat
    zone: str
    pools: tuple[Pool, ...]
    rule: Rule | None
    notes: tuple[str, ...]
    proposal: int | None = None  # the proposal that approved it
    deferrable_work: tuple[WorkRow, ...] = ()  # when moved deferrable work is done

    def local(self, moment: datetime) -> datetime:
        """Convert a moment to local time in the plan's zone, as steps use it."""
        return moment.astimezone(ZoneInfo(self.zone)).replace(tzinfo=None)

    def replicas_by_minute(self, pool: Pool) -> IntArray:
        """Return a pool's replicas by minute of the day or of the week, ``[minute]``.

        Plans that run once use a week, in which a minute outside their dates is UNKNOWN.
        """
        if self.repeat == "once":
            return fold_steps(pool.steps, "weekly")
        return replicas_without_gaps(pool.steps, self.repeat)

    @property
    def has_guard(self) -> bool:
        """Return whether a guard adds replicas to any pool."""
        return any(pool.guard for pool in self.pools)

    def lowest_replicas(self, pool: Pool) -> int:
        """Return the smallest number of replicas of a pool at any time."""
        if self.rule or self.repeat == "once":
            return pool.min_replicas
        # If days of the plan coincide in the pattern, the largest count of them applies. So the
        # pattern may never be as low as the lowest step.
        return int(self.replicas_by_minute(pool).min())

    def pools_by_region(self) -> list[tuple[str, list[Pool]]]:
        """Return the pools grouped by region; each region is its own cluster."""
        by_region: dict[str, list[Pool]] = {}
        for pool in self.pools:
            by_region.setdefault(pool.region, []).append(pool)
        return list(by_region.items())


def plan_of(run: Run, options: ExportOptions, now: datetime) -> Plan:
    """Return the plan of a run to export, with the policy, pools and repeat of ``options``.

    ``now`` decides whether a window is in the future. Raises NotReady if the run has no plan,
    NotFound if an option names something that the plan does not have.
    """
    result = stored_result(run)
    if run.kind not in KINDS:
        raise NotReady(
            f"Run {run.pk} is not a plan ({run.get_kind_display().lower()}). Plan or compare its "
            "scenario, and export that run."
        )
    window = result.window
    assert window is not None  # runs of these kinds have one
    policy = _policy_name(run, result, options.policy)
    label = _label_of(result, policy)
    # The schedule, or the limits and the rule of a reactive policy.
    rows, rule = _rows_and_rule(run, result, window.start, policy)
    if not rows:
        raise NotReady(
            f"{label} has no replicas in run {run.pk}, or an earlier release did not store them. "
            "Run it again, or name another policy."
        )
    _check_zone(options.timezone, min(row.scaling_starts for row in rows), window.end)
    # The pools that the options choose, with their names.
    guards = {} if rule else guards_of(_figures(result, policy).settings, options.most)
    zone = ZoneInfo(options.timezone)
    unnamed = list(_unnamed_pools(rows, window.end, zone, facts_of(run), rule, guards))
    pools = _name_pools(unnamed, options.names)
    chosen = tuple(_chosen_pools(pools, options, run))
    is_part = len(chosen) < len(pools)
    policy_notes = _notes(result, policy, rule, has_guard=bool(guards), is_part=is_part)
    approved = proposal_approved(run.pk, policy)
    shifted = result.plan.shift if result.plan and not rule else None
    return Plan(
        run=run.pk, scenario=result.scenario or run.name, policy=policy, label=label,
        computed=run.finished_at, begins=window.start, ends=window.end, clock=result.clock,
        repeat=_repeat(run, policy, result, options.repeat, now), zone=options.timezone,
        pools=chosen, rule=rule, notes=(*_release_notes(run, result, rule), *policy_notes),
        proposal=approved.pk if approved else None,
        deferrable_work=moved_work(shifted, window.end, policy),
    )  # fmt: skip


class ScheduleRow(NamedTuple):
    """A number of replicas of a pool, from the moment at which scaling to it starts."""

    pool: Pool  # without steps
    scaling_starts: datetime  # UTC
    replicas: int


def _policy_name(run: Run, result: StoredResult, requested: str | None) -> str:
    """Return the name of the policy to export: ``requested``, or the recommended one (None).

    Raises NotReady if no policy is recommended, NotFound if the run does not have ``requested``.
    """
    recommended = result.recommended or StoredRecommendation()
    policy = requested or recommended.policy
    if not policy:
        raise NotReady(
            f"Run {run.pk} recommends no policy, because all use future data. Name one with policy."
        )
    if policy not in result.policies and policy != recommended.policy:
        known = ", ".join(result.policies) or recommended.policy
        raise NotFound(f"There is no policy {policy!r} in run {run.pk}. Known: {known}.")
    return policy


def _label_of(result: StoredResult, policy: str) -> str:
    """Return the label of a policy in a result; its name if the result has none."""
    figures = result.policies.get(policy) or result.recommended
    if figures is None or not figures.label:
        return policy
    return figures.label


def _rows_and_rule(
    run: Run, result: StoredResult, begins: datetime, policy: str
) -> tuple[list[ScheduleRow], Rule | None]:
    """Return (rows of the schedule, None) of a policy that has a schedule.

    Return (rows with the replica limits of each pool, rule) of a policy with a reactive rule.
    ``begins`` is the begin of the window. Raises NotReady if the policy has neither.
    """
    rows = _recommended_rows(result, policy) or [
        _row(from_json(Replica, row), row["region"], row["begins"], row["replicas"])
        for row in _stored_schedules(run).filter(pl.col("policy") == policy).to_dicts()
    ]
    if rows:
        return rows, None
    settings = _figures(result, policy).settings
    rule = _rule(policy, settings)
    if rule is not None:
        return list(_rows_of_limits(run, settings, begins, LIMITS)), rule
    if traits_of(policy).group == Group.ROLES:  # it switches roles of a fixed number of replicas
        return list(_rows_of_limits(run, settings, begins, ("replicas at the start",))), None
    known = ", ".join(_stored_schedules(run)["policy"].unique(maintain_order=True))
    raise NotReady(
        f"{_label_of(result, policy)} has no schedule and no target of a Kubernetes autoscaler. "
        f"Name another policy with a plan or a static fleet (run {run.pk} has: {known or 'none'})."
    )


def _recommended_rows(result: StoredResult, policy: str) -> list[ScheduleRow]:
    """Return the rows of the recommended schedule; [] if ``policy`` is another or has a rule."""
    recommended = result.recommended or StoredRecommendation()
    timetable = recommended.timetable
    # A timetable marked ``by_itself`` holds only the first replicas of a rule.
    if policy != recommended.policy or not timetable or timetable.by_itself:
        return []
    return [
        _row(pool.replica, pool.region, row.begins, replicas)
        for row in timetable.rows
        for pool, replicas in zip(timetable.pools, row.replicas, strict=True)
    ]


def _stored_schedules(run: Run) -> pl.DataFrame:
    """Return the table of the schedules of all policies; empty if the run has none."""
    if "timetables" in run_tables(run):
        return run_table(run, "timetables")
    return pl.DataFrame(schema={"policy": pl.String})


def _row(replica: Replica, region: str, begins: datetime, replicas: int) -> ScheduleRow:
    """Return a row of a schedule; ``begins`` is when scaling to ``replicas`` starts."""
    pool = Pool(
        model=replica.model,
        region=region,
        gpu=replica.gpu,
        gpus=int(replica.tp),
        role=replica.role or "",
        # Results of earlier releases have no market and no arrangement.
        market=replica.market or "",
        arrangement=replica.arrangement or "",
    )
    return ScheduleRow(pool, begins.astimezone(UTC), replicas)


def _rule(policy: str, settings: Sequence[Setting]) -> Rule | None:
    """Return the rule that the settings of a policy describe; None if it is not reactive."""
    # Policies of these groups model the autoscaler of another system.
    if traits_of(policy).group in (Group.OPPONENT, Group.ROLES):
        tuned = policy_of_settings(name_of(policy), settings)
        if isinstance(tuned, TokenVelocity) and not tuned.changes_counts:
            return None
        return rule_of(tuned, settings)
    values = values_by_pool(settings).get("", {})  # settings of all pools
    metric, target, tolerance = map(values.get, ("metric", "target", "tolerance"))
    if metric is None or target is None or tolerance is None or isinstance(target, str):
        return None
    return Rule(
        export_format="keda" if "polling_s" in values else "hpa",
        metric=str(metric),
        target=float(target),
        tolerance=float(tolerance),
        stabilisation_s=float(values.get("stabilisation_s", 0.0)),
    )


def policy_of_settings(name: str, settings: Sequence[Setting]) -> Policy:
    """Return the policy called ``name`` with the parameter values in the settings of a result.

    A setting is called PARAMETER, PARAMETER.FIELD, or PARAMETER.ROW.FIELD in a list of rows.
    """
    parameters: dict[str, Any] = {}
    for setting in settings:
        parameter, *path = setting.what.split(".")
        is_computed = bool(setting.where)  # for a pool, so it is no parameter
        if is_computed or parameter not in TYPES[name].model_fields:
            continue
        match path:
            case []:
                parameters[parameter] = setting.value
            case [field]:
                parameters.setdefault(parameter, {})[field] = setting.value
            case [row, field]:
                rows = parameters.setdefault(parameter, [])
                if int(row) == len(rows):  # the first field of the next row
                    rows.append({})
                # A result has a list of days as one text.
                is_list = field == "days"
                rows[-1][field] = str(setting.value).split() if is_list else setting.value
    return policy_of(name, **parameters)


def rule_of(policy: Policy, settings: Sequence[Setting]) -> Rule:
    """Return the rule of a tuned policy that models the autoscaler of another system."""
    simulated_values = {}
    for pool_name, values in values_by_pool(settings).items():
        numbers = {name: float(v) for name, v in values.items() if isinstance(v, int | float)}
        if pool_name and numbers:
            simulated_values[pool_name] = numbers
    first_word = policy.name.split("-")[0]
    keep_s = policy.keep_s if isinstance(policy, TokenVelocity) else 0.0
    return Rule(
        EXPORT_FORMATS[first_word],
        stabilisation_s=keep_s,
        policy=policy,
        simulated_values=simulated_values,
    )


LIMITS = ("replicas at least", "replicas at most")


def _rows_of_limits(
    run: Run, settings: Sequence[Setting], begins: datetime, names: Sequence[str]
) -> Iterable[ScheduleRow]:
    """Yield rows with the replica limits of each pool, for a policy that has no schedule.

    ``names`` are settings in the result, such as "replicas at least". A pool has a row for each of
    them, or none if its settings lack them. All rows begin at ``begins``, the start of the window.
    """
    by_pool = values_by_pool(settings)
    plan = typed_result(run, PlannedReplicas).plan
    # The plan has a decision per pool and period. Any of them describes the pool.
    decisions = {}
    for decision in plan.decisions if plan else ():
        replica = decision.replica
        pool_name = place_of(replica.model, decision.region, replica.arrangement or "")
        decisions[pool_name] = decision
    for pool_name, decision in decisions.items():
        values = by_pool.get(pool_name, {})
        if names[-1] in values:
            for name in names:
                yield _row(decision.replica, decision.region, begins, int(values[name]))


def pool_text(pool: Pool) -> str:
    """Return the model, region and hardware of a pool as text."""
    return f"{pool.model} in {pool.region}: {pool.arrangement}"


def place_of(model: str, region: str, arrangement: str) -> str:
    """Return "MODEL in REGION, ARRANGEMENT", a pool's name in the settings of a result."""
    return f"{model} in {region}, {arrangement}"


def _unnamed_pools(
    rows: Sequence[ScheduleRow],
    ends: datetime,
    zone: ZoneInfo,
    facts: dict[Pool, Facts],
    rule: Rule | None,
    guards: dict[str, Guard],
) -> Iterable[Pool]:
    """Yield the pools in the rows, each with its steps in the local time of ``zone``.

    The replicas of a row hold until the next row of the pool, the last ones until ``ends``. With a
    ``rule``, pools have no steps. ``facts`` and ``guards`` are those of all pools.
    """
    rows_by_pool: dict[Pool, list[ScheduleRow]] = {}
    for row in rows:
        rows_by_pool.setdefault(row.pool, []).append(row)
    for pool, pool_rows in rows_by_pool.items():
        counts = [row.replicas for row in pool_rows]
        moments = [*(row.scaling_starts for row in pool_rows), ends]
        local_times = [moment.astimezone(zone).replace(tzinfo=None) for moment in moments]
        spans = zip(pairwise(local_times), counts, strict=True)
        steps = tuple(Step(begins, next_begins, count) for (begins, next_begins), count in spans)
        yield replace(
            pool,
            steps=() if rule else steps,
            min_replicas=min(counts),
            max_replicas=max(counts),
            facts=facts.get(pool, Facts()),
            guard=guards.get(place_of(pool.model, pool.region, pool.arrangement)),
        )


def _name_pools(pools: Sequence[Pool], renames: Sequence[str]) -> list[Pool]:
    """Return the pools with the names of their deployments.

    A name comes from ``renames`` (DEFAULT=NAME), else from the stored names, else it is the
    default. Raises NotFound if a rename is of an unknown deployment, PlannerError if two
    deployments of a region have the same name.
    """
    name_parts = []
    for pool in pools:
        role, market = ROLES.get(pool.role, pool.role), MARKETS.get(pool.market, "")
        name_parts.append((pool.model, pool.gpu, role, market, pool.region))
    defaults = unique_names(name_parts, [(pool.arrangement,) for pool in pools])
    new_names = dict(rename.split("=", 1) for rename in renames)
    unknown = [default for default in new_names if default not in defaults]
    if unknown:
        known = ", ".join(defaults)
        raise NotFound(f"names: there is no deployment {unknown[0]!r}. Known: {known}.")
    names = stored_names() | new_names
    named_pools = [
        replace(pool, default_name=default, name=names.get(default, default))
        for pool, default in zip(pools, defaults, strict=True)
    ]
    # Each region is its own cluster.
    uses = Counter((pool.region, pool.name) for pool in named_pools)
    for (region, name), count in uses.items():
        if count > 1:
            raise PlannerError(
                f"names: {name} is the name of two deployments of {region}. Give each its own."
            )
    return named_pools


def _chosen_pools(pools: Sequence[Pool], options: ExportOptions, run: Run) -> list[Pool]:
    """Return the pools of the region and model in ``options``; raise NotFound if there are none."""
    chosen = list(pools)
    for attribute, wanted in (("region", options.region), ("model", options.model)):
        known = dict.fromkeys(getattr(pool, attribute) for pool in chosen)
        if wanted is not None:
            chosen = [pool for pool in chosen if getattr(pool, attribute) == wanted]
        if not chosen:
            raise NotFound(
                f"The plan of run {run.pk} has nothing for {attribute} {wanted!r}. Known: "
                f"{', '.join(known) or 'none'}."
            )
    return chosen


def _repeat(
    run: Run, policy: str, result: StoredResult, requested: Repeat | Literal["auto"], now: datetime
) -> Repeat:
    """Return how the plan of a run repeats.

    ``requested`` "auto" is as the active plan of this run and policy repeats. Without one, it
    depends on the window. A window that ends after ``now`` runs once. A past window, or one of a
    trace without dates, is a pattern: daily if it is at most one day long, else weekly. Raises
    PlannerError for "once" without dates.
    """
    has_dates = result.clock == "utc"
    if requested == "once" and not has_dates:
        raise PlannerError("repeat: once needs dates, and the trace has none. Choose daily.")
    if requested != "auto":
        return requested
    active = active_plan_of_policy(run, policy)
    if active is not None:
        return cast(Repeat, active.repeat)
    window = result.window
    assert window is not None
    if has_dates and window.end > now:
        return "once"
    one_day = timedelta(minutes=MINUTES_PER_DAY)
    return "daily" if window.end - window.start <= one_day else "weekly"


def _check_zone(name: str, begins: datetime, ends: datetime) -> None:
    """Raise PlannerError if clocks in the zone ``name`` change between ``begins`` and ``ends``.

    Times after the change would be an hour off. Clocks are compared once an hour.
    """
    hours = int((ends - begins) / timedelta(hours=1)) + 1
    moments = [begins + timedelta(hours=hour) for hour in range(hours)] + [ends]
    utc_offsets = {moment.astimezone(ZoneInfo(name)).utcoffset() for moment in moments}
    if len(utc_offsets) > 1:
        raise PlannerError(
            f"timezone: clocks in {name} change within the plan's window. Export it in UTC."
        )


def _notes(
    result: StoredResult, policy: str, rule: Rule | None, *, has_guard: bool, is_part: bool
) -> Iterable[str]:
    """Yield notes on the policy for readers; ``is_part``: only some pools are exported."""
    if rule is None and not has_guard and traits_of(policy).may_exceed_plan:
        yield (
            "This file has only the schedule of the policy. To scale on load too, add a trigger "
            "by load and raise the largest count."
        )
    if traits_of(policy).group == Group.ROLES:
        yield (
            "Only replicas. A controller of your own must switch roles, such as by SGLang's "
            "/pd_role_switch, and route prompts to decode replicas."
        )
    if rule is None and traits_of(policy).reads_future:
        yield "This policy is an oracle baseline: it uses future data and cannot be deployed."
    if is_part:
        yield "Only the chosen part of the plan. It has other regions or models."
    missed = tiers_missed(result, policy)
    if missed:
        yield f"In its simulation, it missed the SLO of {', '.join(missed)}."
    if not _figures(result, policy).slo_met:  # by tier; empty without a simulation
        yield "It was not simulated, so its SLO attainment is unknown."


def _release_notes(run: Run, result: StoredResult, rule: Rule | None) -> Iterator[str]:
    """Yield a note if an earlier release computed the schedule, with times of whole periods."""
    if rule is not None:
        return
    timetable = result.recommended.timetable if result.recommended else None
    # Later releases store the period of a row beside the exact time at which scaling starts.
    has_exact_times = timetable is not None and any(row.period for row in timetable.rows)
    if not has_exact_times and "timetables" in run_tables(run):
        has_exact_times = "period" in run_table(run, "timetables").columns
    if not has_exact_times:
        yield (
            "This run is of an earlier release. Its times are the starts of periods, so new "
            "replicas serve one cold start late. Run it again."
        )


def tiers_missed(result: StoredResult, policy: str) -> list[str]:
    """Return the tiers that missed their SLO in the simulation of a policy; [] without one."""
    return [tier for tier, met in _figures(result, policy).slo_met.items() if not met]


def _figures(result: StoredResult, policy: str) -> StoredPolicy:
    """Return the figures of a policy; if it was not simulated, only whether it meets its SLO."""
    if policy in result.policies:
        return result.policies[policy]
    met = result.recommended.meets_slo if result.recommended else None
    # The recommendation says only whether all tiers are met, so the tier has no name.
    return StoredPolicy(slo_met={} if met is None else {"a tier": met})
