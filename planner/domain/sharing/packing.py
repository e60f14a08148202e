"""Assign the models of a pool to GPUs, so that a replay of each GPU meets every SLO."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from planner.domain.sharing.pools import SharingPool
from planner.optimizer.sharing import Group, pack, pack_exact
from simulation.sharing.replay import GpuReplay, SharedHost, fits_by_memory, replay_gpu

MEMORY, TIME, ALONE = "memory", "time", "alone"


@dataclass(frozen=True, slots=True, eq=False)
class SharedGpuPlan:
    """The parts on one GPU (or on the GPUs of one replica), how they share it, and the replay."""

    parts: Group
    way: str  # MEMORY, TIME or ALONE
    replay: GpuReplay


class Sharing:
    """Tests sets of parts of ``pool`` by replays, and keeps how each set shares its GPU."""

    def __init__(
        self, pool: SharingPool, ways: tuple[str, ...], whole: bool, alive: Callable[[], None]
    ) -> None:
        self._pool, self._ways, self._alive = pool, ways, alive
        self._host = replace(pool.host, whole_requests=whole)
        self._way: dict[Group, str] = {}

    def fits(self, group: Group) -> bool:
        """Return whether the parts meet their SLOs on one GPU, in one of the ways."""
        self._alive()
        models = [self._pool.model[i] for i in group]
        if len(set(models)) < len(models) or not all(self._pool.feasible[m] for m in models):
            return False
        parts = [self._pool.parts[i] for i in group]
        for way in self._ways:
            host = self._host_of(way)
            if way == MEMORY and not fits_by_memory(parts, host):
                continue
            if replay_gpu(parts, host, to_the_end=False).met:
                self._way[group] = way
                return True
        return False

    def plan(self, method: str) -> list[SharedGpuPlan]:
        """Return the GPUs of the fewest groups that ``method`` finds, replayed to the end."""
        exact = method == "exact"
        groups = (
            pack_exact(len(self._pool.parts), self.fits)
            if exact
            else pack(self._pool.busy_s, self.fits)
        )
        return [self._planned(group) for group in groups]

    def _planned(self, group: Group) -> SharedGpuPlan:
        self._alive()
        way = ALONE if len(group) == 1 else self._way[group]
        parts = [self._pool.parts[i] for i in group]
        return SharedGpuPlan(group, way, replay_gpu(parts, self._host_of(way)))

    def _host_of(self, way: str) -> SharedHost:
        return replace(self._host, by_memory=way != TIME)
