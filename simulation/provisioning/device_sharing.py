"""Share devices between services, or run prefill in chunks among decodes.

``place_on_common_devices`` places the operators of separately planned services on common devices,
each service within its own limit. A plan that uses up its limit allows no slowdown by other
operators. Each service is therefore planned at several fractions of its limit.

``best_chunked`` is one engine for both phases. Every iteration decodes a batch, and prefills one
mean prompt for every sequence that ends in it. Weights are read once for both. A prompt takes the
osl / batch iterations of its chunks, one prompt at a time. Both TBT and TTFT limit the iteration:
sojourn <= min(TBT, TTFT x batch / osl).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import product

import numpy as np

from simulation.provisioning.interference import Demand
from simulation.provisioning.level import Level, level_order
from simulation.provisioning.levels import model_level, plan_level
from simulation.provisioning.placement import Placement, fits_devices, place_services
from simulation.provisioning.problem import OperatorPlan, OperatorProblem
from simulation.provisioning.workload import (
    PhaseLoad,
    PhaseProblem,
    reserve_kv_cache,
    with_slo,
    with_some_choices,
)

ServicePart = tuple[OperatorProblem, Demand, OperatorPlan]

LIMIT_FRACTIONS = (1.0, 0.8, 0.6)  # fractions of its limit that a service is planned at
PASS_FACTOR = 1.5  # most that sharing may lengthen a pass
MAX_COMBINATIONS = 81  # most combinations of fractions to place


@dataclass(frozen=True, slots=True, eq=False)
class SharedPlan:
    """Plans of several services, on separate and on common devices.

    ``separate_levels`` has the plan of each service on separate devices. ``shared_levels`` has the
    plan of each service with its placement on common devices; it is empty if these save no device.
    """

    separate_levels: tuple[Level, ...]
    placement: Placement | None  # of all services on common devices; None if that saves none
    memory_bytes: float
    power_w: float
    shared_levels: tuple[Level, ...] = ()

    @property
    def devices_without_sharing(self) -> int:
        """Return the number of devices if each service has its own."""
        return sum(level.devices for level in self.separate_levels)

    @property
    def devices(self) -> int:
        """Return the number of devices of the plan, common or separate."""
        return self.devices_without_sharing if self.placement is None else self.placement.devices


def place_on_common_devices(
    phases: Sequence[PhaseProblem], separate_levels: Sequence[Level], device_bytes: float
) -> SharedPlan:
    """Return plans of the services ``phases`` on the fewest common devices found.

    ``separate_levels`` has the best plan of each service on separate devices. If common devices
    save none, or a service has no plan for them, the result has no placement on common devices.
    """
    plans = [_plans_by_fraction(phase, device_bytes) for phase in phases]
    can_share = all(plans) and len(phases) > 1
    fewest = sum(level.devices for level in separate_levels)
    best: tuple[Placement, tuple[Level, ...]] | None = None
    for plan_of_service in _combinations(plans) if can_share else ():
        parts: list[ServicePart] = []
        for phase, level in zip(phases, plan_of_service, strict=True):
            # A pass may take longer than on separate devices, and keeps its KV cache as long.
            limit_s = min(phase.problem.slo_s, PASS_FACTOR * level.latency_s)
            demand, (plan, _) = reserve_kv_cache(phase, limit_s).demand, level.placed
            parts.append((replace(phase.problem, slo_s=limit_s), demand, plan))
        if not all(fits_devices(*part, device_bytes) for part in parts):
            continue
        placed = place_services(parts, device_bytes)
        if placed.feasible and placed.devices < fewest:
            best, fewest = (placed, plan_of_service), placed.devices
    if best is None:
        return SharedPlan(
            tuple(separate_levels),
            placement=None,
            memory_bytes=sum(level.memory_bytes for level in separate_levels),
            power_w=sum(level.power_w for level in separate_levels),
        )
    placement, plan_of_service = best
    # Saved devices no longer draw idle power; the load and its power stay.
    saved = sum(level.devices for level in plan_of_service) - placement.devices
    power_w = sum(level.power_w for level in plan_of_service) - phases[0].power.idle_w * saved
    shared_levels = _with_own_placements(plan_of_service, placement, device_bytes)
    memory_bytes = float(placement.memory_bytes.sum())
    return SharedPlan(tuple(separate_levels), placement, memory_bytes, power_w, shared_levels)


def _with_own_placements(
    levels: Sequence[Level], placement: Placement, device_bytes: float
) -> tuple[Level, ...]:
    """Return ``levels``, one per service, each with the placement of its own operators.

    ``placement`` has the operators of all services on common devices. The free memory of each
    device is split equally between the services.
    """
    free_bytes_each = (device_bytes - placement.memory_bytes) / len(levels)
    placed_levels, first = [], 0  # ``first``: first operator of the service in ``placement``
    for level in levels:
        assert level.plan is not None
        end = first + level.plan.replicas.size
        of_service = (placement.operator >= first) & (placement.operator < end)  # mask of shards
        own = replace(
            placement,
            operator=placement.operator[of_service] - first,
            replica=placement.replica[of_service],
            device=placement.device[of_service],
            memory_bytes=device_bytes - free_bytes_each,
            slowdown=placement.slowdown[first:end],
        )
        placed_levels.append(replace(level, devices=placement.devices, placement=own))
        first = end
    return tuple(placed_levels)


def _plans_by_fraction(phase: PhaseProblem, device_bytes: float) -> list[Level]:
    """Return the different plans by operators of one service for ``LIMIT_FRACTIONS`` of its limit.

    A plan that uses less of its limit allows more slowdown by operators of other services.
    """
    levels: dict[bytes, Level] = {}
    for fraction in LIMIT_FRACTIONS:
        tighter = with_slo(phase, fraction * phase.problem.slo_s)
        level = plan_level("operator", tighter, device_bytes, quick=True)
        if level is not None and level.plan is not None:
            levels.setdefault(level.plan.key, level)
    return list(levels.values())


def _combinations(plans: list[list[Level]]) -> list[tuple[Level, ...]]:
    """Return the combinations of one plan per service, given the plans of each service.

    If there are more than ``MAX_COMBINATIONS``, combine only the first plans of all services, the
    second plans, and so on. A service with fewer plans repeats its last one.
    """
    combinations = np.prod([float(len(levels)) for levels in plans])  # float: no overflow
    if combinations <= MAX_COMBINATIONS:
        return list(product(*plans))
    most_plans = max(len(levels) for levels in plans)
    return [tuple(levels[min(i, len(levels) - 1)] for levels in plans) for i in range(most_plans)]


@dataclass(frozen=True, slots=True, eq=False)
class ChunkedPlan:
    """Plans of a service whose replicas or operators do both phases in one iteration.

    A level is None if no batch keeps both limits. ``chunk_tokens`` are the prompt tokens per batch
    of decodes.
    """

    model: Level | None
    operator: Level | None
    batch: int | None  # whole replicas only
    chunk_tokens: float | None


def chunked_service(prefill: PhaseLoad, decode: PhaseLoad) -> PhaseLoad:
    """Return a service as one phase with chunked prefill, from its two phases."""
    return replace(
        decode,
        phase="chunked",
        ttft_s=prefill.time_budget_s,
        image_tokens=prefill.image_tokens,
        images=prefill.images,
    )


def best_chunked(
    phase: PhaseProblem, device_bytes: float, slo_share: float = 1.0, *, fall_back: bool = True
) -> ChunkedPlan:
    """Return the plans with chunked prefill on the fewest devices, by replicas and by operators.

    ``phase`` is the phase of a ``chunked_service``. Each of its batches is tried alone, because the
    limit of an iteration depends on it. Plans keep ``slo_share`` of both limits. Of plans with
    equally many devices, the one with the lowest power wins. With ``fall_back``, the plan by
    operators is that of whole replicas if it is no better.
    """
    service = phase.service
    models: list[tuple[Level, int]] = []  # whole replicas, with their batches
    operators: list[Level] = []
    for i, size in enumerate(phase.problem.batches):
        # The chunks of a prompt take osl / batch iterations, which must end within the TTFT.
        limit_s = min(service.slo_s, service.ttft_s * float(size) / service.osl) * slo_share
        with_this_batch = with_slo(with_some_choices(phase, slice(i, i + 1)), limit_s)
        model = model_level(with_this_batch, device_bytes)
        if model is not None:
            models.append((model, int(size)))
        operator = plan_level(
            "operator",
            with_this_batch,
            device_bytes,
            coarser=[model] if fall_back and model is not None else [],
            quick=True,
        )
        if operator is not None:
            operators.append(operator)
    best_operator = min(operators, key=level_order, default=None)
    if not models:
        return ChunkedPlan(None, best_operator, None, None)
    model, batch = min(models, key=lambda pair: level_order(pair[0]))
    return ChunkedPlan(model, best_operator, batch, batch * service.isl / service.osl)


def with_batch_wait(
    phase: PhaseProblem, plan: Callable[[PhaseProblem], Level | None]
) -> tuple[Level, int] | None:
    """Return the best plan if batches take time to fill, and its largest allowed batch.

    A scheduler that fills batches of b at the entry makes a request wait (b - 1) / (2 x rate)
    seconds on average, which the source ignores. For every b, ``plan`` is called with batches up to
    b, and with the limit less the wait. The plan with the fewest devices wins. None if no plan
    meets the limit.
    """
    plans: list[tuple[Level, int]] = []  # with their largest batches
    for i, size in enumerate(phase.problem.batches):
        wait_s = (float(size) - 1.0) / (2.0 * phase.problem.rate)
        remaining_s = phase.problem.slo_s - wait_s
        # Larger batches take even longer to fill.
        if remaining_s <= 0:
            break
        level = plan(with_slo(with_some_choices(phase, slice(0, i + 1)), remaining_s))
        if level is not None:
            latency_s = level.latency_s + wait_s
            with_wait = replace(level, latency_s=latency_s, slo_s=phase.problem.slo_s)
            plans.append((with_wait, int(size)))
    return min(plans, key=lambda pair: level_order(pair[0]), default=None)
