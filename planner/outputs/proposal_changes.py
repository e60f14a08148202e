"""Compare a proposal with the active plan or a baseline: settings, replicas and outcomes.

The base is what the proposal is compared with. The outcome of a proposal is the result of its
simulation, in its own run or in a separate one.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

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
    run, base = proposal.run, proposal.base_run
    if run is None:
        return None
    comparison = None  # of the base run and the proposed run
    if completed := _completed(base):
        names = [_base_policy(proposal), proposal.policy]
        comparison = compare_runs([completed, run], policy_per_run=names)
    results, names = compared_policies(proposal, run)  # each as [base, proposed]
    groups = _groups(proposal, run, comparison)
    simulated = [group for group in groups if group.title == REPLAYS]
    # The note of such a group says that traffic, window or limits differ.
    unfair_notes = [group.note for group in simulated if group.note]
    notes = list(comparison.notes if comparison else ())
    if comparison is not None and replay_of(proposal) is None:
        notes += [*unfair_notes, *_unfinished_replay_note(proposal)]
    notes += _simulation_note(proposal, run, results[1])
    rows = [row for group in simulated for row in group.rows]
    pools, total = _replica_changes(proposal, run)
    return ProposalComparison(
        against=_against(proposal, results, names),
        base_run=base.pk if base else None,
        settings=comparison.differences if comparison else (),
        same=comparison.same if comparison else 0,
        groups=groups,
        worse=tuple(_marked_rows(rows, WORSE)),
        better=tuple(_marked_rows(rows, BETTER)),
        saving=None if unfair_notes else saving_between(results, names),
        pools=pools,
        total=total,
        notes=tuple(notes),
    )


def _simulation_note(proposal: Proposal, run: Run, result: StoredResult) -> Iterator[str]:
    """Yield a note if ``run`` did not simulate the proposal; ``result`` has the simulation."""
    outcome_run, policy = outcome_of(proposal, run)
    if outcome_run != run:
        figures = result.policies[policy]
        attained = shares_in_time(figures.slo_attainment)
        yield (
            f"The proposed plan had no simulation. Its schedule was replayed as run "
            f"{outcome_run.pk}: SLO {attained} for ${figures.cost_usd:,.2f}."
        )
    elif policy not in result.policies:
        yield _not_simulated_note(run, proposal.outcome)


def _groups(proposal: Proposal, run: Run, comparison: RunComparison | None) -> tuple[Group, ...]:
    """Return the figures of base and proposal in groups.

    ``comparison`` is that of the base run and the proposed run, None without a base run.
    """
    results, names = compared_policies(proposal, run)
    if comparison is None or proposal.base_run is None or replay_of(proposal) is not None:
        # The traffic is the same, so that simulated figures compare; a replay has no plan.
        return tuple(replay_groups(results, names, "", ())) if names[0] else ()
    outcome_run, _ = outcome_of(proposal, run)
    if outcome_run == run:
        return comparison.groups
    return compare_runs([proposal.base_run, outcome_run], policy_per_run=names).groups


def _completed(run: Run | None) -> Run | None:
    """Return a run if it is completed, else None."""
    return run if run is not None and run.state == Run.State.COMPLETED else None


def replay_of(proposal: Proposal) -> Run | None:
    """Return the completed replay of the active plan on the proposal's traffic, or None."""
    return _completed(proposal.replay)


def compared_policies(proposal: Proposal, run: Run) -> tuple[list[StoredResult], list[str]]:
    """Return the results and the policy names to compare, each as [base, proposed].

    Without a base run, both results are that of the proposed run. The base is then the active plan
    or, if no plan is active, the baseline of the run. The base's name is "" if the run did not
    simulate it.
    """
    outcome_run, policy = outcome_of(proposal, run)
    result, base = stored_result(outcome_run), _completed(proposal.base_run)
    if (replay := replay_of(proposal)) is not None:
        return [stored_result(replay), result], [REPLAYED, policy]
    if base is not None:
        return [stored_result(base), result], [_base_policy(proposal), policy]
    if (active := proposal.base) is None:
        return [result, result], [_baseline(result, policy), policy]
    # Figures of another policy than the active plan would not match the replicas shown.
    is_known = active.run_id == run.pk and active.policy in result.policies
    return [result, result], [active.policy if is_known else "", policy]


