"""Assign the models of a pool to GPUs, so that a replay of each GPU meets every SLO."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from planner.domain.random_streams import Stream, generator
from planner.domain.sharing.pools import SharingPool
from planner.optimizer.sharing import Group, pack, pack_exact
from simulation.sharing.replay import GpuReplay, SharedHost, fits_by_memory, replay_gpu

MEMORY, TIME, ALONE = "memory", "time", "alone"
UNSEEN = 5  # shifts of models against each other that only judge the packing


@dataclass(frozen=True, slots=True, eq=False)
class SharedGpuPlan:
    """The parts on one GPU (or on the GPUs of one replica), how they share it, and the replay."""

    parts: Group
    way: str  # MEMORY, TIME or ALONE
    replay: GpuReplay
    unseen: tuple[float, ...]  # [part] attainment over ``UNSEEN`` further shifts


@dataclass(frozen=True, slots=True)
class Rules:
    """How models may share, and the replays of which all must meet the SLOs.

    The first replay has the requests as they are. In each further one, the models are shifted
    against each other by random times within ``span_s``.
    """

    ways: tuple[str, ...]
    whole_requests: bool
    replays: int
    span_s: float
    seed: int


class Sharing:
    """Finds which parts of a pool's models can share a GPU, by replays.

    The way in which each set of parts shares its GPU is kept. ``check_alive`` is called before the
    replays of each set, and raises if the run has been cancelled.
    """

    def __init__(self, pool: SharingPool, rules: Rules, check_alive: Callable[[], None]) -> None:
        self._pool, self._rules, self._check_alive = pool, rules, check_alive
        self._host = replace(pool.host, whole_requests=rules.whole_requests)
        self._chosen_way: dict[Group, str] = {}
        rng = generator(rules.seed, Stream.SHIFTS)
        shifted_replays = rules.replays - 1 + UNSEEN
        shifts_s = rng.uniform(0, rules.span_s, (shifted_replays, len(pool.parts)))
        # The parts of each replay: as they are, then shifted. The last ``UNSEEN`` only judge.
        self._parts_by_replay = [
            list(pool.parts),
            *(
                [
                    part.shift_arrivals(by_s, rules.span_s)
                    for part, by_s in zip(pool.parts, row, strict=True)
                ]
                for row in shifts_s
            ),
        ]

    def fits(self, group: Group) -> bool:
        """Return whether the parts ``group`` (indices) meet their SLOs on one GPU, in some way.

        Two parts of one model never share a GPU.
        """
        self._check_alive()
        models = [self._pool.model[i] for i in group]
        if len(set(models)) < len(models) or not all(self._pool.feasible[m] for m in models):
            return False
        seen = [[parts[i] for i in group] for parts in self._parts_by_replay[: self._rules.replays]]
        for way in self._rules.ways:
            host = self._host_of(way)
            if way == MEMORY and not fits_by_memory(seen[0], host):
                continue
            if all(replay_gpu(parts, host, to_the_end=False).met for parts in seen):
                self._chosen_way[group] = way
                return True
        return False

    def plan(self, method: str) -> list[SharedGpuPlan]:
        """Return the fewest GPUs that ``method`` finds for all parts, each replayed to the end."""
        exact = method == "exact"
        groups = (
            pack_exact(len(self._pool.parts), self.fits)
            if exact
            else pack(self._pool.busy_s, self.fits)
        )
        return [self._plan_group(group) for group in groups]

    def _plan_group(self, group: Group) -> SharedGpuPlan:
        """Return the plan of a group of models on one GPU, with its replays.

        The first replay has the requests that the plan was made for. The others have shifted
        requests, for a test of the plan; they give ``unseen``.
        """
        self._check_alive()
        way = ALONE if len(group) == 1 else self._chosen_way[group]
        host = self._host_of(way)
        unseen_parts = self._parts_by_replay[self._rules.replays :]
        seen, *unseen = (
            replay_gpu([parts[i] for i in group], host)
            for parts in (self._parts_by_replay[0], *unseen_parts)
        )
        attained = np.mean([[1 - own.late.mean() for own in run.models] for run in unseen], axis=0)
        return SharedGpuPlan(group, way, seen, tuple(float(share) for share in attained))

    def _host_of(self, way: str) -> SharedHost:
        """Return the host as models share it in this way: weights stay loaded, unless by time."""
        return replace(self._host, by_memory=way != TIME)
