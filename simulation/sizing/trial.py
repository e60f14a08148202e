"""Simulate the same requests at any rate on a small static fleet, to test a pool size."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from simulation.arrays import FloatArray, Int32Array
from simulation.engine.run import simulate
from simulation.errors import SimulationError
from simulation.fleet import Fleet, KvLink, Pool, Region, Routing, Tier
from simulation.metrics import meets_slo
from simulation.performance.adjusted_profile import adjust_profile
from simulation.performance.profile import Profile
from simulation.performance.specs import GpuSpec
from simulation.policies.static import Static
from simulation.results import COMPLETED, SimulationResult
from simulation.sizing.workload import Burstiness, unit_arrivals
from simulation.trace import CachedTokens, PrefixBlocks, Prefixes, Trace

Pools = tuple[Pool, ...]

SECOND_DRAW_STREAM = 4  # number of the random stream of the second draw; the traffic uses 1 to 3
WARM_UP = 2.0  # mean request lifetimes before the first request that counts
MEMORY_FACTOR = 1_000  # factor on the KV memory, to test whether memory is the binding constraint


def pool_of(
    profile: Profile,
    instances: int = 1,
    *,
    role: str = "both",
    link: KvLink | None = None,
    batching: str = "chunked",
    prefix_cache: bool = False,
) -> Pool:
    """Return a pool of ``instances`` instances that always run, at no cost, for trials.

    ``link`` transfers KV caches from a prefill pool. With ``prefix_cache``, shared prompts are
    cached.
    """
    gpu = GpuSpec(profile.gpu, 0.0, 0.0, 0.0, 0.0, profile.provenance)
    return Pool(
        profile.model, "", profile, gpu, initial=instances, minimum=instances, maximum=instances,
        startup_s=0.0, usd_per_gpu_hour=0.0, role=role, link=link, batching=batching,
        prefix_cache=prefix_cache,
    )  # fmt: skip


def extrapolated_share(run: SimulationResult) -> float:
    """Return the share of iterations outside the measured range of the last pool's profile."""
    totals = run.totals
    return float(totals.outside[-1] / max(totals.iterations[-1], 1))


def with_ample_memory(pools: Pools) -> Pools:
    """Return the pools with so much KV memory that it never limits them."""
    ample_pools = []
    for pool in pools:
        tokens = MEMORY_FACTOR * pool.profile.kv_capacity_tokens
        profile = adjust_profile(pool.profile, kv_capacity_tokens=tokens)
        ample_pools.append(replace(pool, profile=profile))
    return tuple(ample_pools)


class RequestDraws:
    """Two independent draws of requests from a sample, which arrive at one per second.

    The second draw has twice as many requests. A capacity must hold in both, so that one lucky draw
    near saturation cannot set it.
    """

    def __init__(
        self,
        lengths: tuple[npt.ArrayLike, npt.ArrayLike],
        *,
        seed: int,
        requests: int,
        burstiness: Burstiness = 1.0,
        blocks: Prefixes | None = None,
    ) -> None:
        """Prepare the draws from the sample ``lengths`` of (input tokens, output tokens).

        With ``PrefixBlocks`` of the prompts, the sample is a sequence of requests and keeps its
        order. ``CachedTokens`` are drawn with the lengths.
        Raises SimulationError for an empty sample or for columns of different length.
        """
        isl, osl = (np.asarray(column, np.int32) for column in lengths)
        if not len(isl) or len(isl) != len(osl) or requests < 1:
            raise SimulationError("Capacity needs a sample of lengths, as many inputs as outputs.")
        self.seed, self._lengths, self._requests = seed, (isl, osl), requests
        self._burstiness, self._blocks = burstiness, blocks
        self._draws: dict[int, _Draw] = {}

    def __getitem__(self, draw: int) -> _Draw:
        """Return draw 0, or the independent draw 1 of twice as many requests; each is stored."""
        if draw not in self._draws:
            if draw == 0:
                n, rng = self._requests, np.random.default_rng(self.seed)
            else:
                n, rng = 2 * self._requests, np.random.default_rng([self.seed, SECOND_DRAW_STREAM])
            if not isinstance(self._blocks, PrefixBlocks):
                self._draws[draw] = _systematic_sample(
                    *self._lengths, self._blocks, n, self._burstiness, rng
                )
            else:  # the order of the sample decides what a prompt finds in the cache, so keep it
                shared = SharedPrompts(*self._lengths, self._blocks).repeat(n, draw)
                gaps = _arrivals(n, self._burstiness, rng)
                self._draws[draw] = _Draw(shared.isl, shared.osl, gaps, shared.blocks)
        return self._draws[draw]


