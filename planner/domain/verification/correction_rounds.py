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
    short = [miss for miss in candidates if miss.short > EQUAL]
    worst_first = sorted(short, key=lambda miss: -miss.short)
    counted = [miss for miss in worst_first if miss.arrived >= FEW] or worst_first
    # The last entry of a key stays, which is the worst tier in this order.
    worst = {(miss.model, miss.region): miss for miss in reversed(counted)}
    return tuple(miss for miss in counted if worst[miss.model, miss.region] is miss)
