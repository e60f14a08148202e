"""Compare a proposal with the active plan or a baseline: settings, replicas and outcomes.

The base is what the proposal is compared with. The outcome of a proposal is the result of its
simulation, in its own run or in a separate one.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from django.utils import timezone

from planner.domain.columns import SHARE
from planner.domain.options import options_of
from planner.domain.replay.equal_attainment import EQUAL_SLO
from planner.domain.reports.schedule import schedule_of
from planner.domain.results.stored import StoredPolicy, StoredResult
from planner.domain.serialise import shares_in_time
from planner.errors import PlannerError
from planner.models import Proposal, Run
from planner.outputs.options import ExportOptions
from planner.outputs.plan_difference import (
    PoolKey,
    ReplicaChange,
    minutes_from_start,
    pool_title,
    replica_change,
)
from planner.outputs.plans import plan_of
from planner.outputs.pools import Pool
from planner.outputs.reports import tables_of
from planner.outputs.stored_pools import StoredPool, pools_of
from planner.outputs.weekly_pattern import UNKNOWN
from planner.policies.registry import traits_of
from planner.selectors.run_comparison import RunComparison, compare_runs, windows
from planner.selectors.run_comparison_figures import (
    BETTER,
    WORSE,
    ComparedFigure,
    Group,
    Setting,
    replay_groups,
)
from planner.selectors.runs import saving_at_equal, stored_result
from simulation.arrays import IntArray

REPLAYS = "As simulated"  # title of the group of figures that judge a proposal
REPLAYED = "periodic"  # policy that replays a stored schedule: replicas by time of day


@dataclass(frozen=True, slots=True)
class ProposalComparison:
    """The comparison of a proposal with its base: the active plan, another run or a baseline."""

    against: str  # the base in words
    base_run: int | None
    settings: tuple[Setting, ...]  # settings that differ
    same: int  # number of equal settings
    groups: tuple[Group, ...]  # figures as (base, proposed)
    worse: tuple[ComparedFigure, ...]  # figures that get worse, the largest change first
    better: tuple[ComparedFigure, ...]
    saving: float | None  # share of the base cost at equal SLO attainment; null: unknown
    pools: tuple[ReplicaChange, ...]
    total: ReplicaChange  # sum of all pools
    notes: tuple[str, ...]


def proposed_of(proposal: Proposal) -> ProposalComparison | None:
    """Return what a proposal changes; None if its run was removed.

    The proposal is compared with the first of these that exists: a replay of the active plan on the
    same traffic, the base run, the active plan in the proposed run. If no plan is active, it is
    compared with the baseline of its run.
    """
    run, base_run = proposal.run, proposal.base_run
    if run is None:
        return None
    completed_base = _completed(base_run)
    comparison = None  # of the completed base run and the proposed run
    if completed_base is not None:
        policies = [_base_policy(proposal), proposal.policy]
        comparison = compare_runs([completed_base, run], policy_per_run=policies)
    base, proposed = compared_policies(proposal, run)
    groups = _groups(proposal, run, comparison)
    simulated = [group for group in groups if group.title == REPLAYS]
    # Such a group has a note if traffic, window or limits differ. Then no saving is stated.
    unfair_notes = [group.note for group in simulated if group.note]
    notes = list(comparison.notes if comparison else ())
    if comparison is not None and replay_of(proposal) is None:
        notes += [*unfair_notes, *_unfinished_replay_note(proposal)]
    notes += _simulation_note(proposal, run)
    figures = [figure for group in simulated for figure in group.rows]
    pools, total = _replica_changes(proposal, run)
    return ProposalComparison(
        against=_base_in_words(proposal, base),
        base_run=base_run.pk if base_run else None,
        settings=comparison.differences if comparison else (),
        same=comparison.same if comparison else 0,
        groups=groups,
        worse=tuple(_figures_with_mark(figures, WORSE)),
        better=tuple(_figures_with_mark(figures, BETTER)),
        saving=None if unfair_notes else saving_between(base, proposed),
        pools=pools,
        total=total,
        notes=tuple(notes),
    )


def _simulation_note(proposal: Proposal, run: Run) -> Iterator[str]:
    """Yield a note if ``run``, the run of the proposal, did not simulate the proposed policy."""
    simulated_run, policy = outcome_of(proposal, run)
    result = stored_result(simulated_run)
    if simulated_run == run and policy in result.policies:
        return
    fact = f"Run {run.pk} planned and replayed nothing"
    replay = proposal.outcome  # of the proposed schedule
    if simulated_run != run:
        figures = result.policies[policy]
        attained = shares_in_time(figures.slo_attainment)
        yield (
            f"The proposed plan had no simulation. Its schedule was replayed as run "
            f"{simulated_run.pk}: SLO {attained} for ${figures.cost_usd:,.2f}."
        )
    elif replay is None:
        yield (
            f"{fact}, so its SLO attainment is not known. Propose a comparison to "
            "see both outcomes on the same traffic."
        )
    elif replay.is_finished:
        reason = replay.problem or replay.state
        yield f"{fact}, and its schedule could not be simulated: {reason} (run {replay.pk})."
    else:
        yield f"{fact}. Run {replay.pk} replays its schedule to measure SLO attainment."


def _groups(proposal: Proposal, run: Run, comparison: RunComparison | None) -> tuple[Group, ...]:
    """Return the compared figures of base and proposal, in groups; () if the base has none.

    ``comparison`` is that of the base run and the proposed run, None without a base run. It counts
    unless the active plan was replayed, or another run simulated the proposed schedule.
    """
    base, proposed = compared_policies(proposal, run)
    policies = [base.policy, proposed.policy]
    if comparison is None or proposal.base_run is None or replay_of(proposal) is not None:
        if not base.policy:
            return ()
        # Only simulated figures, as a replay has no plan. They are ranked: the traffic is the same.
        results = [base.result, proposed.result]
        return tuple(replay_groups(results, policies, not_ranked="", differences=()))
    simulated_run, _ = outcome_of(proposal, run)
    if simulated_run == run:
        return comparison.groups
    return compare_runs([proposal.base_run, simulated_run], policy_per_run=policies).groups


def _completed(run: Run | None) -> Run | None:
    """Return a run if it is completed, else None."""
    return run if run is not None and run.state == Run.State.COMPLETED else None


def replay_of(proposal: Proposal) -> Run | None:
    """Return the completed replay of the active plan on the proposal's traffic, or None."""
    return _completed(proposal.replay)


