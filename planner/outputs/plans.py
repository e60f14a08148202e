"""Read the plan of a run in the form that files need.

A plan holds the replicas of each deployment over time, or the rule of a reactive policy.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Literal, cast
from zoneinfo import ZoneInfo

import polars as pl

from planner.domain.deserialise import from_json
from planner.domain.planning.figures import Decision
from planner.domain.replicas import Replica
from planner.domain.results.answer import ReplicaSchedule
from planner.domain.results.stored import (
    PlannedReplicas,
    StoredPolicy,
    StoredRecommendation,
    StoredResult,
)
from planner.domain.study import Setting
from planner.errors import NotFound, NotReady, PlannerError
from planner.models import Run
from planner.outputs.moved_work import WorkRow, moved_work
from planner.outputs.object_names import names_kept, told_apart
from planner.outputs.options import ExportOptions
from planner.outputs.plan_guard import Guard, guards_of
from planner.outputs.pool_facts import Facts, Key, facts_of
from planner.outputs.weekly_pattern import DAY, Repeat, Step, folded, repeated
from planner.policies.base import Group, Policy
from planner.policies.builtin.token_velocity import TokenVelocity
from planner.policies.choice import policy_of
from planner.policies.registry import TYPES, name_of, traits_of
from planner.selectors.active_plans import active_plan_of_policy
from planner.selectors.review import proposal_approved
from planner.selectors.runs import run_table, run_tables, stored_result, typed_result
from simulation.arrays import IntArray

KINDS = (Run.Kind.PLAN, Run.Kind.COMPARE)
MARKETS = {"owned": "", "spot": "spot"}
ROLES = {"mixed": "", "both": ""}


@dataclass(frozen=True, slots=True)
class Pool:
    """Replicas of one kind in one region, which form one deployment.

    A pool of a reactive policy has no ``steps``. Its ``least`` and ``most`` are the policy's
    limits.
    """

    name: str
    rule: str  # its default name
    model: str
    region: str
    gpu: str
    gpus: int  # GPUs per replica
    role: str  # mixed, prefill or decode
    market: str
    arrangement: str
    steps: tuple[Step, ...]  # in local time of the plan
    least: int
    most: int
    facts: Facts
    guard: Guard | None = None  # None: the steps alone decide

    @property
    def ceiling(self) -> int:
        """Return the upper limit of replicas, including those that the guard adds."""
        return max(self.most, self.guard.most if self.guard else 0, 1)

    def at(self, moment: datetime) -> int:
        """Return the replicas at a local time.

        Before and after the schedule, they are those of its first and last step.
        """
        for step in self.steps:
            if moment < step.ends:
                return step.replicas
        return self.steps[-1].replicas


@dataclass(frozen=True, slots=True)
class Rule:
    """The tuned rule of a reactive policy; ``target`` is a load per replica."""

    kind: str  # hpa or keda; of another system, the format that it is exported to
    metric: str  # memory, gpu, queue, concurrency or tokens
    target: float
    tolerance: float
    stabilisation_s: float
    policy: Policy | None = None  # the autoscaler of another system, as tuned
    # What its simulation computed, by pool ("MODEL in REGION, ARRANGEMENT") and name.
    computed: Mapping[str, Mapping[str, float]] = field(default_factory=dict)

    def found(self, pool: Pool, what: str) -> float | None:
        """Return a value that the run computed for a pool, or None."""
        place = f"{pool.model} in {pool.region}, {pool.arrangement}"
        return self.computed.get(place, {}).get(what)


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
    work: tuple[WorkRow, ...] = ()  # when moved deferrable work is done

    def local(self, moment: datetime) -> datetime:
        """Convert a moment to local time in the plan's zone, as steps use it."""
        return moment.astimezone(ZoneInfo(self.zone)).replace(tzinfo=None)

    def counts(self, pool: Pool) -> IntArray:
        """Return replicas by minute of the day, or by minute of the week.

        Plans that run once use a week.
        """
        if self.repeat == "once":
            return folded(pool.steps, "weekly")
        return repeated(pool.steps, self.repeat)

    @property
    def guarded(self) -> bool:
        """Return whether a guard adds replicas to any pool."""
        return any(pool.guard for pool in self.pools)

    def floor(self, pool: Pool) -> int:
        """Return the smallest number of replicas of the plan."""
        if self.rule or self.repeat == "once":
            return pool.least
        return int(self.counts(pool).min())

    def by_region(self) -> list[tuple[str, list[Pool]]]:
        """Return the pools grouped by region; each region is its own cluster."""
        regions = dict.fromkeys(pool.region for pool in self.pools)
        return [
            (region, [pool for pool in self.pools if pool.region == region]) for region in regions
        ]