def _against(proposal: Proposal, pair: Sequence[StoredResult], names: Sequence[str]) -> str:
    """Return the base of a proposal in words, from the results of ``compared_policies``."""
    active, base, name = proposal.base, _completed(proposal.base_run), names[0]
    if replay_of(proposal) is not None:
        number = active.number if active else ""
        return f"The active plan (run {number}), replayed on the traffic of the proposal."
    label = pair[0].labels.get(name) or name or "as planned"
    if base is not None:
        return f"Run {base.pk}, {label}."
    if active is not None:
        if name:
            return f"The active plan (run {active.number}), {label}."
        return f"Replicas of the active plan (run {active.number}). Its outcome is not known."
    if name:
        return f"{label}, on the same traffic, because no plan is active."
    return "Nothing: no plan is active, and the run has no other baseline of savings."


def outcome_of(proposal: Proposal, run: Run) -> tuple[Run, str]:
    """Return the run (its own, or a replay) and the policy that simulated a proposal."""
    if outcome := _completed(proposal.outcome):
        return outcome, REPLAYED
    return run, proposal.policy


def _not_simulated_note(run: Run, outcome_run: Run | None) -> str:
    """Return the note on a proposal without a simulation; ``outcome_run`` is to simulate it."""
    fact = f"Run {run.pk} planned and replayed nothing"
    if outcome_run is None:
        return (
            f"{fact}, so its SLO attainment is not known. Propose a comparison to "
            "see both outcomes on the same traffic."
        )
    if outcome_run.is_finished:
        reason = outcome_run.problem or outcome_run.state
        return f"{fact}, and its schedule could not be simulated: {reason} (run {outcome_run.pk})."
    return f"{fact}. Run {outcome_run.pk} replays its schedule to measure SLO attainment."


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


def saving_between(pair: Sequence[StoredResult], names: Sequence[str]) -> float | None:
    """Return the saving of a plan as a share of the cost of another, its base.

    ``pair`` are the results of base and plan, and ``names`` their policies. If SLO attainments
    differ, the saving is that at equal attainment. None if this is unknown, if the windows differ,
    or if a cost is missing.
    """
    if len(windows(pair)) > 1:
        return None
    base, proposed = (
        result.policies.get(name) or StoredPolicy()
        for result, name in zip(pair, names, strict=True)
    )
    if not base.cost_usd or proposed.cost_usd is None:
        return None
    if (equal := saving_at_equal(proposed, base)) is not None:
        return equal
    for tier, share in proposed.slo_attainment.items():
        base_share = base.slo_attainment.get(tier)
        if share is None or base_share is None or abs(share - base_share) > EQUAL_SLO:
            return None
    return 1 - proposed.cost_usd / base.cost_usd


def _marked_rows(rows: Iterable[ComparedFigure], mark: str) -> list[ComparedFigure]:
    """Return the figures with a ``mark``: SLO attainments, then the largest relative changes."""
    marked = [row for row in rows if row.marks[-1] == mark]
    return sorted(marked, key=lambda row: (row.unit != SHARE, -abs(row.changes[-1] or 0.0)))


def _replica_changes(
    proposal: Proposal, run: Run
) -> tuple[tuple[ReplicaChange, ...], ReplicaChange]:
    """Return the change of each pool's replicas, and the change of all pools together."""
    base = proposal.base
    after = _pools_by_name(run, options_of(ExportOptions, dict(proposal.options)))
    before: Mapping[str, Pool | StoredPool]
    if base is not None:
        before = {pool.name: pool for pool in pools_of(base)}
    else:
        before = _baseline_pools(proposal, run)
    total = replica_change(("", ""), "", _total(_by_minute(before)), _total(_by_minute(after)))
    least, most = total.least, total.most  # each (before, after)
    span_before, span_after = (least[0], most[0]), (least[1], most[1])
    if base is not None:
        span_before = _without_overlap(span_before, base.run, base.policy)
    span_after = _without_overlap(span_after, run, proposal.policy)
    least, most = zip(span_before, span_after, strict=True)
    return tuple(_pool_changes(before, after)), replace(total, least=least, most=most)


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
    if schedule is None or max(schedule.totals, default=None) != span[1]:
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
    total: IntArray = np.sum([np.where(c == UNKNOWN, 0, c) for c in by_pool.values()], axis=0)
    return total
