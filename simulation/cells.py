"""A fleet replayed as one of several equal cells, where all of its requests are too many.

The fleet is cut into ``cells`` alike, each with an equal part of its instances and of its requests,
taken at random; one is replayed and stands for all. What is said of the whole can be done as it is
said: so many cells beside each other serve all the requests this well. It errs to the safe side,
since small pools share less than large ones and instances come ``cells`` at a time.

The policy is the whole fleet's: it sees the sum of all cells and is answered in whole instances of
each, rounded up, so that it never has fewer than it asked for.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace
from typing import TypeVar

import numpy as np

from simulation.arrays import IntArray
from simulation.engine.run import simulate
from simulation.fleet import Fleet, Pool
from simulation.policies.wrappers.wrapper import Wrapper
from simulation.policy import Actions, Observation, ScalingPolicy, Signals, actions_of
from simulation.recovery import Recovery
from simulation.replayed import Replayed, is_long, simulate_long
from simulation.results import AfterWindow, PoolSeries, PoolTotals
from simulation.trace import Trace

T = TypeVar("T")

# Of an observation and its signals, what adds up over cells; the others are means and shares.
OBSERVED = (
    "ready", "starting", "draining", "waiting", "input_tps", "deferred", "spare", "asked_tps",
)  # fmt: skip
SIGNALLED = ("prefill_tps", "decode_tps", "evicted_tps", "preemptions", "failed")
# Of a series, what does not.
MEANS = ("interval_s", "utilisation", "batch", "sm_activity", "hit_rate")


def per_cell(counts: IntArray, cells: int) -> IntArray:
    """Instances of each cell: of ``counts`` of all, rounded up."""
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
    watch: Recovery | None = None,
    keep: bool = False,
) -> Replayed:
    """``simulate`` with ``trace`` the requests of one of ``cells`` and ``fleet`` all of them;
    counts and hours of the result are of all. A long trace is replayed as a stream, unless its
    requests are to be kept."""
    inner = fleet if cells == 1 else replace(fleet, pools=_each(fleet.pools, cells))
    rule = policy if cells == 1 else _OfAll(policy, fleet, cells)
    play = simulate_long if is_long(len(trace)) and not keep else simulate
    of_cell: Replayed = play(
        trace,
        inner,
        rule,
        seed=seed,
        duration_s=duration_s,
        interval_s=interval_s,
        progress=progress,
        watch=watch,
    )
    return of_cell if cells == 1 else _all(of_cell, fleet, cells)


def _each(pools: tuple[Pool, ...], cells: int) -> tuple[Pool, ...]:
    return tuple(_of_pool(pool, cells) for pool in pools)


def _of_pool(pool: Pool, cells: int) -> Pool:
    def up(count: int) -> int:
        return -(-count // cells)

    start, link = pool.start_up, pool.link
    if start is not None:
        hosts = None if start.warm_hosts is None else up(start.warm_hosts)
        start = replace(start, lent=start.lent // cells, warm_hosts=hosts)
    if link is not None:
        link = replace(link, shared_bytes_s=link.shared_bytes_s / cells)
    return replace(
        pool,
        initial=up(pool.initial),
        minimum=up(pool.minimum),
        maximum=max(up(pool.minimum), pool.maximum // cells),
        today=None if pool.today is None else up(pool.today),
        start_up=start,
        link=link,
    )


class _OfAll(Wrapper):
    """The whole fleet's policy, shown one cell as all of them and answered to each."""

    def __init__(self, policy: ScalingPolicy, fleet: Fleet, cells: int) -> None:
        super().__init__(policy)
        self._fleet, self._cells = fleet, cells

    def reset(self, fleet: Fleet) -> IntArray:
        return per_cell(self._policy.reset(self._fleet), self._cells)

    def decide(self, observation: Observation) -> Actions:
        of_all = _times(observation, self._cells, OBSERVED)
        if of_all.signals is not None:
            signals: Signals = _times(of_all.signals, self._cells, SIGNALLED)
            of_all = replace(of_all, signals=signals)
        actions = actions_of(self._policy.decide(of_all))
        keep = None if actions.keep_lent is None else per_cell(actions.keep_lent, self._cells)
        return replace(actions, targets=per_cell(actions.targets, self._cells), keep_lent=keep)


def _all(of_cell: Replayed, fleet: Fleet, cells: int) -> Replayed:
    pools = tuple(
        replace(pool, initial=each.initial * cells)
        for pool, each in zip(fleet.pools, of_cell.fleet.pools, strict=True)
    )
    series = tuple(field.name for field in fields(PoolSeries) if field.name not in MEANS)
    totals = tuple(field.name for field in fields(PoolTotals))
    after = tuple(field.name for field in fields(AfterWindow) if field.name != "until_s")
    return replace(
        of_cell,
        fleet=replace(fleet, pools=pools),
        series=_times(of_cell.series, cells, series),
        totals=_times(of_cell.totals, cells, totals),
        after=_times(of_cell.after, cells, after),
        reject_reasons={why: count * cells for why, count in of_cell.reject_reasons.items()},
        cells=cells,
    )


def _times(figures: T, cells: int, names: tuple[str, ...]) -> T:
    changed = {
        name: value * cells for name in names if (value := getattr(figures, name)) is not None
    }
    return replace(figures, **changed)  # type: ignore[type-var]