def plan_of(run: Run, options: ExportOptions, now: datetime) -> Plan:
    """Return the plan of a run.

    Raises NotReady if the run has no plan. Raises NotFound if an option names something that the
    plan does not have.
    """
    result = stored_result(run)
    if run.kind not in KINDS:
        raise NotReady(
            f"Run {run.pk} is not a plan ({run.get_kind_display().lower()}). Plan or compare its "
            "scenario, and export that run."
        )
    window = result.window
    assert window is not None  # runs of these kinds have one
    begins, ends = window.start, window.end
    policy, label, rows, rule = _policy_of(run, result, begins, options.policy)
    if not rows:
        raise NotReady(
            f"{label} has no replicas in run {run.pk}, or an earlier release did not store them. "
            "Run it again, or name another policy."
        )
    active = active_plan_of_policy(run, policy) if options.repeat == "auto" else None
    repeat = (
        cast(Repeat, active.repeat)
        if active
        else _repeat(options.repeat, begins, ends, now, result.clock)
    )
    zone = ZoneInfo(options.timezone)
    _check_zone(zone, min(row[1] for row in rows), ends, options.timezone)
    facts = facts_of(run)
    guards = {} if rule else guards_of(_figures(result, policy).settings)
    pools = _name_pools(list(_pools(rows, ends, zone, facts, rule, guards)), options.names)
    chosen = tuple(_chosen_pools(pools, options, run))
    return Plan(
        run=run.pk,
        scenario=result.scenario or run.name,
        policy=policy,
        label=label,
        computed=run.finished_at,
        begins=begins,
        ends=ends,
        clock=result.clock,
        repeat=repeat,
        zone=options.timezone,
        pools=chosen,
        rule=rule,
        notes=(
            *_release_notes(run, result, rule),
            *_notes(result, policy, rule, guards, len(chosen) < len(pools)),
        ),
        proposal=approved.pk if (approved := proposal_approved(run.pk, policy)) else None,
        work=() if rule else moved_work(result.plan.shift if result.plan else None, ends, policy),
    )


Row = tuple[Key, datetime, int]  # pool, time of the request, replicas