class PolicyOfResult(NamedTuple):
    """A policy in the result of a run."""

    result: StoredResult
    policy: str  # "" if the run did not simulate it


def compared_policies(proposal: Proposal, run: Run) -> tuple[PolicyOfResult, PolicyOfResult]:
    """Return (base, proposed): the policies that are compared, each in the result of a run.

    The base is the first of these that exists: a replay of the active plan, the base run, the
    active plan, the baseline of savings. The last two are looked up in the result of the proposal.
    """
    simulated_run, policy = outcome_of(proposal, run)
    result = stored_result(simulated_run)
    proposed = PolicyOfResult(result, policy)
    replay, base_run, active = replay_of(proposal), _completed(proposal.base_run), proposal.base
    if replay is not None:
        return PolicyOfResult(stored_result(replay), REPLAYED), proposed
    if base_run is not None:
        return PolicyOfResult(stored_result(base_run), _base_policy(proposal)), proposed
    if active is None:
        return PolicyOfResult(result, _baseline(result, policy)), proposed
    # Figures of another policy than the active plan would not match the replicas shown.
    is_simulated = active.run_id == run.pk and active.policy in result.policies
    return PolicyOfResult(result, active.policy if is_simulated else ""), proposed


def _base_in_words(proposal: Proposal, base: PolicyOfResult) -> str:
    """Return what a proposal is compared with in words; ``base`` is of ``compared_policies``."""
    active, base_run = proposal.base, _completed(proposal.base_run)
    if replay_of(proposal) is not None:
        number = active.number if active else ""
        return f"The active plan (run {number}), replayed on the traffic of the proposal."
    label = base.result.labels.get(base.policy) or base.policy or "as planned"
    if base_run is not None:
        return f"Run {base_run.pk}, {label}."
    if active is not None:
        if base.policy:
            return f"The active plan (run {active.number}), {label}."
        return f"Replicas of the active plan (run {active.number}). Its outcome is not known."
    if base.policy:
        return f"{label}, on the same traffic, because no plan is active."
    return "Nothing: no plan is active, and the run has no other baseline of savings."


def outcome_of(proposal: Proposal, run: Run) -> tuple[Run, str]:
    """Return (run, policy) that simulated a proposal.

    This is the completed replay of its schedule, or else its own ``run`` and policy.
    """
    replay = _completed(proposal.outcome)
    if replay is not None:
        return replay, REPLAYED
    return run, proposal.policy


def _unfinished_replay_note(proposal: Proposal) -> Iterator[str]:
    """Yield a note if the replay of the active plan failed or is not complete."""
    replay = proposal.replay  # of a replay that succeeded, the figures are shown instead
    if replay is None:
        return
    if replay.is_finished:
        yield (
            "The active plan could not be replayed on this traffic: "
            f"{replay.problem or replay.state} (run {replay.pk})."
        )
    else:
        yield (
            f"The active plan is being replayed on the proposal's traffic, as run "
            f"{replay.pk}. Until it ends, the figures are from each plan's run."
        )


def _base_policy(proposal: Proposal) -> str:
    """Return the active plan's policy if it is of the base run, else the recommended policy."""
    base, run = proposal.base, proposal.base_run
    if base is not None and run is not None and base.run_id == run.pk:
        return base.policy
    return stored_result(run).default_policy if run else ""


def _baseline(result: StoredResult, policy: str) -> str:
    """Return the baseline of a result's savings; "" if it is ``policy`` or uses future data."""
    name = result.baseline
    can_compare = name in result.policies and name != policy and not traits_of(name).hindsight
    return name if can_compare else ""


