"""Compute the GPUs that services need if they share GPUs.

The ways of sharing are prefill and decode on common GPUs, chunked prefill, and several models on
common GPUs. A way is confirmed if its requests meet their limits in a replay.
"""

from dataclasses import dataclass, replace

import numpy as np

from planner.domain.progress import Progress
from planner.domain.provisioning.levels import draw_replay_requests, problem_of, with_ample_replicas
from planner.domain.provisioning.unit import Case, Sentences, groups
from planner.domain.serialise import gpu_words
from simulation.fleet import Tier
from simulation.performance.compiled_graph import GraphProfile, compile_graph
from simulation.performance.graph import operator_graph
from simulation.performance.memory import kv_bytes_per_token
from simulation.performance.specs import Arrangement
from simulation.provisioning.device_sharing import (
    ChunkedPlan,
    SharedPlan,
    best_chunked,
    chunked_service,
    place_on_common_devices,
)
from simulation.provisioning.level import Level
from simulation.provisioning.level_confirmation import TIGHTER_SHARES
from simulation.provisioning.replay import CATCH_UP_FACTOR, LevelReplay, can_replay, replay_together
from simulation.provisioning.replicas import ReplicaPlan
from simulation.provisioning.workload import PhaseProblem
from simulation.sizing.capacity import SizingCase, isolated_role
from simulation.sizing.trial import RequestDraws, Trial, pool_of

APART, TOGETHER, CHUNKED_MODEL, CHUNKED_OPERATOR = (
    "apart", "together", "chunked_model", "chunked_operator",
)  # fmt: skip
HOW = {
    TOGETHER: "prefill and decode by operators on common GPUs",
    CHUNKED_MODEL: "whole replicas with chunked prefill",
    CHUNKED_OPERATOR: "operators that compute prompts in chunks among decodes",
}


MOST_REPLICAS_FACTOR = 1.5  # replays try up to this many times the replicas of a plan
REQUESTS = 2000  # requests of a replay of chunked prefill


@dataclass(frozen=True, slots=True)
class SharingWay:
    """What prefill and decode need together in one way of sharing GPUs."""

    gpus: int
    energy_w: float
    memory_gb: float
    attainment: float | None = None  # attainment in a replay; None: not replayed
    confirmed: bool = True  # False: a replay misses the limits, or is needed and impossible


@dataclass(frozen=True, slots=True)
class SharedService:
    """Both phases of one model in one region, in up to four ways of sharing GPUs (``ways``).

    ``best`` is the confirmed way with the fewest GPUs, then the lowest power, then the simplest.
    """

    model: str
    region: str
    gpu: str
    ways: dict[str, SharingWay]
    best: str
    chunk_tokens: float | None
    chunk_batch: int | None

    @property
    def where(self) -> str:
        """Return model, region and GPU type as they begin a sentence."""
        return f"{self.model} in {self.region} on {self.gpu}"


@dataclass(frozen=True, slots=True)
class SharedModels:
    """What all models of a region on one GPU type need, on separate and on common GPUs."""

    region: str
    gpu: str
    models: tuple[str, ...]
    gpus_apart: int
    gpus: int
    energy_w_apart: float
    energy_w: float
    memory_gb: float
    attainment: float | None = None  # lowest of a service in a replay; None: not replayed
    confirmed: bool = True


@dataclass(frozen=True, slots=True)
class SharedGpus:
    """What sharing GPUs saves: between the phases of a service, and between models."""

    services: tuple[SharedService, ...]
    models: tuple[SharedModels, ...]


def shared_gpus(cases: list[Case], progress: Progress) -> SharedGpus:
    """Return the GPUs that the chosen ``cases`` need if phases or models share GPUs."""
    by_service = groups(cases, lambda case: (case.model, case.region, case.gpu))
    by_gpu = groups(cases, lambda case: (case.region, case.gpu))
    # Prefill and decode of a service. Services with a plan for one phase only are left out.
    pairs = [group for group in by_service if len(group) == 2]
    several_models = [group for group in by_gpu if len({case.model for case in group}) > 1]
    total = len(pairs) + len(several_models)

    def report(done: int, group: list[Case]) -> None:
        """Report that ``group`` is placed next, after ``done`` groups."""
        names = " and ".join(dict.fromkeys(case.model for case in group))
        progress(done / total, f"Placing together: {names} in {group[0].region}")

    services: list[SharedService] = []
    for done, pair in enumerate(pairs):
        report(done, pair)
        services.append(_share_between_phases(*pair))
    models: list[SharedModels] = []
    for done, group in enumerate(several_models, len(pairs)):
        report(done, group)
        models.append(_share_between_models(group))
    return SharedGpus(tuple(services), tuple(models))