def _policy_of(
    run: Run, result: StoredResult, begins: datetime, policy_asked: str | None
) -> tuple[str, str, list[Row], Rule | None]:
    """Return the policy to export: its name, label, schedule as rows, and reactive rule.

    ``policy_asked`` names it; None: the recommended one. A policy with a schedule has no rule. For
    a rule, the rows are the replica limits.
    """
    recommended = result.recommended or StoredRecommendation()
    policies = result.policies
    policy = policy_asked or recommended.policy
    if not policy:
        raise NotReady(
            f"Run {run.pk} recommends no policy, because all use future data. Name one with policy."
        )
    if policy not in policies and policy != recommended.policy:
        there_are = ", ".join(policies) or recommended.policy
        raise NotFound(f"There is no policy {policy!r} in run {run.pk}. Known: {there_are}.")
    label = (policies.get(policy) or recommended).label or policy
    timetable = recommended.timetable if policy == recommended.policy else None
    # A timetable marked ``by_itself`` holds only the first replicas of a rule.
    if timetable and not timetable.by_itself:
        return policy, label, _rows_of_timetable(timetable), None
    if "timetables" in run_tables(run):
        table = run_table(run, "timetables")
        rows = [
            _row(from_json(Replica, row), row["region"], row["begins"], row["replicas"])
            for row in table.filter(pl.col("policy") == policy).to_dicts()
        ]
        if rows:
            return policy, label, rows, None
    settings = _figures(result, policy).settings
    rule = _rule(policy, settings)
    if rule is None and traits_of(policy).group == Group.ROLES:
        return (
            policy,
            label,
            list(_rows_of_limits(run, settings, begins, ("replicas at the start",))),
            None,
        )
    if rule is None:
        raise NotReady(
            f"{label} has no schedule and no target of a Kubernetes autoscaler. "
            f"Name another policy with a plan or a static fleet (run {run.pk} has: "
            f"{', '.join(policies)})."
        )
    return policy, label, list(_rows_of_limits(run, settings, begins, LIMITS)), rule


def _rows_of_timetable(timetable: ReplicaSchedule) -> list[Row]:
    """Return the schedule of the recommended policy as rows."""
    return [
        _row(pool.replica, pool.region, row.begins, count)
        for row in timetable.rows
        for pool, count in zip(timetable.pools, row.replicas, strict=True)
    ]


def _row(replica: Replica, region: str, begins: datetime, replicas: int) -> Row:
    """Return (pool, time of the request in UTC, replicas)."""
    # Results of earlier releases have no market and no arrangement.
    market, arrangement = replica.market or "", replica.arrangement or ""
    key = (
        replica.model, region, replica.gpu, replica.tp, replica.role or "", market, arrangement,
    )  # fmt: skip
    return key, begins.astimezone(UTC), replicas


def _rule(policy: str, settings: Sequence[Setting]) -> Rule | None:
    """Return the rule that a policy's settings describe; None if it is no reactive policy."""
    if traits_of(policy).group in (Group.OPPONENT, Group.ROLES):
        tuned = policy_of_settings(name_of(policy), settings)
        fixed = isinstance(tuned, TokenVelocity) and not tuned.changes_counts
        return None if fixed else rule_of(tuned, settings)
    values = {setting.what: setting.value for setting in settings if not setting.where}
    if not {"metric", "target", "tolerance"} <= values.keys() or isinstance(values["target"], str):
        return None
    return Rule(
        kind="keda" if "polling_s" in values else "hpa",
        metric=str(values["metric"]),
        target=float(values["target"]),
        tolerance=float(values["tolerance"]),
        stabilisation_s=float(values.get("stabilisation_s", 0.0)),
    )


def policy_of_settings(name: str, settings: Sequence[Setting]) -> Policy:
    """Return the policy with the parameter values that a result lists for it."""
    parameters: dict[str, Any] = {}
    for setting in settings:
        first, *inner = setting.what.split(".")
        if setting.where or first not in TYPES[name].model_fields:
            continue
        if not inner:
            parameters[first] = setting.value
        elif len(inner) == 1:
            parameters.setdefault(first, {})[inner[0]] = setting.value
        else:  # a row of a list; its lists are texts
            rows = parameters.setdefault(first, [])
            if int(inner[0]) == len(rows):
                rows.append({})
            value = setting.value
            rows[-1][inner[1]] = str(value).split() if inner[1] == "days" else value
    return policy_of(name, **parameters)


def rule_of(policy: Policy, settings: Sequence[Setting]) -> Rule:
    """Return the tuned rule of a policy that models another system's autoscaler."""
    computed: dict[str, dict[str, float]] = {}
    for setting in settings:
        if setting.where and isinstance(setting.value, int | float):
            computed.setdefault(setting.where, {})[setting.what] = float(setting.value)
    kinds = {"epp": "keda", "dynamo": "dynamo", "aibrix": "aibrix", "token": "keda"}
    kind = kinds[policy.name.split("-")[0]]
    # Metric and target are of rules on one metric, which these policies do not have.
    kept_s = policy.keep_s if isinstance(policy, TokenVelocity) else 0.0
    return Rule(kind, "", 0.0, 0.0, kept_s, policy=policy, computed=computed)


