"""Compare a deployment with narrower instances on the same GPUs."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from planner.inputs.catalogue.estimate_calibration import efficiencies, estimate_fit
from simulation.performance.estimate.defaults import Deployment
from simulation.performance.estimate.estimate import RefusedEstimate, estimate_rows
from simulation.performance.specs import Arrangement


@dataclass(frozen=True, slots=True)
class GpuUse:
    """One way to split GPUs into instances of ``gpus`` GPUs, with its tokens/s.

    All ways are compared at equal concurrency.
    """

    gpus: int
    instances: float
    tokens_per_s: float


def narrower_arrangements(where: Arrangement) -> Iterator[Arrangement]:
    """Yield arrangements with half the tensor parallelism, a quarter, and so on, while even.

    The experts are spread over half as many GPUs each time too.
    """
    experts = "moe_ep" if where.moe_ep > 1 else "moe_tp"
    while where.tp % 2 == 0:
        half = max(getattr(where, experts) // 2, 1)
        where = replace(where, tp=where.tp // 2, **{experts: half})
        yield where


def deployment_as_given(deployment: Deployment) -> list[GpuUse]:
    """Return the estimate of the deployment itself, in a list; empty if it does not fit."""
    return _gpu_uses([deployment])


def narrower_deployments(deployment: Deployment) -> list[GpuUse]:
    """Return deployments with the same number of narrower instances; the other GPUs stay idle."""
    if deployment.prefill is not None:
        return []
    narrower = narrower_arrangements(deployment.decode)
    return _gpu_uses([replace(deployment, decode=arrangement) for arrangement in narrower])


def widest_deployments(deployment: Deployment) -> list[GpuUse]:
    """Return deployments that use all GPUs for more and narrower instances.

    Each instance has at least one request in flight.
    """
    if deployment.prefill is not None:
        return []
    deployments = [
        replace(
            deployment,
            decode=arrangement,
            decode_workers=(deployment.decode_workers or 1.0) * more_instances,
        )
        for arrangement in narrower_arrangements(deployment.decode)
        if (more_instances := deployment.decode.gpus / arrangement.gpus) <= deployment.concurrency
    ]
    return _gpu_uses(deployments)


def narrower_is_faster_sentence(deployment: Deployment) -> list[str]:
    """Return a sentence if fewer GPUs are at least as fast, with the best use of all GPUs."""
    wide, *_ = deployment_as_given(deployment) or (None,)
    fewer = narrower_deployments(deployment)
    if wide is None or not fewer:
        return []
    best = max(fewer, key=lambda way: way.tokens_per_s)
    if best.tokens_per_s < wide.tokens_per_s:
        return []
    gives = "gives" if best.gpus == 1 else "give"
    sentence = (
        f"{best.gpus} of the {wide.gpus} GPUs {gives} {best.tokens_per_s:,.0f} tokens/s here, all "
        f"as one group {wide.tokens_per_s:,.0f}: collectives over the links of "
        f"{deployment.gpu.name} take more than the other GPUs add, so use smaller replicas"
    )
    widest_use = max(widest_deployments(deployment), key=lambda way: way.tokens_per_s, default=None)
    if widest_use is not None and widest_use.tokens_per_s > best.tokens_per_s:
        gpus = f"{widest_use.gpus} GPU{'s'[: widest_use.gpus > 1]}"
        sentence += f"; {widest_use.instances:g} of {gpus} each give "
        sentence += f"{widest_use.tokens_per_s:,.0f} together"
    return [sentence]


def _gpu_uses(deployments: list[Deployment]) -> list[GpuUse]:
    """Return deployments with their estimated tokens/s; those without an estimate are left out."""
    answers = estimate_rows(deployments, estimate_fit().calibration, efficiencies())
    return [
        GpuUse(deployment.decode.gpus, deployment.decode_workers or 1.0, answer.tokens_per_s)
        for deployment, answer in zip(deployments, answers, strict=True)
        if not isinstance(answer, RefusedEstimate)
    ]
