"""Replay of one of several equal cells of a fleet, for more requests than can be replayed.

The fleet is cut into ``cells`` equal parts. Each gets an equal share of the instances and a random
share of the requests. One cell is replayed and represents all. The result is feasible: a fleet that
is operated in such cells meets the SLO equally well. The error is conservative, since small pools
need more than large ones, and instances are added ``cells`` at a time.

The policy is that of the whole fleet. It sees the sum over all cells. Its targets are divided by
``cells`` and rounded up, so that it never gets fewer instances than requested.
"""

from collections.abc import Callable
from dataclasses import fields, replace
from functools import partial
from typing import TypeVar

import numpy as np

from simulation.arrays import IntArray
from simulation.carry_over import own_work_after, without_carried
from simulation.early_stop import LateCounter
from simulation.engine.run import simulate
from simulation.fleet import Fleet, Pool
from simulation.policies.wrappers.wrapper import Wrapper
from simulation.policy import Actions, Observation, ScalingPolicy, Signals, actions_of
from simulation.results import AfterWindow, PoolSeries, PoolTotals, SimulationResult
from simulation.trace import PrefixBlocks, Trace, join_traces
from simulation.trace_replay import (
    Replayed,
    count_by_tier,
    is_long,
    simulate_briefly,
    simulate_long_trace,
)

T = TypeVar("T")

# Fields of an observation and of its signals that add up over cells; others are means and shares.
OBSERVED_TOTALS = (
    "ready", "starting", "draining", "waiting", "input_tps", "deferred", "spare", "asked_tps",
)  # fmt: skip
SIGNAL_TOTALS = ("prefill_tps", "decode_tps", "evicted_tps", "preemptions", "failed")
# Fields of a series that do not add up over cells, and of the tables of a result that do.
MEANS = ("interval_s", "utilisation", "batch", "sm_activity", "hit_rate")
SERIES_TOTALS = tuple(field.name for field in fields(PoolSeries) if field.name not in MEANS)
TOTALS = tuple(field.name for field in fields(PoolTotals))
AFTER_TOTALS = tuple(field.name for field in fields(AfterWindow) if field.name != "until_s")


