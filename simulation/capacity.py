"""How much one instance carries: the largest request rate at which it still meets a tier's SLO."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from simulation.engine import simulate
from simulation.errors import SimulationError
from simulation.fleet import Fleet, Pool, Region, Tier
from simulation.metrics import meets_slo
from simulation.performance.adjusted import adjusted
from simulation.performance.profile import Profile
from simulation.performance.specs import GpuSpec
from simulation.policies.flat import Flat
from simulation.queueing import largest_rate
from simulation.results import COMPLETED, RequestLog, SimulationResult
from simulation.trace import Trace

PRECISION = 0.01  # relative, of the rate found
REQUESTS = 32_000  # simulated at each rate
TRICKLE = 1e-4  # of the saturated rate: requests hardly ever meet
UNLIMITED = 1_000  # times the memory: the counterfactual that tells whether memory binds


@dataclass(frozen=True, slots=True)
class Capacity:
    """What one instance carries at a tier's SLO."""

    max_rps: float
    input_tps: float  # input tokens/s at that rate
    ttft_s: float  # that the tier's share of requests does not exceed, at that rate
    tbt_s: float  # likewise; NaN when every answer has one token
    bound_by: str  # ttft, tbt, e2e, memory or throughput
    attainment: float  # X4, measured at that rate


def capacity(
    profile: Profile,
    lengths: tuple[npt.ArrayLike, npt.ArrayLike],
    tier: Tier,
    *,
    seed: int = 0,
    requests: int = REQUESTS,
) -> Capacity:
    """Largest Poisson rate at which one instance meets ``tier`` (X4), by simulation.

    ``lengths`` is a sample of (input tokens, output tokens), drawn from jointly. The rate is found
    to within 1% by bisection over runs that share their random numbers: the same requests, the same
    unit gaps, stretched. It never exceeds the saturated throughput, which is measured with an
    endless queue. A deferrable tier is sized as if its requests had been released. Raises
    ``SimulationError`` when even a trickle misses the SLO.
    """
    trial = _Trial(profile, lengths, tier, seed, requests)
    saturated = trial.saturated_rps(profile)
    low, high = TRICKLE * saturated, saturated
    at_low = trial.at(low)
    if not trial.met(at_low):
        raise SimulationError(_trickle_sentence(trial, at_low))
    at_high = trial.at(high)
    if trial.met(at_high):
        roomy = trial.saturated_rps(_roomy(profile))
        bound = "memory" if roomy > (1.0 + 5 * PRECISION) * saturated else "throughput"
        return trial.answer(high, at_high, bound)
    # The fluid model's limit is a good first guess of where the SLO breaks.
    guess = largest_rate(profile, float(trial.isl.mean()), float(trial.osl.mean()))[0]
    rate = guess if low < guess < high else (low + high) / 2
    while high - low > PRECISION * high:
        run = trial.at(rate)
        if trial.met(run):
            low, at_low = rate, run
        else:
            high, at_high = rate, run
        rate = (low + high) / 2
    if trial.met(trial.at(high, _roomy(profile))):
        return trial.answer(low, at_low, "memory")
    return trial.answer(low, at_low, _most_missed(at_high.requests, tier))