def _share_between_phases(prefill: Case, decode: Case) -> SharedService:
    """Return the ways in which prefill and decode of one service can share GPUs, and the best.

    Ways without a plan are left out.
    """
    # Plan both phases on common GPUs, and as one service whose replicas compute prompts in chunks.
    shared = place_on_common_devices(
        [prefill.problem, decode.problem],
        [prefill.smallest, decode.smallest],
        prefill.device_bytes,
    )
    service = chunked_service(prefill.service, decode.service)
    chunked = with_ample_replicas(problem_of(service, prefill.weights, measured=prefill.measured))
    # If a replay decides, mean queueing times must not rule out operators before it.
    chunks = best_chunked(chunked, prefill.device_bytes, fall_back=prefill.judge is None)
    ways = {
        APART: SharingWay(
            shared.devices_without_sharing,
            sum(level.power_w for level in shared.separate_levels),
            sum(level.memory_bytes for level in shared.separate_levels) / 1e9,
        )
    }
    if shared.placement is not None:
        ways[TOGETHER] = SharingWay(
            shared.devices, shared.power_w, shared.memory_bytes / 1e9,
            *_replay_services([prefill, decode], shared),
        )  # fmt: skip
    if chunks.model is not None:
        ways[CHUNKED_MODEL] = _replayed_chunks(chunks.model, chunked, prefill, decode)
    # Operators with chunked prefill, unless whole replicas are better or a confirmed way has fewer.
    if chunks.operator is not None and chunks.operator.replicas is None:
        fewest = min(way.gpus for way in ways.values() if way.confirmed)
        if prefill.judge is None or chunks.operator.devices <= fewest:
            ways[CHUNKED_OPERATOR] = _replayed_operators(chunks, chunked, prefill, decode, fewest)
    # Powers are rounded so that equal ones tie. ``min`` then takes the first, simplest way.
    needs = {
        name: (way.gpus, round(way.energy_w, 6)) for name, way in ways.items() if way.confirmed
    }
    return SharedService(
        model=prefill.model,
        region=prefill.region,
        gpu=prefill.gpu,
        ways=ways,
        best=min(needs, key=needs.__getitem__),
        chunk_tokens=chunks.chunk_tokens,
        chunk_batch=chunks.batch,
    )


def _way_of_level(level: Level) -> SharingWay:
    """Return a plan as a way of sharing that is not yet replayed."""
    return SharingWay(level.devices, level.power_w, level.memory_bytes / 1e9)


def _replay_services(cases: list[Case], shared: SharedPlan) -> tuple[float | None, bool]:
    """Replay services on common GPUs; return their lowest attainment and whether all meet targets.

    If they cannot be replayed, return (None, True).
    """
    # A judge states the requests to replay and the required attainment.
    judges = [case.judge for case in cases if case.judge is not None and can_replay(case.problem)]
    if not shared.shared_levels or len(judges) < len(cases):
        return None, True
    replays = []
    for case, judge in zip(cases, judges, strict=True):
        first_draw = draw_replay_requests(case.problem, judge)[:1]
        replays.append(LevelReplay(case.problem, first_draw, case.device_bytes))
    replayed = replay_together(replays, shared.shared_levels)
    met = [
        result.attainment >= judge.attainment
        for result, judge in zip(replayed, judges, strict=True)
    ]
    return min(result.attainment for result in replayed), all(met)


def _replayed_chunks(level: Level, phase: PhaseProblem, prefill: Case, decode: Case) -> SharingWay:
    """Return the fewest whole replicas with chunked prefill that meet both limits in a replay.

    ``level`` is their plan by mean values, for the joint problem ``phase``. The search begins at
    its number of replicas, and ends at ``MOST_REPLICAS_FACTOR`` times that. If none is enough,
    return the plan, not confirmed. Plans with images are not replayed.
    """
    plan, judge = level.replicas, prefill.judge
    assert plan is not None
    if judge is None or phase.service.image_tokens:
        return _way_of_level(level)
    profile = _chunked_profile(plan, phase, prefill)
    limits = Tier(
        "both", ttft_s=prefill.service.time_budget_s, tbt_s=decode.service.time_budget_s,
        attainment=max(prefill.limit.attainment, decode.limit.attainment),
    )  # fmt: skip
    pools, lengths, tier = isolated_role(SizingCase(profile, (judge.isl, judge.osl), limits))
    trial = Trial(pools, RequestDraws(lengths, seed=judge.seed, requests=REQUESTS), tier)
    attained = 0.0
    for replicas in range(plan.replicas, int(MOST_REPLICAS_FACTOR * plan.replicas) + 2):
        run = trial.at(phase.service.requests_s, (pool_of(profile, replicas),))
        attained, _ = trial.measured_attainment(run)
        if attained >= tier.attainment:
            factor = replicas / plan.replicas
            return SharingWay(
                replicas * plan.parallel * plan.stages, factor * level.power_w,
                factor * level.memory_bytes / 1e9, attained,
            )  # fmt: skip
    return replace(_way_of_level(level), attainment=attained, confirmed=False)


