"""Compute the cost of a plan's spare replicas, by planning again without them."""

from dataclasses import dataclass, replace

from planner.domain.formats import signed_percent
from planner.domain.planning.inputs import PlanInput, PlannedWindow
from planner.domain.planning.planning import plan_load
from planner.domain.progress import Progress
from planner.errors import Infeasible
from planner.inputs.scenario.settings import SpareSettings
from planner.optimizer.problem import ScalingPlan


@dataclass(frozen=True, slots=True)
class PlanSpare:
    """The losses that a plan survives, and what this costs over the window.

    The cost is the difference to a plan of the same demand without spare replicas. It is None if
    there is no such plan.
    """

    instances: int
    by: str  # "pool": each pool may lose ``instances``; "region": each model in a region may
    regions: int  # number of regions that may be lost
    usd: float | None
    gpu_hours: float | None
    usd_share: float | None  # share of the cost of the plan without spare replicas
    sentence: str


def spare_of(
    inputs: PlanInput, planned_window: PlannedWindow, progress: Progress
) -> PlanSpare | None:
    """Return the spare replicas of the plan and their cost, or None if it has none."""
    spare = inputs.settings.spare
    if not spare:
        return None
    without_spare = replace(inputs, settings=replace(inputs.settings, spare=SpareSettings()))
    usd = gpu_hours = share = None
    try:
        plan_without = plan_load(without_spare, planned_window.load, progress)
    except Infeasible:
        plan_without = None
    if plan_without is not None:
        usd_with, gpu_hours_with = _usd_and_gpu_hours(planned_window.plan)
        usd_without, gpu_hours_without = _usd_and_gpu_hours(plan_without)
        usd, gpu_hours = usd_with - usd_without, gpu_hours_with - gpu_hours_without
        share = usd / usd_without if usd_without > 0 else None
    return PlanSpare(
        instances=spare.instances,
        by="pool" if spare.by_pool else "region",
        regions=int(spare.region),
        usd=usd,
        gpu_hours=gpu_hours,
        usd_share=share,
        sentence=_sentence(spare, usd, gpu_hours, share),
    )


def _usd_and_gpu_hours(plan: ScalingPlan) -> tuple[float, float]:
    """Return (dollars, GPU-hours) of a plan over its window."""
    hours = plan.period_s / 3600
    usd_per_hour = sum(window.totals.usd for window in plan.windows)
    gpus = sum(window.totals.gpu_hours for window in plan.windows)
    return usd_per_hour * hours, gpus * hours


def loss_words(spare: SpareSettings) -> str:
    """Return the losses that a plan must survive in words, such as "any replica of every pool"."""
    losses = []
    if spare.instances:
        replicas = "replica" if spare.instances == 1 else f"{spare.instances} replicas"
        pool = "every pool" if spare.by_pool else "every region's replicas of a model"
        losses.append(f"any {replicas} of {pool}")
    if spare.region:
        losses.append("any one region")
    return " and ".join(losses)


def _sentence(
    spare: SpareSettings, usd: float | None, gpu_hours: float | None, share: float | None
) -> str:
    """Return the sentence on the spare replicas and their extra cost.

    ``usd`` and ``gpu_hours`` are the extra cost; None: no plan without spares was found. ``share``
    is ``usd`` divided by the cost without spares.
    """
    served = f"Demand is carried without {loss_words(spare)}"
    if usd is None or gpu_hours is None:
        return f"{served}. No plan without it was found."
    share_words = "" if share is None else f" ({signed_percent(share)})"
    cost = f"${usd:,.2f}{share_words} and {gpu_hours:,.1f} GPU-hours of this window"
    return f"{served}: that costs {cost}."