class _Trial:
    """One instance, one draw of requests, any rate."""

    def __init__(
        self,
        profile: Profile,
        lengths: tuple[npt.ArrayLike, npt.ArrayLike],
        tier: Tier,
        seed: int,
        requests: int,
    ) -> None:
        isl, osl = (np.asarray(column, np.int32) for column in lengths)
        if not len(isl) or len(isl) != len(osl) or requests < 1:
            raise SimulationError("Capacity needs a sample of lengths, as many inputs as outputs.")
        rng = np.random.default_rng(seed)
        rows = rng.integers(len(isl), size=requests)
        self.isl, self.osl = isl[rows], osl[rows]
        self.arrival = np.cumsum(rng.exponential(size=requests))
        self.profile, self.seed = profile, seed
        self.tier = replace(tier, deferrable=False)

    def at(self, rate: float, profile: Profile | None = None) -> SimulationResult:
        return self._run(self.arrival / rate, profile or self.profile)

    def saturated_rps(self, profile: Profile) -> float:
        """Completions per second with everything queued from the start, fill and tail left out."""
        log = self._run(np.zeros(len(self.arrival)), profile).requests
        last = np.sort(log.last_token_s[log.outcome == COMPLETED])
        if not len(last):
            raise SimulationError(
                f"No request of the sample fits in {profile.model}'s KV memory on {profile.gpu} "
                f"({profile.kv_capacity_tokens} tokens); use more GPUs per instance."
            )
        a, b = int(0.2 * (len(last) - 1)), int(0.8 * (len(last) - 1))
        if last[b] > last[a]:
            return float((b - a) / (last[b] - last[a]))
        return float(len(last) / last[-1])

    def met(self, run: SimulationResult) -> bool:
        return bool(meets_slo(run).mean() >= self.tier.attainment)

    def answer(self, rate: float, run: SimulationResult, bound_by: str) -> Capacity:
        log = run.requests
        return Capacity(
            max_rps=rate,
            input_tps=rate * float(self.isl.mean()),
            ttft_s=_quantile(log.ttft_s, self.tier.attainment),
            tbt_s=_quantile(log.tbt_s, self.tier.attainment),
            bound_by=bound_by,
            attainment=float(meets_slo(run).mean()),
        )

    def _run(self, arrival: npt.NDArray[np.float64], profile: Profile) -> SimulationResult:
        codes = np.zeros(len(arrival), np.int16)
        trace = Trace(
            arrival_s=arrival,
            input_tokens=self.isl,
            output_tokens=self.osl,
            model=codes,
            region=codes,
            tier=codes,
            models=(profile.model,),
            regions=("",),
            tiers=(self.tier.name,),
            start_s=0.0,
            provenance="synthesised: Poisson",
        )
        gpu = GpuSpec(profile.gpu, 0.0, 0.0, 0.0, 0.0, profile.provenance)
        fleet = Fleet(
            tiers=(self.tier,),
            regions=(Region("", 0.0, 1.0),),
            pools=(Pool(profile.model, "", profile, gpu, 1, 1, 1, 0.0, 0.0),),
            latency_s=np.zeros((1, 1)),
        )
        whole = float(arrival[-1]) + 1.0
        policy = Flat([1], interval_s=whole)
        return simulate(trace, fleet, policy, seed=self.seed, duration_s=whole, interval_s=whole)


def _roomy(profile: Profile) -> Profile:
    return adjusted(profile, kv_capacity_tokens=UNLIMITED * profile.kv_capacity_tokens)


def _quantile(values: npt.NDArray[np.float64], share: float) -> float:
    known = values[np.isfinite(values)]
    return float(np.quantile(known, share)) if len(known) else float("nan")


def _misses(log: RequestLog, tier: Tier) -> dict[str, tuple[float, float]]:
    """By limit: the share of requests beyond it, and the limit."""
    limits = {
        "ttft": (log.ttft_s, tier.ttft_s),
        "tbt": (log.tbt_s, tier.tbt_s),
        "e2e": (log.e2e_s, tier.e2e_s),
    }
    return {
        name: (float((values > limit).mean()), limit)
        for name, (values, limit) in limits.items()
        if limit is not None
    }


def _most_missed(log: RequestLog, tier: Tier) -> str:
    misses = _misses(log, tier)
    worst = max(misses, key=lambda name: misses[name][0], default="throughput")
    return worst if misses and misses[worst][0] > 0 else "throughput"


def _trickle_sentence(trial: _Trial, run: SimulationResult) -> str:
    profile, tier, log = trial.profile, trial.tier, run.requests
    name = _most_missed(log, tier)
    place = f"{profile.model} on {profile.tp} x {profile.gpu}"
    if name == "throughput":
        lost = float((log.outcome != COMPLETED).mean())
        return (
            f"{place} cannot meet tier {tier.name}: {lost:.1%} of requests need more than its "
            f"{profile.kv_capacity_tokens} KV tokens; use more GPUs per instance."
        )
    values = {"ttft": log.ttft_s, "tbt": log.tbt_s, "e2e": log.e2e_s}[name]
    limit = _misses(log, tier)[name][1]
    return (
        f"{place} cannot meet tier {tier.name}'s {name.upper()} limit of {limit * 1000:.0f} ms "
        f"even at batch 1: {tier.attainment:.0%} of requests take up to "
        f"{_quantile(values, tier.attainment) * 1000:.0f} ms; use a faster profile or a looser "
        "limit."
    )
