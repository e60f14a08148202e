"""Describe the replay of one correction round and its misses."""

from dataclasses import dataclass

from planner.domain.replay.detail import ALL
from planner.domain.study import PolicyRun, Study
from planner.domain.verification.correction_windows import FEW

EQUAL = 0.002  # misses up to this attainment count as met (methods.md X4: 0.2 points)


@dataclass(frozen=True, slots=True)
class Miss:
    """A model and home region with attainment below a tier's target."""

    model: str
    region: str
    tier: str
    attainment: float
    target: float
    short: float
    arrived: int


@dataclass(frozen=True, slots=True)
class Round:
    """A replay during the correction, with the capacities used and the attainment reached."""

    round: int
    sizes: dict[str, float]  # by model (and role), relative to the first capacity
    attainment: dict[str, float | None]  # lowest over the replayed windows
    gpu_hours: float
    cost_usd: float
    missed: tuple[Miss, ...]
    note: str = ""


def misses(study: Study, run: PolicyRun) -> tuple[Miss, ...]:
    """Return the models and home regions that miss the target of a tier, the worst first.

    Each model and region has only its worst interactive tier. Those with fewer than ``FEW``
    requests are left out unless they are the only ones.
    """
    targets = {tier.name: tier.attainment for tier in study.hardware.tiers if not tier.deferrable}
    missed = {
        name: targets[name]
        for name, share in run.summary.slo_attainment.items()
        if share is not None and name in targets and share < targets[name] - EQUAL
    }
    rows = (row for row in run.detail.groups.iter_rows(named=True) if row["tier"] in missed)
    candidates = [
        Miss(
            row["model"],
            row["region"],
            row["tier"],
            row["attainment"],
            target=missed[row["tier"]],
            short=missed[row["tier"]] - row["attainment"],
            arrived=row["arrived"],
        )
        for row in rows
        if ALL not in (row["model"], row["region"])
    ]
    worst_first = [miss for miss in candidates if miss.short > EQUAL]
    worst_first.sort(key=lambda miss: -miss.short)
    counted = [miss for miss in worst_first if miss.arrived >= FEW] or worst_first
    worst: dict[tuple[str, str], Miss] = {}
    for miss in counted:
        worst.setdefault((miss.model, miss.region), miss)
    return tuple(worst.values())
