"""Plans of windows judged by the requests that came in them.

Windows are picked evenly among requests, as many as there is time for. Each is replayed with the
plan that was in force: the requests that came in it, after those of some time before, which fill
the plan, and before those of some time after, so that batches are as large as they were. What is
left out is the moment at which a plan follows another one: each finds the requests before the
window served by itself.
"""

from __future__ import annotations

import numpy as np

from simulation.arrays import FloatArray, IntArray
from simulation.provisioning.level import Level
from simulation.provisioning.replay import Replay, Requests
from simulation.provisioning.windows import Windows
from simulation.provisioning.workload import PhaseLoad, PhaseProblem

VISITS = 4_000_000  # of requests to stations that one pass through all windows takes at most
FEWEST, MOST = 12, 200  # windows
LIVES = 4.0  # of a prompt at its limit that come before a window and after it
SEQUENCE_LIVES = 1.0  # of a sequence that decodes at its limit


class Sampled:
    """Some windows of a trace, ``picked`` [K] (more than once where one has very many requests)."""

    def __init__(
        self,
        windows: Windows,
        requests: Requests,
        service: PhaseLoad,
        stations: int,
        device_bytes: float,
    ) -> None:
        """``requests`` come as seconds from the first window; ``stations``: of the finest level."""
        self.seconds, self.requests, self.device_bytes = windows.seconds, requests, device_bytes
        passes, lives = np.ones_like(requests.osl), LIVES
        if service.phase != "prefill":
            passes, lives = np.maximum(requests.osl - 1, 1), SEQUENCE_LIVES
        self.around_s = lives * service.slo_s * float(passes.mean())
        each = float(passes.sum()) * stations / windows.requests_s.size
        each *= 1.0 + 2.0 * self.around_s / self.seconds
        self.picked = _even(windows.requests_s, int(np.clip(VISITS / each, FEWEST, MOST)))
        self._shares: dict[tuple[int, int], float] = {}
        self._kept: list[Level] = []  # so that no other becomes known by the same number
        self._replay: Replay | None = None

    def attainment(self, plans: list[tuple[Level, PhaseProblem] | None]) -> float:
        """Share of the requests that kept the limit, of plans by window, each with the phase that
        it was made for; None: nothing was in force."""
        return float(np.mean([self._share(int(w), plans[w]) for w in self.picked]))

    def _share(self, w: int, plan: tuple[Level, PhaseProblem] | None) -> float:
        if plan is None:
            return 0.0
        level, phase = plan
        if (w, id(level)) not in self._shares:
            if self._replay is None:
                self._replay = Replay(phase, [], self.device_bytes)
            came = self._replay.instead(phase, [self._around(w)]).of(level)
            self._kept.append(level)
            self._shares[w, id(level)] = came.attainment
        return self._shares[w, id(level)]

    def _around(self, w: int) -> Requests:
        begins = w * self.seconds
        edges = begins - self.around_s, begins, begins + self.seconds
        first, counted, after = np.searchsorted(self.requests.arrival_s, edges)
        last = np.searchsorted(self.requests.arrival_s, edges[2] + self.around_s)
        rows = slice(first, last)
        return Requests(
            self.requests.arrival_s[rows] - self.requests.arrival_s[first],
            self.requests.isl[rows],
            self.requests.osl[rows],
            slice(int(counted - first), int(after - first)),
        )


def _even(requests_s: FloatArray, count: int) -> IntArray:
    """Windows of evenly spaced requests."""
    ends = np.cumsum(requests_s)
    ranks = (np.arange(count) + 0.5) / count * ends[-1]
    last = requests_s.size - 1
    return np.asarray(np.minimum(np.searchsorted(ends, ranks, side="right"), last), np.int64)