def saving_between(base: PolicyOfResult, proposed: PolicyOfResult) -> float | None:
    """Return the saving of a proposed policy as a share of the cost of ``base``.

    If SLO attainments differ, the saving is that at equal attainment. None if this is unknown, if
    the windows differ, or if a cost is missing.
    """
    if len(windows([base.result, proposed.result])) > 1:
        return None
    old = base.result.policies.get(base.policy) or StoredPolicy()
    new = proposed.result.policies.get(proposed.policy) or StoredPolicy()
    if not old.cost_usd or new.cost_usd is None:
        return None
    at_equal_slo = saving_at_equal(new, old)
    if at_equal_slo is not None:
        return at_equal_slo
    for tier, attainment in new.slo_attainment.items():
        old_attainment = old.slo_attainment.get(tier)
        if attainment is None or old_attainment is None:
            return None
        if abs(attainment - old_attainment) > EQUAL_SLO:
            return None
    return 1 - new.cost_usd / old.cost_usd


def _figures_with_mark(figures: Iterable[ComparedFigure], mark: str) -> list[ComparedFigure]:
    """Return the figures whose change has the ``mark`` BETTER or WORSE.

    SLO attainments come first, then the largest relative changes.
    """

    def order(figure: ComparedFigure) -> tuple[bool, float]:
        return figure.unit != SHARE, -abs(figure.changes[-1] or 0.0)

    # Marks and changes have an item per compared policy. The proposed one is the last.
    return sorted((figure for figure in figures if figure.marks[-1] == mark), key=order)


def _replica_changes(
    proposal: Proposal, run: Run
) -> tuple[tuple[ReplicaChange, ...], ReplicaChange]:
    """Return the change of each pool's replicas, and the change of all pools together.

    The change is that from the active plan, else from the baseline of the run.
    """
    base = proposal.base
    after = _pools_by_name(run, options_of(ExportOptions, dict(proposal.options)))
    before: Mapping[str, Pool | StoredPool]
    if base is not None:
        before = {pool.name: pool for pool in pools_of(base)}
    else:
        before = _baseline_pools(proposal, run)
    total = replica_change(("", ""), "", _total(_by_minute(before)), _total(_by_minute(after)))
    # Spans are (least, most) of all pools together.
    span_before = total.least[0], total.most[0]
    if base is not None:
        span_before = _without_overlap(span_before, base.run, base.policy)
    span_after = _without_overlap((total.least[1], total.most[1]), run, proposal.policy)
    least, most = zip(span_before, span_after, strict=True)  # each is (before, after)
    total = replace(total, least=least, most=most)
    return tuple(_pool_changes(before, after)), total


def _pool_changes(
    before: Mapping[str, Pool | StoredPool], after: Mapping[str, Pool]
) -> Iterator[ReplicaChange]:
    """Yield the change of the replicas of each pool, by the pools of both plans by name."""
    counts_before, counts_after = _by_minute(before), _by_minute(after)
    pools = {**after, **before, **after}  # in the order of the plan ``after``
    titles = Counter(map(pool_title, pools.values()))
    for pool in pools.values():
        title = pool_title(pool)
        if titles[title] > 1:  # such as on several GPU types
            title = f"{title}, {pool.arrangement or pool.gpu}"
        key = pool.name, pool.region
        yield replica_change(key, title, counts_before.get(key), counts_after.get(key))


def _without_overlap(
    span: tuple[int | None, int | None], run: Run | None, policy: str
) -> tuple[int | None, int | None]:
    """Return the (least, most) replicas of a schedule, without overlaps during cold starts.

    ``span`` is (least, most) with overlaps: both the replicas of a period, and those that start for
    the next one. It is returned unchanged if the schedule of ``policy`` in ``run`` has another
    maximum, so that ``span`` is only of a part of it.
    """
    schedule = schedule_of(tables_of(run), policy) if run is not None else None
    _, most = span
    if schedule is None or max(schedule.totals, default=None) != most:
        return span
    return schedule.span or span


def _pools_by_name(run: Run, options: ExportOptions) -> dict[str, Pool]:
    """Return the pools of a run's plan, as exported with ``options``, by name."""
    plan = plan_of(run, options, timezone.now())
    return {pool.name: pool for pool in plan.pools}


def _baseline_pools(proposal: Proposal, run: Run) -> dict[str, Pool]:
    """Return the pools of the baseline of a run by name; {} if it has no schedule."""
    baseline = _baseline(stored_result(run), proposal.policy)
    if not baseline:
        return {}
    options = options_of(ExportOptions, {**proposal.options, "policy": baseline})
    try:
        return _pools_by_name(run, options)
    except PlannerError:
        return {}


def _by_minute(pools: Mapping[str, Pool | StoredPool]) -> dict[PoolKey, IntArray]:
    """Return the replicas of a plan's pools by minute, from the start of the plan."""
    return minutes_from_start({(pool.name, pool.region): pool.steps for pool in pools.values()})


def _total(by_pool: Mapping[PoolKey, IntArray]) -> IntArray | None:
    """Return the replicas of all pools together, ``[minute]``; None without pools."""
    if not by_pool:
        return None
    # A minute that the plan does not cover counts as 0 replicas.
    known = [np.where(counts == UNKNOWN, 0, counts) for counts in by_pool.values()]
    total: IntArray = np.sum(known, axis=0)
    return total