def _chunked_profile(plan: ReplicaPlan, phase: PhaseProblem, prefill: Case) -> GraphProfile:
    """Return the profile of one replica of ``plan`` that computes prompts in chunks."""
    shape, gpu = phase.service.shape, phase.service.gpu
    # Indices of the plan's batch and GPUs per stage among the sorted choices of the problem.
    batch_index = int(np.searchsorted(phase.problem.batches, plan.batch))
    parallel_index = int(np.searchsorted(phase.problem.parallel, plan.parallel))
    # Each stage of a pipeline has a part of the weights, and a batch in flight.
    weight_bytes = float(phase.replica_bytes[batch_index, parallel_index]) / plan.stages
    kv_bytes = plan.parallel * plan.stages * (prefill.device_bytes - weight_bytes)
    sequences = plan.batch * plan.stages
    arrangement = Arrangement(tp=plan.parallel, pp=plan.stages, weights=phase.weights)
    graph = operator_graph(shape, arrangement)
    # Each sequence brings isl prompt tokens for osl decode steps.
    prompt_tokens = sequences * phase.service.isl / phase.service.osl
    return GraphProfile(
        model=prefill.model, gpu=prefill.gpu, tp=plan.parallel,
        max_batch=plan.stages * int(phase.problem.batches[-1]),
        # The decoding sequences, and a chunk of prompts of at least 256 tokens
        max_batch_tokens=sequences + max(int(CATCH_UP_FACTOR * prompt_tokens), 256),
        kv_capacity_tokens=max(1, int(kv_bytes / kv_bytes_per_token(shape))),
        provenance=gpu.provenance, kind="roofline", curve=compile_graph(graph, phase.timing),
        graph=graph, timing=phase.timing, spread=0.0,
    )  # fmt: skip


def _replayed_operators(
    chunks: ChunkedPlan, phase: PhaseProblem, prefill: Case, decode: Case, fewest: int
) -> SharingWay:
    """Return operators with chunked prefill that meet both limits in a replay.

    The plan of ``chunks`` (by mean values, for the joint problem ``phase``) is replayed first. Then
    plans for tighter limits are, while they need at most ``fewest`` GPUs. If no plan meets the
    limits, or they cannot be replayed, return the first plan, not confirmed.
    """
    first, judge = chunks.operator, prefill.judge
    assert first is not None
    if judge is None or not can_replay(phase):
        return replace(_way_of_level(first), confirmed=judge is None)
    replay = LevelReplay(phase, draw_replay_requests(phase, judge), prefill.device_bytes)
    target = max(prefill.limit.attainment, decode.limit.attainment)
    level, attained = first, replay.latency_of(first).attainment
    of_first = attained
    for slo_share in TIGHTER_SHARES[1:]:
        if attained >= target:
            break
        tighter = best_chunked(phase, prefill.device_bytes, slo_share, fall_back=False).operator
        if tighter is None or tighter.devices > fewest:
            break
        level, attained = tighter, replay.latency_of(tighter).attainment
    if attained >= target:
        return replace(_way_of_level(level), attainment=attained)
    return replace(_way_of_level(first), attainment=of_first, confirmed=False)


def _share_between_models(group: list[Case]) -> SharedModels:
    """Return what the models of ``group`` need on separate and on common GPUs.

    ``group`` has all cases of a region and GPU type.
    """
    first, separate = group[0], [case.smallest for case in group]
    problems = [case.problem for case in group]
    shared = place_on_common_devices(problems, separate, first.device_bytes)
    attainment, confirmed = _replay_services(group, shared)
    return SharedModels(
        region=first.region,
        gpu=first.gpu,
        models=tuple(dict.fromkeys(case.model for case in group)),
        gpus_apart=shared.devices_without_sharing,
        gpus=shared.devices,
        energy_w_apart=sum(level.power_w for level in separate),
        energy_w=shared.power_w,
        memory_gb=shared.memory_bytes / 1e9,
        attainment=attainment,
        confirmed=confirmed,
    )


def sentences(shared: SharedGpus | None) -> Sentences:
    """Return sentences on services and models that need fewer GPUs if they share GPUs.

    Whole replicas with chunked prefill also count among those without savings below the replica.
    There are no sentences if sharing was not computed (None).
    """
    if shared is None:
        return Sentences()
    whole_replicas_win, sharing_wins = [], []
    for service in shared.services:
        apart, best = service.ways[APART], service.ways[service.best]
        if best.gpus >= apart.gpus:
            continue
        need = gpu_words(best.gpus)
        if service.best == CHUNKED_MODEL:
            whole_replicas_win.append(
                f"{service.where}: provisioning below the replica is beaten by whole replicas "
                f"with chunked prefill, on {need} instead of {apart.gpus}."
            )
        sharing_wins.append(
            f"{service.where}: {HOW[service.best]} need {need}, phases apart {apart.gpus}; "
            f"{_confirmation(best.attainment)}."
        )
    for group in shared.models:
        if group.gpus < group.gpus_apart and group.confirmed:
            sharing_wins.append(
                f"{' and '.join(group.models)} in {group.region} need {gpu_words(group.gpus)} if "
                f"they share {group.gpu}, else {group.gpus_apart}; "
                f"{_confirmation(group.attainment)}."
            )
    return Sentences(tuple(whole_replicas_win), tuple(sharing_wins))


def _confirmation(attainment: float | None) -> str:
    """Return a clause on whether a replay confirmed this way of sharing."""
    if attainment is None:
        return "by mean queueing times, without a replay"
    return f"{attainment:.1%} of requests are within the limits in a replay"
