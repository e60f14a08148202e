"""Module-level against instance-level scaling in the simulator (B5): a few GPUs, rates up to 50/s.

Every instance is a pool of its own. Elastic ones run under ``simulation.policies.modules``:
copies of layers from idle memory, KV caches that move under pressure, each operation at the cost of
table 2 inside the run. Instance level is a fixed count, or reactive scaling of whole instances that
take their seconds to start. An OOM event is a sequence whose KV cache does not fit: an engine with
paging computes it again (``preempt``), one without gives it up (``fail``).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from simulation.arrays import FloatArray, Int32Array
from simulation.engine.run import simulate
from simulation.errors import SimulationError
from simulation.fleet import Fleet, Pool, Region, Tier
from simulation.metrics import meets_slo
from simulation.modules.layout import Layout
from simulation.performance.adjusted_profile import adjust_profile
from simulation.performance.profile import Profile
from simulation.performance.specs import GpuSpec
from simulation.policies.modules import ModuleScaling
from simulation.policies.reactive import UnifiedReactive
from simulation.policies.static import Static
from simulation.policy import ScalingPolicy
from simulation.results import COMPLETED, OUT_OF_MEMORY, SimulationResult
from simulation.trace import Trace

STEADY_S, FEWEST = 300.0, 1500  # that a rate is kept up, in seconds and in requests
INTERVAL_S = 5.0  # between decisions
# Least and most seconds to adjust a whole 13B instance (CoCoServe, section 2.3); the middle.
INSTANCE_S = (8.0, 25.0)
START_S = sum(INSTANCE_S) / 2


@dataclass(frozen=True, slots=True, eq=False)
class Setting:
    """One model on some GPUs under requests of given lengths."""

    profile: Profile  # of one instance without replicas
    gpu: GpuSpec
    gpus: int  # that there are
    gpus_per_instance: int
    layers: int
    layer_bytes: float
    weight_bytes: float
    kv_bytes_per_token: float
    hidden_bytes: float  # of one token between layers
    link_bytes_s: float
    link_s: float  # of a message, whatever its size
    isl: Int32Array
    osl: Int32Array
    tier: Tier
    memory_share: float = 0.9

    @property
    def room_bytes(self) -> float:
        return self.memory_share * self.gpu.memory_bytes


@dataclass(frozen=True, slots=True, eq=False)
class Deployment:
    """How many instances at the start, and what may be done with them.

    ``elastic``: layers copied to idle GPUs, ``replica_bytes`` of copies at most (None: what there
    is), KV caches moved where ``moves_kv``. ``most``: whole instances that reactive scaling goes up
    to. ``when_full``: of ``fleet.WHEN_FULL``.
    """

    name: str
    instances: int
    elastic: bool = False
    reading: str = "split"
    replica_bytes: float | None = None
    moves_kv: bool = False
    copies: bool = True
    most: int | None = None
    when_full: str = "preempt"


@dataclass(frozen=True, slots=True, eq=False)
class Outcome:
    """One deployment under one load; means are over the time in which requests arrive."""

    deployment: str
    rate: float
    tokens_s: float
    latency_s: float  # mean, to the last token
    p95_s: float
    attainment: float
    memory_bytes: float  # mean of weights, copies and KV cache in use
    oom_share: float  # sequences that did not fit, over requests
    gpus: float  # mean, with anything of it on them
    gpu_parts: float  # mean, idle GPUs counted by the memory that is used of them
    operations: int
    acting_s: float  # that operations took together


def layout_of(setting: Setting, deployment: Deployment) -> Layout:
    """Return the layout of one elastic instance: its own GPUs, and its share of unused GPUs."""
    gpus_each = setting.gpus_per_instance
    idle = setting.gpus - deployment.instances * gpus_each
    if idle < 0:
        raise SimulationError(
            f"{deployment.name}: {deployment.instances * gpus_each} GPUs are needed and there are "
            f"{setting.gpus}."
        )
    apart = setting.weight_bytes - setting.layers * setting.layer_bytes  # what does not move
    part = setting.room_bytes / deployment.instances
    if deployment.replica_bytes is not None and idle and not deployment.moves_kv:
        part = min(part, deployment.replica_bytes / deployment.instances / idle)
    return Layout(
        home=(np.arange(setting.layers) * gpus_each // setting.layers).astype(np.int64),
        room_bytes=np.r_[
            np.full(gpus_each, setting.room_bytes - apart / gpus_each), np.full(idle, part)
        ],
        layer_bytes=setting.layer_bytes,
        kv_layer_token_bytes=setting.kv_bytes_per_token / setting.layers,
        hidden_bytes=setting.hidden_bytes,
        link_bytes_s=setting.link_bytes_s,
        link_s=setting.link_s,
        isl=float(setting.isl.mean()),
        osl=float(setting.osl.mean()),
        reading=deployment.reading,
        copies=deployment.copies,
        moves=deployment.moves_kv,
    )


def run(
    setting: Setting,
    deployment: Deployment,
    rate: float,
    *,
    requests: int | None = None,
    seed: int = 0,
) -> Outcome:
    """Simulate Poisson arrivals at ``rate``, for five minutes unless ``requests`` is given."""
    if requests is None:
        requests = max(FEWEST, round(STEADY_S * rate))
    rng = np.random.default_rng(seed)
    arrival = np.cumsum(rng.exponential(1.0 / rate, size=requests))
    return simulate_arrivals(setting, deployment, arrival, rate, seed=seed)


def simulate_arrivals(
    setting: Setting, deployment: Deployment, arrival_s: FloatArray, rate: float, *, seed: int = 0
) -> Outcome:
    """Simulate the requests at ``arrival_s``; ``rate`` is the label of the load."""
    fleet, policy = fleet_of(setting, deployment)
    trace = trace_of(setting, arrival_s, seed)
    duration = float(np.ceil(arrival_s[-1] / INTERVAL_S) * INTERVAL_S)
    result = simulate(trace, fleet, policy, seed=seed, duration_s=duration, interval_s=INTERVAL_S)
    return _outcome(setting, deployment, rate, result, policy)


def study(
    setting: Setting, deployments: Sequence[Deployment], rates: Sequence[float], *, seed: int = 0
) -> tuple[Outcome, ...]:
    """Return the outcomes of every deployment at every rate."""
    return tuple(
        run(setting, deployment, rate, seed=seed) for deployment in deployments for rate in rates
    )


def fleet_of(setting: Setting, deployment: Deployment) -> tuple[Fleet, ScalingPolicy]:
    """Return the fleet and its policy: pools of one instance each, or one pool that grows."""
    profile = adjust_profile(setting.profile, tp=setting.gpus_per_instance)
    policy: ScalingPolicy
    if deployment.elastic:
        layout = layout_of(setting, deployment)
        tokens = int(max(layout.max_kv_tokens(), 1.0))
        profile = adjust_profile(profile, kv_capacity_tokens=tokens)
        policy = ModuleScaling([layout] * deployment.instances, interval_s=INTERVAL_S)
        counts = [(1, 1)] * deployment.instances
    elif deployment.most is not None:
        policy = UnifiedReactive(interval_s=INTERVAL_S)
        counts = [(deployment.instances, deployment.most)]
    else:
        policy = Static([1] * deployment.instances, interval_s=INTERVAL_S)
        counts = [(1, 1)] * deployment.instances
    pools = tuple(
        Pool(
            profile.model, "", profile, setting.gpu, first, first, most, START_S, 0.0,
            when_full=deployment.when_full,
        )
        for first, most in counts
    )  # fmt: skip
    return Fleet((setting.tier,), (Region("", 0.0, 1.0),), pools, np.zeros((1, 1))), policy


def trace_of(setting: Setting, arrival_s: FloatArray, seed: int) -> Trace:
    """Return requests with input and output lengths drawn in pairs from the setting."""
    rng = np.random.default_rng([seed, 1])
    picked = rng.integers(len(setting.isl), size=arrival_s.size)
    codes = np.zeros(arrival_s.size, np.int16)
    return Trace(
        arrival_s=arrival_s,
        input_tokens=setting.isl[picked],
        output_tokens=setting.osl[picked],
        model=codes,
        region=codes,
        tier=codes,
        models=(setting.profile.model,),
        regions=("",),
        tiers=(setting.tier.name,),
        start_s=0.0,
        provenance="synthesised: Poisson",
    )


def _outcome(
    setting: Setting,
    deployment: Deployment,
    rate: float,
    result: SimulationResult,
    policy: ScalingPolicy,
) -> Outcome:
    log = result.requests
    done = log.outcome == COMPLETED
    tokens = float(result.trace.output_tokens[done].sum())
    ends = float(np.nanmax(log.last_token_s[done])) if done.any() else result.duration_s
    latency = log.e2e_s[done]
    stayed = np.minimum(log.e2e_s[np.isfinite(log.e2e_s)], result.duration_s).sum()
    running = float(stayed / result.duration_s)  # sequences there, Little's law
    context = float(setting.isl.mean() + setting.osl.mean() / 2)
    room = sum(pool.maximum * pool.profile.kv_capacity_tokens for pool in result.fleet.pools)
    kv_bytes = min(running * context, float(room)) * setting.kv_bytes_per_token
    there = _instances(result)
    copies, caches, parts, room_used, operations, acting = 0.0, 0.0, 0.0, 0.0, 0, 0.0
    if isinstance(policy, ModuleScaling):
        copies = (
            float(np.mean([row.sum() for _, row, _ in policy.taken_memory]))
            if policy.taken_memory
            else 0.0
        )
        shares = [row.sum() / setting.layers for _, _, row in policy.taken_memory]
        caches = float(np.mean(shares)) / len(result.fleet.pools) if shares else 0.0
        idle = setting.gpus - deployment.instances * setting.gpus_per_instance
        used = [row.sum() + away.sum() > 0 for _, row, away in policy.taken_memory]
        room_used = idle * float(np.mean(used)) if used else 0.0
        parts = min(room_used, (copies + caches * kv_bytes) / setting.room_bytes)
        operations = len(policy.events)
        acting = float(sum(event.until_s - event.time_s for event in policy.events))
    return Outcome(
        deployment=deployment.name,
        rate=rate,
        tokens_s=tokens / max(ends, 1e-9),
        latency_s=float(latency.mean()) if latency.size else float("inf"),
        p95_s=float(np.quantile(latency, 0.95)) if latency.size else float("inf"),
        attainment=float(meets_slo(result).mean()),
        memory_bytes=there * setting.weight_bytes + kv_bytes + copies,
        oom_share=min(1.0, _out_of_memory(result) / len(result.trace)),
        gpus=there * setting.gpus_per_instance + room_used,
        gpu_parts=there * setting.gpus_per_instance + parts,
        operations=operations,
        acting_s=acting,
    )


def _instances(result: SimulationResult) -> float:
    """Return the mean number of whole instances, starting ones included."""
    totals = result.totals
    seconds = totals.starting_s + totals.idle_s + totals.prefill_s + totals.decode_s
    return float(seconds.sum() / result.duration_s)


def _out_of_memory(result: SimulationResult) -> float:
    """Return how many sequences did not fit: preempted, or rejected if the pool fails when full."""
    if any(pool.when_full == "fail" for pool in result.fleet.pools):
        return float(result.reject_reasons.get(OUT_OF_MEMORY, 0))
    return float(result.totals.preemptions.sum())
