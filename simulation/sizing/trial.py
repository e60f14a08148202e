"""The same requests at any rate through a small flat fleet: what sizes are judged by."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from simulation.arrays import FloatArray, Int32Array
from simulation.engine.run import simulate
from simulation.errors import SimulationError
from simulation.fleet import Fleet, KvLink, Pool, Region, Routing, Tier
from simulation.metrics import meets_slo
from simulation.performance.adjusted import adjusted
from simulation.performance.profile import Profile
from simulation.performance.specs import GpuSpec
from simulation.policies.flat import Flat
from simulation.results import COMPLETED, SimulationResult
from simulation.sizing.workload import unit_arrivals
from simulation.trace import Trace

Pools = tuple[Pool, ...]

SECOND = 4  # the stream of the second draw; 1 to 3 are the traffic's
WARM_UP = 2.0  # mean lives of a request before anything is judged
UNLIMITED = 1_000  # times the memory: the counterfactual that tells whether memory binds


def pool_of(
    profile: Profile,
    instances: int = 1,
    *,
    role: str = "both",
    link: KvLink | None = None,
    batching: str = "chunked",
) -> Pool:
    """``instances`` that are there all the time, in a nameless region, for nothing."""
    gpu = GpuSpec(profile.gpu, 0.0, 0.0, 0.0, 0.0, profile.provenance)
    n = instances
    return Pool(
        profile.model, "", profile, gpu, n, n, n, 0.0, 0.0, role=role, link=link, batching=batching
    )


def roomy(pools: Pools) -> Pools:
    """The pools with so much KV memory that it does not matter."""
    return tuple(
        replace(pool, profile=adjusted(
            pool.profile, kv_capacity_tokens=UNLIMITED * pool.profile.kv_capacity_tokens
        )) for pool in pools
    )  # fmt: skip


class Trial:
    """Pools of one model, a tier, and two independent draws of requests, the second of twice as
    many: one lucky draw near saturation must not set a size."""

    def __init__(
        self,
        pools: Pools,
        lengths: tuple[npt.ArrayLike, npt.ArrayLike],
        tier: Tier,
        *,
        seed: int,
        requests: int,
        burstiness: float = 1.0,
        routing: Routing | None = None,
    ) -> None:
        isl, osl = (np.asarray(column, np.int32) for column in lengths)
        if not len(isl) or len(isl) != len(osl) or requests < 1:
            raise SimulationError("Capacity needs a sample of lengths, as many inputs as outputs.")
        self._lengths, self._seed, self._requests = (isl, osl), seed, requests
        self._burstiness = burstiness
        self._draws: dict[int, _Draw] = {}
        self.pools, self.seed, self.routing = pools, seed, routing or Routing()
        self.tier = replace(tier, deferrable=False)

    def _drawn(self, draw: int) -> _Draw:
        if draw not in self._draws:
            n, stream = ((self._requests, self._seed), (2 * self._requests, [self._seed, SECOND]))[
                draw
            ]
            rng = np.random.default_rng(stream)
            self._draws[draw] = _Draw(*self._lengths, n, self._burstiness, rng)
        return self._draws[draw]

    @property
    def isl(self) -> Int32Array:
        return self._drawn(0).isl

    @property
    def osl(self) -> Int32Array:
        return self._drawn(0).osl

    def at(self, rate: float, pools: Pools | None = None, *, draw: int = 0) -> SimulationResult:
        """A draw at requests/s."""
        given = self._drawn(draw)
        return self._run(given, given.arrival / rate, pools or self.pools)

    def met(self, run: SimulationResult) -> bool:
        return bool(meets_slo(run).mean() >= self.tier.attainment)

    def attained(self, run: SimulationResult) -> tuple[float, int]:
        """Share of requests within the tier, and of how many: those that came WARM_UP mean lives
        after the start, when the pool is as full as it will be, and one before the end, so that
        it stays so while they are served. Of a run of few lives a fifth of it is a life at most."""
        log, arrival = run.requests, run.trace.arrival_s
        lives = log.e2e_s[np.isfinite(log.e2e_s)]
        life = min(float(lives.mean()) if len(lives) else np.inf, arrival[-1] / (2 * WARM_UP + 1))
        judged = (arrival >= WARM_UP * life) & (arrival <= arrival[-1] - life)
        return float(meets_slo(run)[judged].mean()), int(judged.sum())

    def met_again(self, rate: float, pools: Pools | None = None) -> bool:
        """Whether the second draw meets the tier too."""
        return self.met(self.at(rate, pools, draw=1))

    def saturated_rps(self, pools: Pools | None = None) -> float:
        """Completions per second with everything queued from the start, fill and tail left out."""
        given, pools = self._drawn(0), pools or self.pools
        log = self._run(given, np.zeros(len(given.arrival)), pools).requests
        last = np.sort(log.last_token_s[log.outcome == COMPLETED])
        if not len(last):
            profile = pools[-1].profile
            raise SimulationError(
                f"No request of the sample fits in {profile.model}'s KV memory on {profile.gpu} "
                f"({profile.kv_capacity_tokens} tokens); use more GPUs per instance."
            )
        a, b = int(0.2 * (len(last) - 1)), int(0.8 * (len(last) - 1))
        if last[b] > last[a]:
            return float((b - a) / (last[b] - last[a]))
        return float(len(last) / last[-1])

    def _run(self, given: _Draw, arrival: FloatArray, pools: Sequence[Pool]) -> SimulationResult:
        codes = np.zeros(len(arrival), np.int16)
        trace = Trace(
            arrival_s=arrival,
            input_tokens=given.isl,
            output_tokens=given.osl,
            model=codes,
            region=codes,
            tier=codes,
            models=(pools[0].model,),
            regions=("",),
            tiers=(self.tier.name,),
            start_s=0.0,
            provenance="synthesised",
        )
        fleet = Fleet(
            tiers=(self.tier,),
            regions=(Region("", 0.0, 1.0),),
            pools=tuple(pools),
            latency_s=np.zeros((1, 1)),
            routing=self.routing,
        )
        whole = float(arrival[-1]) + 1.0
        policy = Flat([pool.initial for pool in pools], interval_s=whole)
        return simulate(trace, fleet, policy, seed=self.seed, duration_s=whole, interval_s=whole)


class _Draw:
    """Requests at one a second on the whole. Lengths are taken evenly from the sorted sample
    (systematic sampling), so that a draw has as much to do as the sample says; their order and the
    gaps are random."""

    def __init__(
        self, isl: Int32Array, osl: Int32Array, n: int, burstiness: float, rng: np.random.Generator
    ) -> None:
        sorted_rows = np.lexsort((osl, isl))
        even = (np.arange(n) + rng.uniform()) * (len(isl) / n)
        rows = rng.permutation(sorted_rows[np.minimum(even.astype(np.int64), len(isl) - 1)])
        self.isl: Int32Array = isl[rows]
        self.osl: Int32Array = osl[rows]
        arrival = unit_arrivals(n, burstiness, rng)
        self.arrival = arrival * (n / arrival[-1])