LIMITS = ("replicas at least", "replicas at most")


def _rows_of_limits(
    run: Run, settings: Sequence[Setting], begins: datetime, names: Sequence[str]
) -> Iterable[Row]:
    """Yield the replicas of pools whose policy has no schedule, one row for each of ``names``.

    These are settings in the result, such as "replicas at least". The rows begin with the window.
    """
    plan = typed_result(run, PlannedReplicas).plan
    decisions = {_pool_name(row): row for row in (plan.decisions if plan else ())}
    for place, decision in decisions.items():
        limits = {setting.what: setting.value for setting in settings if setting.where == place}
        if names[-1] in limits:
            for name in names:
                yield _row(decision.replica, decision.region, begins, int(limits[name]))


def _pool_name(decision: Decision) -> str:
    """Return the name of a pool in the settings of a result."""
    replica = decision.replica
    return f"{replica.model} in {decision.region}, {replica.arrangement or ''}"


def _pools(
    rows: Sequence[Row],
    ends: datetime,
    zone: ZoneInfo,
    facts: dict[Key, Facts],
    rule: Rule | None,
    guards: dict[str, Guard],
) -> Iterable[Pool]:
    """Yield the pools in the rows, each with its steps in local time.

    Each count holds until the pool's next row, the last until ``ends``. With a ``rule``, replicas
    follow it, so pools have no steps.
    """
    for key in dict.fromkeys(key for key, _, _ in rows):
        changes = [(begins, count) for other, begins, count in rows if other == key]
        edges = [*(begins for begins, _ in changes), ends]
        steps = tuple(
            Step(_to_local(begins, zone), _to_local(until, zone), count)
            for (begins, count), until in zip(changes, edges[1:], strict=True)
        )
        counts = [count for _, count in changes]
        model, region, gpu, gpus, role, market, arrangement = key
        yield Pool(
            name="",
            rule="",
            model=model,
            region=region,
            gpu=gpu,
            gpus=int(gpus),
            role=role,
            market=market,
            arrangement=arrangement,
            steps=() if rule else steps,
            least=min(counts),
            most=max(counts),
            facts=facts.get(key, Facts()),
            guard=guards.get(f"{model} in {region}, {arrangement}"),
        )


def _to_local(moment: datetime, zone: ZoneInfo) -> datetime:
    """Convert a moment to local time."""
    return moment.astimezone(zone).replace(tzinfo=None)


def _name_pools(pools: Sequence[Pool], pairs: Sequence[str]) -> list[Pool]:
    """Return the pools with deployment names.

    Names come from the options of this export, else from stored names, else from the defaults.
    Raises NotFound if the options name an unknown deployment. Raises PlannerError if two
    deployments of a region would share a name.
    """
    short = [
        (pool.model, pool.gpu, ROLES.get(pool.role, pool.role), MARKETS.get(pool.market, ""),
         pool.region)
        for pool in pools
    ]  # fmt: skip
    by_rule = told_apart(short, [(pool.arrangement,) for pool in pools])
    mapped = dict(pair.split("=", 1) for pair in pairs)
    names_before = names_kept()
    if unknown := [name for name in mapped if name not in by_rule]:
        raise NotFound(
            f"names: there is no deployment {unknown[0]!r}. Known: {', '.join(by_rule)}."
        )
    named = [
        replace(pool, rule=rule, name=mapped.get(rule) or names_before.get(rule, rule))
        for pool, rule in zip(pools, by_rule, strict=True)
    ]
    seen: set[tuple[str, str]] = set()
    for pool in named:  # each region is its own cluster
        if (pool.region, pool.name) in seen:
            raise PlannerError(
                f"names: {pool.name} is the name of two deployments of {pool.region}. Give each "
                "its own."
            )
        seen.add((pool.region, pool.name))
    return named


