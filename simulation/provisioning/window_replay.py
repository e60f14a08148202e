"""Measure the attainment of the plans of windows by replay of the requests in them.

Windows are sampled evenly by requests, as many as time allows. Each is replayed with its active
plan. Requests of some time before the window fill the plan. Requests after it keep the batch sizes
realistic. The change from one plan to the next is not modelled: each plan also serves the requests
before its window.
"""

import numpy as np

from simulation.arrays import FloatArray, IntArray
from simulation.provisioning.level import Level
from simulation.provisioning.replay import LevelReplay, Requests
from simulation.provisioning.windows import Windows
from simulation.provisioning.workload import PhaseLoad, PhaseProblem

VISITS = 4_000_000  # most station visits of one pass through all windows
FEWEST, MOST = 12, 200  # number of windows
MEAN_SOJOURNS = 4.0  # warm-up and tail of a window, as a multiple of the limit for prompts
SEQUENCE_LIMITS = 1.0  # the same for decoding sequences, as a multiple of their length x limit


class SampledWindows:
    """Windows of a trace that are replayed to measure attainment, ``picked [K]``.

    A very busy window can occur more than once.
    """

    def __init__(
        self,
        windows: Windows,
        requests: Requests,
        service: PhaseLoad,
        stations: int,
        device_bytes: float,
    ) -> None:
        """Sample windows of ``requests``, whose times are seconds from the first window.

        ``stations`` is the number of stations at the finest level.
        """
        self.seconds, self.requests, self.device_bytes = windows.seconds, requests, device_bytes
        passes, limits = np.ones_like(requests.osl), MEAN_SOJOURNS
        if service.phase != "prefill":
            passes, limits = np.maximum(requests.osl - 1, 1), SEQUENCE_LIMITS
        # Seconds of requests that are replayed before and after a window.
        self.around_s = limits * service.slo_s * float(passes.mean())
        visits_per_window = float(passes.sum()) * stations / windows.requests_s.size
        # Each window is replayed with requests before and after it.
        visits_per_window *= 1.0 + 2.0 * self.around_s / self.seconds
        self.picked = _evenly_spaced(
            windows.requests_s, int(np.clip(VISITS / visits_per_window, FEWEST, MOST))
        )
        self._attainments: dict[tuple[int, int], float] = {}
        # Keeps levels alive, because ``id`` of a deleted one may be reused.
        self._kept: list[Level] = []
        self._replay: LevelReplay | None = None

    def attainment(self, plans: list[tuple[Level, PhaseProblem] | None]) -> float:
        """Return the share of requests in the sampled windows within the limit.

        ``plans`` has a plan by window, with the phase that it was made for. None means no active
        plan: no request is served.
        """
        return float(np.mean([self._window_attainment(int(w), plans[w]) for w in self.picked]))

    def _window_attainment(self, w: int, plan: tuple[Level, PhaseProblem] | None) -> float:
        """Return the share of requests of window ``w`` within the limit, with its active plan.

        Results are cached.
        """
        if plan is None:
            return 0.0
        level, phase = plan
        if (w, id(level)) not in self._attainments:
            if self._replay is None:
                self._replay = LevelReplay(phase, [], self.device_bytes)
            replayed = self._replay.with_requests(phase, [self._requests_around(w)]).latency_of(
                level
            )
            self._kept.append(level)
            self._attainments[w, id(level)] = replayed.attainment
        return self._attainments[w, id(level)]

    def _requests_around(self, w: int) -> Requests:
        """Return the requests of window ``w``, and some before and after it."""
        begin_s = w * self.seconds
        end_s = begin_s + self.seconds
        edges_s = begin_s - self.around_s, begin_s, end_s, end_s + self.around_s
        # Indices of requests: replayed from ``first`` to ``last``, in the window to ``end``.
        first, begin, end, last = np.searchsorted(self.requests.arrival_s, edges_s)
        rows = slice(first, last)
        return Requests(
            self.requests.arrival_s[rows] - self.requests.arrival_s[first],
            self.requests.isl[rows],
            self.requests.osl[rows],
            counted=slice(int(begin - first), int(end - first)),
        )


def _evenly_spaced(requests_s: FloatArray, count: int) -> IntArray:
    """Return the windows that contain ``count`` requests, evenly spaced among all."""
    ends = np.cumsum(requests_s)
    ranks = (np.arange(count) + 0.5) / count * ends[-1]
    last = requests_s.size - 1
    return np.asarray(np.minimum(np.searchsorted(ends, ranks, side="right"), last), np.int64)
