"""Aggregate the demand of a trace by window, and replay the requests of windows.

The replay measures the attainment of a window's plan. Windows are sampled evenly by requests, as
many as time allows. Each is replayed with its active plan. Requests of some time before the window
fill the plan. Requests after it keep the batch sizes realistic. The change from one plan to the
next is not modelled: each plan also serves the requests before its window.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from simulation.arrays import FloatArray
from simulation.errors import SimulationError
from simulation.performance.curves import Curve
from simulation.provisioning.level import Level
from simulation.provisioning.replay import CurveKey, LevelReplay, Requests
from simulation.provisioning.workload import PhaseLoad, PhaseProblem

STEP = 1.05  # ratio between the values to which demand is rounded
MAX_VISITS = 4_000_000  # most visits of requests at stations in one replay of all sampled windows
MIN_WINDOWS, MAX_WINDOWS = 12, 200  # number of sampled windows
# Time that is replayed before and after a window, as a multiple of the time that a request takes at
# the latency limit
PROMPT_MARGIN_LIMITS = 4.0  # for prompts
SEQUENCE_MARGIN_LIMITS = 1.0  # for decoding sequences


DemandKey = tuple[int, int]  # rate at the operators and tokens of a pass, as exponents of STEP


@dataclass(frozen=True, slots=True, eq=False)
class Windows:
    """Demand of a trace by window of time, arrays of shape ``[W]``."""

    seconds: float  # window length
    requests_s: FloatArray
    isl: FloatArray  # mean input tokens
    osl: FloatArray  # mean output tokens


def windows_of(
    arrival_s: FloatArray, isl: npt.ArrayLike, osl: npt.ArrayLike, seconds: float
) -> Windows:
    """Return requests/s and mean lengths by window.

    An empty window has the lengths of the nearest earlier window with requests, or else of the
    first one. Raises SimulationError for an empty trace.
    """
    if arrival_s.size == 0:
        raise SimulationError("The trace has no requests to plan for.")
    window = (arrival_s // seconds).astype(np.int64)
    count = np.bincount(window)

    def mean(lengths: npt.ArrayLike) -> FloatArray:
        """Return the mean length in each window, ``[W]``."""
        total = np.bincount(window, weights=np.asarray(lengths, np.float64))
        means = np.divide(total, count, out=np.full(count.size, np.nan), where=count > 0)
        # Index among the windows with requests of the nearest one at or before each window
        with_requests = np.flatnonzero(count > 0)
        nearest = np.searchsorted(with_requests, np.arange(count.size), side="right") - 1
        return np.asarray(means[with_requests[np.maximum(nearest, 0)]], np.float64)

    return Windows(seconds, requests_s=count / seconds, isl=mean(isl), osl=mean(osl))


def block_means(windows: Windows, every: int) -> Windows:
    """Return the mean demand over blocks of ``every`` windows, repeated for each window.

    A plan for that many windows is made for this mean. Lengths are weighted by requests.
    """
    if every <= 1:
        return windows
    count = windows.requests_s.size
    block = np.arange(count) // every
    rate = np.bincount(block, windows.requests_s) / np.bincount(block)
    weight = np.maximum(windows.requests_s, 1e-12)

    def mean(lengths: FloatArray) -> FloatArray:
        """Return the mean length in the block of each window, weighted by requests, ``[W]``."""
        block_mean = np.bincount(block, lengths * weight) / np.bincount(block, weight)
        return np.asarray(block_mean[block], np.float64)

    return Windows(windows.seconds, rate[block], mean(windows.isl), mean(windows.osl))


def demand_of_previous_block(windows: Windows, every: int) -> Windows:
    """Return for each window the demand that is known when its block is planned.

    It is the mean demand of the previous block of ``every`` windows. The first block has none, so
    it uses its own.
    """
    blocks = block_means(windows, every)
    block = np.arange(blocks.requests_s.size) // every
    first_of_previous_block = np.maximum(block - 1, 0) * every
    return Windows(
        blocks.seconds,
        blocks.requests_s[first_of_previous_block],
        blocks.isl[first_of_previous_block],
        blocks.osl[first_of_previous_block],
    )


def rounded_demands(windows: Windows, phase: str, headroom: float = 0.0) -> list[DemandKey]:
    """Return the demand of each window, rounded up to powers of STEP: the exponents.

    Each is a pair. The first is the rate at the operators times 1 + ``headroom``. The second is the
    tokens of a request in prefill, or else the mean context of a sequence.
    """
    if phase == "prefill":
        rate, tokens = windows.requests_s, windows.isl
    else:
        rate, tokens = windows.requests_s * windows.osl, windows.isl + windows.osl / 2.0
    # At least one request per window and one token: the logarithm of 0 does not exist.
    smallest = [1.0 / windows.seconds, 1.0]
    demand = np.stack([rate, tokens], axis=1)
    steps = np.log(np.maximum(demand, smallest) * [1.0 + headroom, 1.0]) / np.log(STEP)
    exponents = np.ceil(steps - 1e-9).astype(np.int64)
    return [(rate_step, tokens_step) for rate_step, tokens_step in exponents.tolist()]


class SampledWindows:
    """Windows of a trace that are replayed to measure attainment; ``picked`` has their indices.

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
        passes, limits = np.ones_like(requests.osl), PROMPT_MARGIN_LIMITS
        if service.phase != "prefill":
            passes, limits = np.maximum(requests.osl - 1, 1), SEQUENCE_MARGIN_LIMITS
        # Seconds of requests that are replayed before and after a window.
        self.margin_s = limits * service.slo_s * float(passes.mean())
        visits_per_window = float(passes.sum()) * stations / windows.requests_s.size
        # Each window is replayed with requests before and after it.
        visits_per_window *= 1.0 + 2.0 * self.margin_s / self.seconds
        # The windows of requests that are evenly spaced among all requests
        count = int(np.clip(MAX_VISITS / visits_per_window, MIN_WINDOWS, MAX_WINDOWS))
        ends = np.cumsum(windows.requests_s)
        ranks = (np.arange(count) + 0.5) / count * ends[-1]
        self.picked = np.minimum(np.searchsorted(ends, ranks, side="right"), ends.size - 1)
        self._attainments: dict[tuple[int, int], float] = {}
        # Keeps levels alive, because ``id`` of a deleted one may be reused.
        self._replayed_levels: list[Level] = []
        self._curves: dict[CurveKey, Curve] = {}

    def attainment(self, plans: list[tuple[Level, PhaseProblem] | None]) -> float:
        """Return the share of requests in the sampled windows within the limit.

        ``plans`` has the active plan of each window, with the phase that it was made for. None: no
        plan, so no request is served.
        """
        attainments = []
        for w in self.picked.tolist():
            plan = plans[w]
            if plan is None:
                attainments.append(0.0)
                continue
            level, phase = plan
            if (w, id(level)) not in self._attainments:
                replay = LevelReplay(phase, [self._requests_around(w)], self.device_bytes)
                replay.curves = self._curves
                self._replayed_levels.append(level)  # so that no other level gets its id
                self._attainments[w, id(level)] = replay.latency_of(level).attainment
            attainments.append(self._attainments[w, id(level)])
        return float(np.mean(attainments))

    def _requests_around(self, w: int) -> Requests:
        """Return the requests of window ``w``, and some before and after it."""
        begin_s = w * self.seconds
        end_s = begin_s + self.seconds
        edges_s = begin_s - self.margin_s, begin_s, end_s, end_s + self.margin_s
        # Indices of requests: replayed from ``first`` to ``last``, in the window to ``end``.
        first, begin, end, last = np.searchsorted(self.requests.arrival_s, edges_s)
        rows = slice(first, last)
        return Requests(
            self.requests.arrival_s[rows] - self.requests.arrival_s[first],
            self.requests.isl[rows],
            self.requests.osl[rows],
            counted=slice(int(begin - first), int(end - first)),
        )
