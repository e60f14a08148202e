"""What a replay of a round is told by, and where it fell short."""

from __future__ import annotations

from dataclasses import dataclass

from planner.studies.checks.grounds import FEW
from planner.studies.replay.detail import ALL
from planner.studies.values import PolicyRun, Study

EQUAL = 0.002  # of attainment that counts as met (methods.md X4: 0.2 points)


@dataclass(frozen=True, slots=True)
class Miss:
    """A model and home region that fall short of a tier."""

    model: str
    region: str
    tier: str
    attainment: float
    target: float
    short: float
    arrived: int


@dataclass(frozen=True, slots=True)
class Round:
    """A replay on the requests that sizes are corrected on: with which sizes, what it attained."""

    round: int
    sizes: dict[str, float]  # of each model (and role), as a share of what was sized at first
    attainment: dict[str, float | None]  # the least over the windows it was replayed on
    gpu_hours: float
    cost_usd: float
    missed: tuple[Miss, ...]
    note: str = ""


def misses(study: Study, run: PolicyRun) -> tuple[Miss, ...]:
    """Where an interactive tier that is missed falls short, by model and home region, most first;
    of several tiers the one that is shortest there. Empty only where every tier is met: places with
    few requests count where no others fall short."""
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
    first = {(miss.model, miss.region): miss for miss in reversed(many)}
    return tuple(miss for miss in many if first[miss.model, miss.region] is miss)