def _chosen_pools(pools: Sequence[Pool], options: ExportOptions, run: Run) -> list[Pool]:
    """Return the pools of the region and the model that the options choose."""
    left = list(pools)
    for what, chosen in (("region", options.region), ("model", options.model)):
        there_are = dict.fromkeys(getattr(pool, what) for pool in left)
        left = [pool for pool in left if chosen is None or getattr(pool, what) == chosen]
        if not left:
            raise NotFound(
                f"The plan of run {run.pk} has nothing for {what} {chosen!r}. Known: "
                f"{', '.join(there_are) or 'none'}."
            )
    return left


def _repeat(
    repeat: Repeat | Literal["auto"], begins: datetime, ends: datetime, now: datetime, clock: str
) -> Repeat:
    """Return how the plan repeats; "auto" decides by the window.

    A window that ends in the future runs once. A past window is a pattern: daily if it is at most
    one day long, else weekly.
    """
    if repeat != "auto":
        return repeat
    if clock == "utc" and ends > now:
        return "once"
    return "daily" if ends - begins <= timedelta(minutes=DAY) else "weekly"


def _check_zone(zone: ZoneInfo, begins: datetime, ends: datetime, name: str) -> None:
    """Raise PlannerError if daylight saving time begins or ends within the window.

    On that day a schedule in local time would differ from the plan.
    """
    hours = int((ends - begins) / timedelta(hours=1)) + 1
    moments = [begins + timedelta(hours=hour) for hour in range(hours)] + [ends]
    if len({moment.astimezone(zone).utcoffset() for moment in moments}) > 1:
        raise PlannerError(
            f"timezone: clocks in {name} change within the plan's window. Export it in UTC."
        )


def _notes(
    result: StoredResult, policy: str, rule: Rule | None, guards: dict[str, Guard], part: bool
) -> Iterable[str]:
    """Yield notes on the policy for the reader of an exported file.

    ``rule`` is its reactive rule, if it has one. ``part``: only some pools are exported.
    """
    if rule is None and not guards and traits_of(policy).beyond:
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
    if part:
        yield "Only the chosen part of the plan. It has other regions or models."
    if missed := tiers_missed(result, policy):
        yield f"In its simulation, it missed the SLO of {', '.join(missed)}."
    if not _figures(result, policy).slo_met:
        yield "It was not simulated, so its SLO attainment is unknown."


def _release_notes(run: Run, result: StoredResult, rule: Rule | None) -> Iterator[str]:
    """Yield a note if the times of a schedule are starts of periods, as in earlier releases."""
    timetable = result.recommended and result.recommended.timetable
    # Later releases store the period beside the exact time of a request.
    exact = any(row.period for row in (timetable.rows if timetable else ()))
    if not exact and "timetables" in run_tables(run):
        exact = "period" in run_table(run, "timetables").columns
    if rule is None and not exact:
        yield (
            "This run is of an earlier release. Its times are the starts of periods, so new "
            "replicas serve one cold start late. Run it again."
        )


def tiers_missed(result: StoredResult, policy: str) -> list[str]:
    """Return the tiers below their SLO target in the replay; empty if there was no replay."""
    return [tier for tier, met in _figures(result, policy).slo_met.items() if not met]


def _figures(result: StoredResult, policy: str) -> StoredPolicy:
    """Return the figures of a policy; without a simulation, only whether it meets its SLO."""
    if policy in result.policies:
        return result.policies[policy]
    met = result.recommended.meets_slo if result.recommended else None
    # The recommendation says only whether all tiers are met, so the tier has no name.
    return StoredPolicy(slo_met={} if met is None else {"a tier": met})