def per_cell(counts: IntArray, cells: int) -> IntArray:
    """Return the instances of each cell, rounded up, for ``counts [pools]`` of the fleet."""
    return np.asarray(-(-np.asarray(counts) // cells))


def simulate_cell(
    trace: Trace,
    fleet: Fleet,
    policy: ScalingPolicy,
    *,
    cells: int,
    seed: int = 0,
    duration_s: float | None = None,
    interval_s: float = 60.0,
    progress: Callable[[float], None] | None = None,
    watch: LateCounter | None = None,
    keep: bool = False,
    brief: bool = False,
    carried: Trace | None = None,
) -> Replayed:
    """Replay one of ``cells`` equal cells and return its result scaled to the whole fleet.

    ``trace`` has the requests of one cell, and ``fleet`` is the whole fleet. A long trace is
    replayed as a stream, unless ``keep`` is set to get every request in the result. If ``brief``,
    requests are only counted, where possible. For the other arguments see ``simulate``.

    ``carried`` are the requests of one cell that are in flight as the window begins
    (``carry_over.in_flight``). They are served, but are not in the result. Streams and traces with
    prompt blocks ignore them. ``watch`` counts late requests and may end the replay.
    """
    cell_fleet = fleet
    if cells > 1:
        cell_fleet = replace(fleet, pools=tuple(_cell_pool(pool, cells) for pool in fleet.pools))
    is_stream = is_long(len(trace)) and not keep
    if is_stream or isinstance(trace.blocks, PrefixBlocks) or not len(trace):
        carried = None
    carried_count = 0 if carried is None else len(carried)
    if watch is not None:
        watch.expect(count_by_tier(trace, fleet), carried_count)
    # Three ways to replay: with a log of requests, as a stream, or counting requests only.
    replay: Callable[..., Replayed] = simulate
    if is_stream:
        replay = simulate_long_trace
    elif brief and trace.session is None:
        replay = partial(simulate_briefly, carried=carried_count)
    result = replay(
        trace if carried is None else join_traces([carried, trace]),
        cell_fleet,
        policy if cells == 1 else _FleetPolicyInCell(policy, fleet, cells),
        seed=seed,
        duration_s=duration_s,
        interval_s=interval_s,
        progress=progress,
        watch=watch,
    )
    # A result of counts has left out the carried requests already, except in work after the window.
    if carried is not None and isinstance(result, SimulationResult):
        result = without_carried(result, carried)
    elif carried is not None:
        result = replace(result, after=own_work_after(result, carried))
    return result if cells == 1 else _scale_to_fleet(result, fleet, cells)


def _cell_pool(pool: Pool, cells: int) -> Pool:
    """Return ``pool`` with the instances and the link bandwidth of one cell."""

    def rounded_up(count: int) -> int:
        """Return the count of one cell, rounded up."""
        return -(-count // cells)

    start, link = pool.start_up, pool.link
    if start is not None:
        hosts = None if start.warm_hosts is None else rounded_up(start.warm_hosts)
        start = replace(start, lent=start.lent // cells, warm_hosts=hosts)
    if link is not None:
        link = replace(link, shared_bytes_s=link.shared_bytes_s / cells)
    return replace(
        pool,
        initial=rounded_up(pool.initial),
        minimum=rounded_up(pool.minimum),
        # Rounded down, so that all cells together stay within the pool's maximum.
        maximum=max(rounded_up(pool.minimum), pool.maximum // cells),
        today=None if pool.today is None else rounded_up(pool.today),
        lost=pool.lost // cells,  # fewer than one per cell are not simulated
        start_up=start,
        link=link,
    )


class _FleetPolicyInCell(Wrapper):
    """Adapter that shows the whole fleet to a policy and applies its actions to one cell."""

    def __init__(self, policy: ScalingPolicy, fleet: Fleet, cells: int) -> None:
        super().__init__(policy)
        self._fleet, self._cells = fleet, cells

    def reset(self, fleet: Fleet) -> IntArray:
        return per_cell(self._policy.reset(self._fleet), self._cells)

    def decide(self, observation: Observation) -> Actions:
        """Show the policy the whole fleet, and return its actions for one cell."""
        cells = self._cells
        whole_fleet = _multiply_fields(observation, cells, OBSERVED_TOTALS)
        if whole_fleet.signals is not None:
            signals: Signals = _multiply_fields(whole_fleet.signals, cells, SIGNAL_TOTALS)
            whole_fleet = replace(whole_fleet, signals=signals)
        actions = actions_of(self._policy.decide(whole_fleet))
        keep_lent, moves, release_tokens = actions.keep_lent, actions.moves, actions.release_tokens
        return replace(
            actions,
            targets=per_cell(actions.targets, cells),
            keep_lent=None if keep_lent is None else per_cell(keep_lent, cells),
            moves=None if moves is None else (moves + cells // 2) // cells,  # to the nearest number
            release_tokens=None if release_tokens is None else release_tokens / cells,
        )


def _scale_to_fleet(cell_result: Replayed, fleet: Fleet, cells: int) -> Replayed:
    """Return the result of one cell, with all totals multiplied by ``cells``."""
    pools = tuple(
        replace(pool, initial=cell_pool.initial * cells)
        for pool, cell_pool in zip(fleet.pools, cell_result.fleet.pools, strict=True)
    )
    return replace(
        cell_result,
        fleet=replace(fleet, pools=pools),
        series=_multiply_fields(cell_result.series, cells, SERIES_TOTALS),
        totals=_multiply_fields(cell_result.totals, cells, TOTALS),
        after=_multiply_fields(cell_result.after, cells, AFTER_TOTALS),
        reject_reasons={why: count * cells for why, count in cell_result.reject_reasons.items()},
        cells=cells,
    )


def _multiply_fields(figures: T, cells: int, names: tuple[str, ...]) -> T:
    """Return ``figures`` with the named fields multiplied by ``cells``; None stays None."""
    changed = {}
    for name in names:
        if getattr(figures, name) is not None:
            changed[name] = getattr(figures, name) * cells
    return replace(figures, **changed)  # type: ignore[type-var]
