"""Module-level against instance-level scaling in the simulator (B5): a few GPUs, rates up to 50/s.

The engine keeps an instance's speed for a whole run, so each rate is a steady state of its own:
Algorithm 1 decides what is replicated, the instance then runs S times as fast, and what acting
costs (table 2) stands beside the result instead of inside it. An OOM event is a sequence whose KV
cache does not fit: this engine recomputes it, one without paging would fail there.

S is read in two ways. ``source``: a layer with p copies takes 1 / p of its time (section 4.1).
``split``: it takes the time of 1 / p of the batch, which in decode is hardly less, since every copy
reads all weights of the layer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from simulation.engine.run import simulate
from simulation.errors import SimulationError
from simulation.fleet import Fleet, Pool, Region, Tier
from simulation.metrics import meets_slo
from simulation.performance.adjusted import adjusted, scaled
from simulation.performance.profile import Profile, iteration_s
from simulation.performance.specs import GpuSpec
from simulation.policies.flat import Flat
from simulation.provisioning.modules.costs import Cost, acting_cost
from simulation.provisioning.modules.scale_up import Replication, algorithm1
from simulation.provisioning.modules.speedup import ModuleProblem, runs
from simulation.results import COMPLETED, SimulationResult
from simulation.trace import Trace

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int32]
READINGS = ("source", "split")


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
    isl: IntArray
    osl: IntArray
    tier: Tier
    memory_share: float = 0.9

    @property
    def room_bytes(self) -> float:
        return self.memory_share * self.gpu.memory_bytes


@dataclass(frozen=True, slots=True, eq=False)
class Deployment:
    """How many instances, and whether their layers may be copied to GPUs that are idle.

    ``replica_bytes``: most that copies of all instances take together; None: what there is.
    """

    name: str
    instances: int
    elastic: bool = False
    reading: str = "split"
    replica_bytes: float | None = None
    moves_kv: bool = False  # KV caches of some layers go to the idle GPUs, before any copy


@dataclass(frozen=True, slots=True, eq=False)
class Outcome:
    """One deployment at one rate."""

    deployment: str
    rate: float
    speedup: float
    replicated_layers: int  # copies, over all instances
    tokens_s: float
    latency_s: float  # mean, to the last token
    p95_s: float
    attainment: float
    memory_bytes: float  # weights, copies and the most KV cache in use
    oom_share: float  # sequences that did not fit, over requests
    gpus: int  # with anything of it on them
    acting: Cost  # of making the copies, per instance


def module_problem(setting: Setting, deployment: Deployment, batch: float) -> ModuleProblem:
    """The replication problem of one instance: it is at home on its GPU(s) and may copy layers to
    its share of the GPUs that no instance lives on.

    gamma: a scatter and a gather of the batch's activations over the link, over a layer's time.
    """
    home = np.arange(setting.layers) * setting.gpus_per_instance // setting.layers
    used = deployment.instances * setting.gpus_per_instance
    idle = setting.gpus - used
    if idle < 0:
        raise SimulationError(
            f"{deployment.name}: {used} GPUs are needed and there are {setting.gpus}."
        )
    share = idle * setting.room_bytes / deployment.instances
    if deployment.replica_bytes is not None:
        share = min(share, deployment.replica_bytes / deployment.instances)
    free = np.zeros(setting.gpus_per_instance + idle)
    free[setting.gpus_per_instance :] = share / max(idle, 1)
    context = float(setting.isl.mean() + setting.osl.mean() / 2)
    layer_s = float(iteration_s(setting.profile, batch, batch * context, 0, 0)) / setting.layers
    crossing = 2 * (setting.link_s + batch * setting.hidden_bytes / setting.link_bytes_s)
    return ModuleProblem(
        home=home.astype(np.int64),
        layer_bytes=setting.layer_bytes,
        free_bytes=free,
        vacancy=np.where(free > 0, 1.0, 0.0),
        speed=np.ones(free.size),
        gamma=crossing / layer_s,
    )


def speed_of(
    setting: Setting, problem: ModuleProblem, plan: Replication, batch: float, reading: str
) -> float:
    """S of a replication at a batch; never below 1, since copies need not be used."""
    if reading not in READINGS:
        raise SimulationError(f"There is no reading {reading!r}; use {' or '.join(READINGS)}.")
    if reading == "source":
        return max(1.0, plan.speedup)
    copies = 1 + plan.replicated.sum(axis=1)
    context = float(setting.isl.mean() + setting.osl.mean() / 2)
    part = np.maximum(batch / copies, 1.0)
    whole = float(iteration_s(setting.profile, batch, batch * context, 0, 0))
    layer = iteration_s(setting.profile, part, part * context, 0, 0) / setting.layers
    crossing = problem.gamma * whole / setting.layers * runs(plan.replicated)
    return max(1.0, whole / float(layer.sum() + crossing))


def run(
    setting: Setting,
    deployment: Deployment,
    rate: float,
    *,
    requests: int = 1500,
    seed: int = 0,
) -> Outcome:
    """Poisson arrivals at ``rate`` on a deployment in its steady state.

    The batch that a replication is judged at is what runs without it (Little's law over a first
    run), at least 1.
    """
    if deployment.moves_kv:
        return _with_moved_kv(setting, deployment, rate, requests, seed)
    if not deployment.elastic:
        result = _simulated(setting, setting.profile, deployment.instances, rate, requests, seed)
        return _outcome(setting, deployment, rate, result, 1.0, 0, Cost(0.0, 0.0))
    base = _simulated(setting, setting.profile, deployment.instances, rate, requests, seed)
    batch = _batch(base, deployment.instances, setting.profile.max_batch)
    problem = module_problem(setting, deployment, batch)
    plan = algorithm1(problem)
    speed = speed_of(setting, problem, plan, batch, deployment.reading)
    copied = int(plan.replicated.sum())
    faster = scaled(setting.profile, 1.0 / speed)
    result = _simulated(setting, faster, deployment.instances, rate, requests, seed)
    cost = acting_cost("replicate", copied, setting.layer_bytes) if copied else Cost(0.0, 0.0)
    return _outcome(setting, deployment, rate, result, speed, copied * deployment.instances, cost)


def _with_moved_kv(
    setting: Setting, deployment: Deployment, rate: float, requests: int, seed: int
) -> Outcome:
    """Module reduction under memory pressure (Algorithm 2, first phase): KV caches of as many
    layers as the idle GPUs have room for in proportion. Attention of those runs there, which costs
    a scatter and a gather per layer and pass; nothing is copied."""
    problem = module_problem(setting, deployment, 1.0)
    idle_bytes = float(problem.free_bytes.sum())
    home_bytes = setting.profile.kv_capacity_tokens * setting.kv_bytes_per_token
    moved = int(setting.layers * idle_bytes / (idle_bytes + home_bytes))
    base = _simulated(setting, setting.profile, deployment.instances, rate, requests, seed)
    batch = _batch(base, deployment.instances, setting.profile.max_batch)
    gamma = module_problem(setting, deployment, batch).gamma
    slower = 1.0 + moved * gamma / setting.layers
    grown = setting.layers / (setting.layers - moved) if moved < setting.layers else 1.0
    tokens = min(home_bytes * grown, home_bytes + idle_bytes) / setting.kv_bytes_per_token
    profile = adjusted(scaled(setting.profile, slower), kv_capacity_tokens=int(tokens))
    result = _simulated(setting, profile, deployment.instances, rate, requests, seed)
    kv_layer = home_bytes / setting.layers
    cost = acting_cost("migrate", moved, kv_layer) if moved else Cost(0.0, 0.0)
    larger = replace(setting, profile=profile)
    return _outcome(larger, deployment, rate, result, 1.0 / slower, 0, cost)


def study(
    setting: Setting, deployments: Sequence[Deployment], rates: Sequence[float], *, seed: int = 0
) -> tuple[Outcome, ...]:
    """Every deployment at every rate."""
    return tuple(
        run(setting, deployment, rate, seed=seed) for deployment in deployments for rate in rates
    )


def _simulated(
    setting: Setting, profile: Profile, instances: int, rate: float, requests: int, seed: int
) -> SimulationResult:
    rng = np.random.default_rng(seed)
    picked = rng.integers(len(setting.isl), size=requests)
    codes = np.zeros(requests, np.int16)
    arrival = np.cumsum(rng.exponential(1.0 / rate, size=requests))
    profile = adjusted(profile, tp=setting.gpus_per_instance)
    trace = Trace(
        arrival_s=arrival,
        input_tokens=setting.isl[picked],
        output_tokens=setting.osl[picked],
        model=codes,
        region=codes,
        tier=codes,
        models=(profile.model,),
        regions=("",),
        tiers=(setting.tier.name,),
        start_s=0.0,
        provenance="synthesised: Poisson",
    )
    pool = Pool(profile.model, "", profile, setting.gpu, instances, instances, instances, 0.0, 0.0)
    fleet = Fleet((setting.tier,), (Region("", 0.0, 1.0),), (pool,), np.zeros((1, 1)))
    whole = float(arrival[-1]) + 1.0
    return simulate(
        trace, fleet, Flat([instances], interval_s=whole), seed=seed, duration_s=whole,
        interval_s=whole,
    )  # fmt: skip


def _batch(result: SimulationResult, instances: int, most: int) -> float:
    """Mean sequences of an instance while requests arrive."""
    log = result.requests
    stayed = np.minimum(log.e2e_s[np.isfinite(log.e2e_s)], result.duration_s).sum()
    return float(np.clip(stayed / result.duration_s / instances, 1.0, most))


def _outcome(
    setting: Setting,
    deployment: Deployment,
    rate: float,
    result: SimulationResult,
    speed: float,
    copies: int,
    cost: Cost,
) -> Outcome:
    log = result.requests
    done = log.outcome == COMPLETED
    tokens = float(result.trace.output_tokens[done].sum())
    ends = float(np.nanmax(log.last_token_s[done])) if done.any() else result.duration_s
    running = _batch(result, deployment.instances, setting.profile.max_batch)
    context = float(setting.isl.mean() + setting.osl.mean() / 2)
    held = min(running * context, float(setting.profile.kv_capacity_tokens))
    idle = setting.gpus - deployment.instances * setting.gpus_per_instance
    latency = log.e2e_s[done]
    return Outcome(
        deployment=deployment.name,
        rate=rate,
        speedup=speed,
        replicated_layers=copies,
        tokens_s=tokens / max(ends, 1e-9),
        latency_s=float(latency.mean()) if latency.size else float("inf"),
        p95_s=float(np.quantile(latency, 0.95)) if latency.size else float("inf"),
        attainment=float(meets_slo(result).mean()),
        memory_bytes=deployment.instances
        * (setting.weight_bytes + held * setting.kv_bytes_per_token)
        + copies * setting.layer_bytes,
        oom_share=min(1.0, float(result.totals.preemptions.sum()) / len(result.trace)),
        gpus=deployment.instances * setting.gpus_per_instance
        + (idle if copies or deployment.moves_kv else 0),
        acting=cost,
    )