class Trial:
    """Simulations of some pools at several rates, to find those that meet a tier."""

    def __init__(
        self, pools: Pools, draws: RequestDraws, tier: Tier, routing: Routing | None = None
    ) -> None:
        self.pools, self.draws, self.routing = pools, draws, routing or Routing()
        # A deferrable tier is sized as if its requests had been released.
        self.tier = replace(tier, deferrable=False)

    @property
    def isl(self) -> Int32Array:
        """Return the input tokens of the requests of the first draw."""
        return self.draws[0].isl

    @property
    def osl(self) -> Int32Array:
        """Return the output tokens of the requests of the first draw."""
        return self.draws[0].osl

    def at(self, rate: float, pools: Pools | None = None, *, draw: int = 0) -> SimulationResult:
        """Return the simulation of draw 0 or 1 at ``rate`` requests/s.

        ``pools`` None: those of the trial. The requests and the order of their arrivals do not
        depend on the rate.
        """
        drawn = self.draws[draw]
        return self._run(drawn, drawn.arrival / rate, pools or self.pools)

    def meets_tier(self, run: SimulationResult) -> bool:
        """Return whether a run meets the tier."""
        return bool(meets_slo(run).mean() >= self.tier.attainment)

    def measured_attainment(self, run: SimulationResult) -> tuple[float, int]:
        """Return the share of counted requests that meet the tier's SLO, and how many are counted.

        Counting starts after ``WARM_UP`` mean lifetimes of a request, when the pool has filled up.
        It stops one lifetime before the last arrival, so that the load lasts until all counted
        requests are served. In short runs, the lifetime is at most a fifth of the run.
        """
        log, arrival = run.requests, run.trace.arrival_s
        lifetimes_s = log.e2e_s[np.isfinite(log.e2e_s)]
        mean_s = float(lifetimes_s.mean()) if len(lifetimes_s) else np.inf
        lifetime_s = min(mean_s, arrival[-1] / (2 * WARM_UP + 1))
        is_counted = (arrival >= WARM_UP * lifetime_s) & (arrival <= arrival[-1] - lifetime_s)
        return float(meets_slo(run)[is_counted].mean()), int(is_counted.sum())

    def second_draw_meets_tier(self, rate: float, pools: Pools | None = None) -> bool:
        """Return whether the second draw meets the tier; ``pools`` None: those of the trial."""
        return self.meets_tier(self.at(rate, pools, draw=1))

    def saturated_rps(self, pools: Pools | None = None) -> float:
        """Return completions per second if all requests wait from the start.

        The first and the last fifth of the completions are ignored, because the pool fills and
        drains then. Raises SimulationError if no request completes.
        """
        drawn, pools = self.draws[0], pools or self.pools
        log = self._run(drawn, np.zeros(len(drawn.arrival)), pools).requests
        ends_s = np.sort(log.last_token_s[log.outcome == COMPLETED])
        if not len(ends_s):
            profile = pools[-1].profile
            raise SimulationError(
                f"No request of the sample fits in {profile.model}'s KV memory on {profile.gpu} "
                f"({profile.kv_capacity_tokens} tokens). Use more GPUs per replica."
            )
        last = len(ends_s) - 1
        first, end = int(0.2 * last), int(0.8 * last)
        span_s = ends_s[end] - ends_s[first]
        if span_s > 0:
            return float((end - first) / span_s)
        return float(len(ends_s) / ends_s[last])  # too few completions to leave any out

    def _run(self, drawn: _Draw, arrival: FloatArray, pools: Sequence[Pool]) -> SimulationResult:
        """Return the simulation of a draw with these arrival times in seconds."""
        codes = np.zeros(len(arrival), np.int16)
        trace = Trace(
            arrival_s=arrival,
            input_tokens=drawn.isl,
            output_tokens=drawn.osl,
            model=codes,
            region=codes,
            tier=codes,
            models=(pools[0].model,),
            regions=("",),
            tiers=(self.tier.name,),
            start_s=0.0,
            provenance="synthesised",
            blocks=drawn.blocks,
        )
        fleet = Fleet(
            tiers=(self.tier,),
            regions=(Region("", 0.0, 1.0),),
            pools=tuple(pools),
            latency_s=np.zeros((1, 1)),
            routing=self.routing,
        )
        span_s = float(arrival[-1]) + 1.0
        policy = Static([pool.initial for pool in pools], interval_s=span_s)
        return simulate(
            trace, fleet, policy, seed=self.draws.seed, duration_s=span_s, interval_s=span_s
        )


