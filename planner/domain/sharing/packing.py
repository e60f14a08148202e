"""Assign the models of a pool to GPUs, so that a replay of each GPU meets every SLO.

A part is what a GPU is assigned to: one of the replicas that a model needs alone, with an equal
share of its requests. A group is a set of parts (by index) on one GPU.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from planner.domain.random_streams import Stream, generator
from planner.domain.sharing.pools import SharingPool
from planner.optimizer.sharing import Group, pack, pack_exact
from simulation.sharing.replay import (
    GpuReplay,
    SharedHost,
    SharingModel,
    fits_by_memory,
    replay_gpu,
)

MEMORY, TIME, ALONE = "memory", "time", "alone"  # ways to share a GPU
UNSEEN = 5  # replays with shifted requests that only judge the packing


@dataclass(frozen=True, slots=True, eq=False)
class SharedGpuPlan:
    """The replicas on one GPU (or on the GPUs of one replica), how they share it, and the replay.

    ``parts`` are their indices in the pool. ``unseen`` is the mean attainment of each replica in
    the ``UNSEEN`` replays that judge the packing.
    """

    parts: Group
    way: str  # MEMORY, TIME or ALONE
    replay: GpuReplay
    unseen: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Rules:
    """How models may share a GPU, and in how many replays they must meet their SLOs.

    The first replay has the requests as they are. In each further one, the models are shifted
    against each other by random times within ``span_s``.
    """

    ways: tuple[str, ...]  # MEMORY and TIME, the preferred one first
    whole_requests: bool  # whether models switch only after a batch, not between tokens
    replays: int
    span_s: float
    seed: int


class Sharing:
    """Finds which replicas of a pool can share a GPU, by replays.

    ``check_alive`` is called before the replays of each group, and raises if the run is cancelled.
    """

    def __init__(self, pool: SharingPool, rules: Rules, check_alive: Callable[[], None]) -> None:
        self._pool, self._rules, self._check_alive = pool, rules, check_alive
        self._host = replace(pool.host, whole_requests=rules.whole_requests)
        self._chosen_way: dict[Group, str] = {}
        rng = generator(rules.seed, Stream.SHIFTS)
        shifted_replays = rules.replays - 1 + UNSEEN  # the first replay is not shifted
        shifts_s = rng.uniform(0, rules.span_s, (shifted_replays, len(pool.parts)))
        # The parts in each replay: as they are, then shifted. The last ``UNSEEN`` only judge.
        self._parts_by_replay = [list(pool.parts)]
        for shifts_of_replay in shifts_s:
            parts_and_shifts = zip(pool.parts, shifts_of_replay, strict=True)
            self._parts_by_replay.append(
                [part.shift_arrivals(by_s, rules.span_s) for part, by_s in parts_and_shifts]
            )

    def fits(self, group: Group) -> bool:
        """Return whether a group of replicas (by index) meets its SLOs together on one GPU.

        The first of the allowed ways of sharing in which it does is remembered. Two replicas of one
        model never share a GPU.
        """
        self._check_alive()
        models = [self._pool.model[i] for i in group]  # indices
        if len(set(models)) < len(models) or not all(self._pool.feasible[m] for m in models):
            return False
        deciding_replays = self._parts_by_replay[: self._rules.replays]
        group_by_replay = [[parts[i] for i in group] for parts in deciding_replays]
        for way in self._rules.ways:
            host = self._host_of(way)
            if way == MEMORY and not fits_by_memory(group_by_replay[0], host):
                continue
            if all(replay_gpu(parts, host, to_the_end=False).met for parts in group_by_replay):
                self._chosen_way[group] = way
                return True
        return False

    def plan(self, method: str) -> list[SharedGpuPlan]:
        """Return the fewest GPUs that ``method`` finds for all replicas, with a replay of each."""
        if method == "exact":
            groups = pack_exact(len(self._pool.parts), self.fits)
        else:
            groups = pack(self._pool.busy_s, self.fits)
        return [self._plan_group(group) for group in groups]

    def _plan_group(self, group: Group) -> SharedGpuPlan:
        """Return the plan of a group on one GPU, with its replay and the replays that judge it."""
        self._check_alive()
        way = ALONE if len(group) == 1 else self._chosen_way[group]
        host = self._host_of(way)

        def replay_of(parts: Sequence[SharingModel]) -> GpuReplay:
            """Return the replay of the group among all ``parts`` of the pool."""
            return replay_gpu([parts[i] for i in group], host)

        # The first replays chose the groups; the rest are unseen, and judge them.
        unseen = [replay_of(parts) for parts in self._parts_by_replay[self._rules.replays :]]
        in_time = [[1 - part.late.mean() for part in replay.models] for replay in unseen]
        attainment = np.mean(in_time, axis=0)  # of each part of the group
        replay = replay_of(self._parts_by_replay[0])
        return SharedGpuPlan(group, way, replay, tuple(attainment.tolist()))

    def _host_of(self, way: str) -> SharedHost:
        """Return the host for sharing by ``way``; weights leave the GPU only if that is TIME."""
        return replace(self._host, by_memory=way != TIME)
