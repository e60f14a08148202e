"""Savings at equal attainment (methods.md X4): what a policy would cost if it served as well as the
one that it is held against."""

from __future__ import annotations

from dataclasses import dataclass

from planner.studies.replay.equal import EQUAL_SLO
from planner.studies.values import PolicyRun

NOTHING = 0.005  # of the cost: as percentages are written


@dataclass(frozen=True, slots=True)
class EqualSlo:
    """Two policies that do not serve equally well: in ``tier`` they are furthest apart.

    ``cost_usd`` is the policy's cost times what the smallest flat fleet as good as the baseline
    costs over the smallest as good as the policy: the price of the difference in flat fleets. None
    where no such fleet was found, or one of the two falls far below a tier.
    """

    policy: str
    baseline: str
    tier: str
    attainment: float
    baseline_attainment: float
    cost_usd: float | None
    saving: float | None  # of the baseline's cost, at its attainment


def apart(run: PolicyRun, base: PolicyRun) -> tuple[str, float, float] | None:
    """The tier in which two policies' attainment differs most, with both; None where no difference
    is beyond what counts as equal."""
    both = [
        (tier, its, others)
        for tier, its in run.summary.slo_attainment.items()
        if its is not None and (others := base.summary.slo_attainment.get(tier)) is not None
    ]
    most = max(both, key=lambda row: abs(row[1] - row[2]), default=None)
    return most if most is not None and abs(most[1] - most[2]) > EQUAL_SLO else None


def equal_slo(run: PolicyRun, base: PolicyRun) -> EqualSlo | None:
    """None where the two serve equally well."""
    found = apart(run, base)
    if found is None:
        return None
    usd = saving = None
    if run.flat_usd and base.flat_usd:
        usd = run.summary.cost_usd * base.flat_usd / run.flat_usd
        saving = 1 - usd / base.summary.cost_usd if base.summary.cost_usd else None
    return EqualSlo(run.name, base.name, *found, usd, saving)


def saving(run: PolicyRun, base: PolicyRun) -> float | None:
    """Share of the baseline's cost that is saved, at its attainment."""
    unequal = equal_slo(run, base)
    if unequal is not None:
        return unequal.saving
    return 1 - run.summary.cost_usd / base.summary.cost_usd if base.summary.cost_usd else None


def words(unequal: EqualSlo) -> str:
    """For a sentence that has said what the one costs less or more than the other."""
    seen = (
        f"of {unequal.tier} {unequal.attainment:.1%} are in time against "
        f"{unequal.baseline_attainment:.1%}"
    )
    if unequal.saving is None:
        return f"{seen}, and no flat fleet tells what that is worth"
    if abs(unequal.saving) < NOTHING:
        return f"{seen}; at equal attainment it costs as much"
    than = "less" if unequal.saving >= 0 else "more"
    return f"{seen}; at equal attainment it is {abs(unequal.saving):.0%} {than}"