def rates_around_limit(
    holds: Callable[[float], bool],
    guess: float,
    *,
    step: float,
    lowest: float,
    highest: float,
    precision: float,
) -> tuple[float, float] | None:
    """Return the largest rate for which ``holds`` is True, and a slightly larger one.

    The search begins at ``guess``, with ``step`` as the factor between rates, and ends at the
    relative ``precision``. The rates are equal if ``holds`` is True at ``highest``. None: it is
    False down to ``lowest``.
    """
    low = high = min(guess, highest)
    if holds(low):  # step up to a rate that fails
        while low < highest:
            high = min(high * step, highest)
            if not holds(high):
                break
            low = high
    else:  # step down to a rate that holds
        is_found = False
        while low > lowest and not is_found:
            high = low
            low /= step
            is_found = holds(low)
        if not is_found:
            return None
    while high - low > precision * high:
        middle = (low + high) / 2
        if holds(middle):
            low = middle
        else:
            high = middle
    return low, high


@dataclass(frozen=True, slots=True, eq=False)
class SharedPrompts:
    """Requests in a fixed order, with the prompt blocks that they share, or with cached tokens."""

    isl: Int32Array
    osl: Int32Array
    blocks: Prefixes

    def repeat(self, n: int, draw: int = 0) -> SharedPrompts:
        """Return ``n`` requests in their order; draw 1 starts half-way through the sequence.

        After the end of the sequence, it is repeated with new block ids, so that repeats find no
        cached prompts.
        """
        order = np.arange(n) + draw * (len(self.isl) // 2)
        rounds, rows = np.divmod(order, len(self.isl))
        blocks = self.blocks.rows(rows)
        if isinstance(blocks, PrefixBlocks):
            # Each round through the sequence gets ids of its own, numbered without gaps.
            id_count = int(blocks.ids.max(initial=0)) + 1
            offsets = np.repeat(rounds * id_count, np.diff(blocks.start))
            _, ids = np.unique(blocks.ids + offsets, return_inverse=True)
            blocks = replace(blocks, ids=ids.astype(np.int32))
        return SharedPrompts(self.isl[rows], self.osl[rows], blocks)


@dataclass(frozen=True, slots=True, eq=False)
class _Draw:
    """Requests that arrive at one per second on average, ``[request]``."""

    isl: Int32Array
    osl: Int32Array
    arrival: FloatArray  # seconds
    blocks: Prefixes | None = None


def _systematic_sample(
    isl: Int32Array,
    osl: Int32Array,
    cached: CachedTokens | None,
    n: int,
    burstiness: Burstiness,
    rng: np.random.Generator,
) -> _Draw:
    """Return ``n`` requests by systematic sampling: every k-th of the sorted sample, shuffled.

    The total work of a draw is then close to that of the sample. Draws differ mainly in the order
    of the lengths and in the arrival times, which are drawn here too. ``cached`` are the cached
    tokens of the sample, if known.
    """
    sorted_rows = np.lexsort((osl, isl) if cached is None else (cached.tokens, osl, isl))
    spaced = (np.arange(n) + rng.uniform()) * (len(isl) / n)  # evenly, from a random start
    rows = rng.permutation(sorted_rows[np.minimum(spaced.astype(np.int64), len(isl) - 1)])
    cached_of_rows = None if cached is None else cached.rows(rows)
    return _Draw(isl[rows], osl[rows], _arrivals(n, burstiness, rng), cached_of_rows)


def _arrivals(n: int, burstiness: Burstiness, rng: np.random.Generator) -> FloatArray:
    """Draw ``n`` arrival times, scaled so that the last is at n seconds."""
    arrival = unit_arrivals(n, burstiness, rng)
    return np.asarray(arrival * (n / arrival[-1]), np.float64)
