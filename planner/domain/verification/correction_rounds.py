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
    """Return where interactive tiers miss their target, by model and home region, worst first.

    Each model and region has only its worst tier. Those with few requests count only if no others
    miss. So the result is empty only if every tier is met.
    """
    limits = {
        tier.name: tier.attainment
        for tier in study.hardware.tiers
        if not tier.deferrable
        and (share := run.summary.slo_attainment.get(tier.name)) is not None
        and share < tier.attainment - EQUAL
    }
    rows = (row for row in run.detail.groups.iter_rows(named=True) if row["tier"] in limits)
    short = [
        Miss(
            row["model"],
            row["region"],
            row["tier"],
            row["attainment"],
            target=limits[row["tier"]],
            short=limits[row["tier"]] - row["attainment"],
            arrived=row["arrived"],
        )
        for row in rows
        if ALL not in (row["model"], row["region"])
    ]
    short = sorted((m for m in short if m.short > EQUAL), key=lambda miss: -miss.short)
    many = [miss for miss in short if miss.arrived >= FEW] or short
    # The last entry of a key stays, which is the worst tier in this order.
    worst = {(miss.model, miss.region): miss for miss in reversed(many)}
    return tuple(miss for miss in many if worst[miss.model, miss.region] is miss)
