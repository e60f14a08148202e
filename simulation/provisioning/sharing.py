"""Services on the same devices: several models or both phases (A9), and prefill in chunks among
decodes (A6), beside devices of their own.

``placed_together`` puts the operators of services that were planned apart on common devices, each
service within its own limit. Plans that use up their limit leave nothing for what shares a device,
so each service is planned at several fractions of it.

``chunked`` is one engine for both phases: every iteration decodes a batch and computes as many
tokens of prompts as sequences end in it, so weights are read once for both. A prompt takes the
iterations in which its chunks run, osl / batch of them, one prompt at a time; both TBT and TTFT
bound the iteration then: sojourn <= min(TBT, TTFT x batch / osl).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import product

import numpy as np

from simulation.provisioning.interference import Demand
from simulation.provisioning.level import Level
from simulation.provisioning.levels import model_level, operator_level
from simulation.provisioning.placement import Placement, together
from simulation.provisioning.problem import OperatorPlan, OperatorProblem
from simulation.provisioning.workload import PhaseLoad, PhaseProblem, reserving, some_choices

Part = tuple[OperatorProblem, Demand, OperatorPlan]

FRACTIONS = (1.0, 0.8, 0.6)  # of its limit that a service is planned at
LENGTHENED = 1.5
MOST = 81  # combinations of fractions that are placed


@dataclass(frozen=True, slots=True, eq=False)
class Shared:
    """Services on common devices beside devices of their own."""

    apart: tuple[Level, ...]
    placement: Placement | None  # together; None where that needs no fewer
    memory_bytes: float
    power_w: float

    @property
    def devices_apart(self) -> int:
        return sum(level.devices for level in self.apart)

    @property
    def devices(self) -> int:
        return self.devices_apart if self.placement is None else self.placement.devices


def placed_together(
    phases: Sequence[PhaseProblem], apart: Sequence[Level], device_bytes: float
) -> Shared:
    """The fewest devices that common placements of ``phases`` were found on; ``apart``, the best of
    each on devices of its own, is kept where that is no more."""
    plans = [_plans(phase, device_bytes) for phase in phases]
    alone = sum(level.devices for level in apart)
    best: tuple[Placement, tuple[Level, ...]] | None = None
    if all(plans) and len(phases) > 1:
        for picked in _combinations(plans):
            parts = [_within(phase, level) for phase, level in zip(phases, picked, strict=True)]
            if not all(_fits(part, device_bytes) for part in parts):
                continue
            placed = together(parts, device_bytes)
            fewest = alone if best is None else best[0].devices
            if placed.feasible and placed.devices < fewest:
                best = placed, picked
    if best is None:
        return Shared(
            tuple(apart),
            None,
            sum(level.memory_bytes for level in apart),
            sum(level.power_w for level in apart),
        )
    placement, picked = best
    idle = phases[0].power.idle_w
    spared = sum(level.devices for level in picked) - placement.devices
    power = sum(level.power_w for level in picked) - idle * spared
    return Shared(tuple(apart), placement, float(placement.memory_bytes.sum()), power)


def _within(phase: PhaseProblem, level: Level) -> Part:
    """A plan with the limit, and the KV cache, of passes that may take ``LENGTHENED`` times as long
    among others as on devices of their own."""
    assert level.plan is not None
    limit = min(phase.problem.slo_s, LENGTHENED * level.latency_s)
    return replace(phase.problem, slo_s=limit), reserving(phase, limit).demand, level.plan


def _fits(part: Part, device_bytes: float) -> bool:
    problem, demand, plan = part
    chosen = problem.chosen(plan.batch, plan.parallel)
    return bool((demand.shard_bytes(*chosen, plan.replicas) <= device_bytes).all())


def _plans(phase: PhaseProblem, device_bytes: float) -> list[Level]:
    """Plans by operators at fractions of the limit, without those that are alike."""
    levels: list[Level] = []
    for fraction in FRACTIONS:
        tighter = replace(
            phase, problem=replace(phase.problem, slo_s=fraction * phase.problem.slo_s)
        )
        level = operator_level(tighter, device_bytes, quick=True)
        if level is None or level.plan is None:
            continue
        if all(_key(level) != _key(other) for other in levels):
            levels.append(level)
    return levels


def _key(level: Level) -> bytes:
    assert level.plan is not None
    plan = level.plan
    return np.stack([plan.replicas, plan.batch, plan.parallel]).tobytes()


def _combinations(plans: list[list[Level]]) -> list[tuple[Level, ...]]:
    """Every combination, or where they are too many the same fraction for all."""
    if np.prod([float(len(levels)) for levels in plans]) <= MOST:
        return list(product(*plans))
    steps = max(len(levels) for levels in plans)
    return [tuple(levels[min(i, len(levels) - 1)] for levels in plans) for i in range(steps)]


@dataclass(frozen=True, slots=True, eq=False)
class Chunked:
    """Whole replicas and operators that do both phases in one iteration, None where no batch keeps
    both limits; ``chunk_tokens`` of prompts beside each batch of decodes."""

    model: Level | None
    operator: Level | None
    batch: int | None  # of the whole replicas
    chunk_tokens: float | None


def chunked_service(prefill: PhaseLoad, decode: PhaseLoad) -> PhaseLoad:
    """Both phases of a service as one."""
    return replace(
        decode,
        phase="chunked",
        ttft_s=prefill.within_s,
        image_tokens=prefill.image_tokens,
        images=prefill.images,
    )


def chunked(phase: PhaseProblem, device_bytes: float) -> Chunked:
    """The least of all batches; ``phase`` is the problem of a ``chunked_service``."""
    service = phase.service
    model: Level | None = None
    operator: Level | None = None
    batch = None
    for b, size in enumerate(phase.problem.batches):
        limit = min(service.slo_s, service.ttft_s * float(size) / service.osl)
        batched = some_choices(phase, slice(b, b + 1), slo_s=limit)
        coarse = model_level(batched, device_bytes)
        if coarse is not None and (model is None or _less(coarse, model)):
            model, batch = coarse, int(size)
        fine = operator_level(
            batched, device_bytes, coarser=[] if coarse is None else [coarse], quick=True
        )
        if fine is not None and (operator is None or _less(fine, operator)):
            operator = fine
    tokens = None if batch is None else batch * service.isl / service.osl
    return Chunked(model, operator, batch, tokens)


def filled(
    phase: PhaseProblem, plan: Callable[[PhaseProblem], Level | None]
) -> tuple[Level, int, float] | None:
    """The least plan when batches take time to fill, with the largest batch and the wait for it.

    The source leaves that wait out. A scheduler that fills batches of b at the entry makes a
    request wait (b - 1) / (2 x rate) on average, so the largest batch and the plan are chosen
    together: for every b, batches up to it within what the wait leaves of the limit.
    """
    best: tuple[Level, int, float] | None = None
    for b, size in enumerate(phase.problem.batches):
        wait = (float(size) - 1.0) / (2.0 * phase.problem.rate)
        left = phase.problem.slo_s - wait
        if left <= 0:
            break
        level = plan(some_choices(phase, slice(0, b + 1), slo_s=left))
        if level is not None and (best is None or _less(level, best[0])):
            shown = replace(level, latency_s=level.latency_s + wait, slo_s=phase.problem.slo_s)
            best = shown, int(size), wait
    return best


def _less(level: Level, other: Level) -> bool:
    return (level.devices, level.power_w) < (other.devices, other.power_w)
