"""Savings at equal attainment (methods.md X4): what a policy would cost if it served as well as the
one that it is held against."""

from __future__ import annotations

from collections.abc import Iterator
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
    difference = apart(run, base)
    if difference is None:
        return None
    usd = saving = None
    if run.flat_usd and base.flat_usd:
        usd = run.summary.cost_usd * base.flat_usd / run.flat_usd
        saving = 1 - usd / base.summary.cost_usd if base.summary.cost_usd else None
    return EqualSlo(run.name, base.name, *difference, usd, saving)


def saving(run: PolicyRun, base: PolicyRun) -> float | None:
    """Share of the baseline's cost that is saved, at its attainment."""
    unequal = equal_slo(run, base)
    if unequal is not None:
        return unequal.saving
    return 1 - run.summary.cost_usd / base.summary.cost_usd if base.summary.cost_usd else None


def beside(run: PolicyRun, base: PolicyRun, *, usd: bool) -> str:
    """What the one costs less or more than the other, after a comma, as paid (``usd``: in dollars
    too) and, where they do not serve equally well, at equal service: the one sentence on it, so
    that no two say different things. The word stands by what nobody can run."""
    if run is base:
        return ""
    saved = base.summary.cost_usd - run.summary.cost_usd
    words = "as much as"
    if abs(saved) > _nothing(base):
        share = f"{abs(saved) / base.summary.cost_usd:.0%}" if base.summary.cost_usd else ""
        dollars = f"${amount(abs(saved))}"
        words = (f"{dollars} ({share})" if share else dollars) if usd or not share else share
        words = f"{words} {'less' if saved > 0 else 'more'} than"
    unequal = equal_slo(run, base)
    word = hindsight(base)
    if word and run.traits.flat and base.traits.flat:  # how many is all that sets them apart
        word = f"{_instances(base)}, {word}"
    notes = [word, *_unequal(unequal, base)]
    told_of = f" ({'; '.join(note for note in notes if note)})" if any(notes) else ""
    equal = ", as well served" if unequal is None and base.meets_slo else ""
    return f", {words} {base.label[:1].lower()}{base.label[1:]}{told_of}{equal}"


def hindsight(run: PolicyRun) -> str:
    """The word on what nobody can run."""
    if run.traits.clairvoyant:
        return "told what came"
    return "sized in hindsight" if run.traits.hindsight else ""


def _instances(run: PolicyRun) -> str:
    count = sum(pool.initial for pool in run.fleet.pools)
    return f"{count:,} instance{'s' * (count != 1)}"


def amount(value: float) -> str:
    """A figure for a sentence: cents below a thousand, none above."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:,.2f}"


def _unequal(unequal: EqualSlo | None, base: PolicyRun) -> Iterator[str]:
    if not base.meets_slo:
        yield "it misses a tier"
    if unequal is None:
        return
    yield (
        f"there {unequal.baseline_attainment:.1%} of {unequal.tier} are in time, here "
        f"{unequal.attainment:.1%}"
    )
    if unequal.saving is None:
        yield "no flat fleet serves alike, to tell what that is worth"
    elif abs(unequal.saving) < NOTHING:
        yield "at equal service as much"
    else:
        than = "less" if unequal.saving >= 0 else "more"
        yield f"at equal service {abs(unequal.saving):.0%} {than}"


def _nothing(base: PolicyRun) -> float:
    """Dollars that are as much: half a cent, or what a share would round to nothing."""
    return max(0.005, NOTHING * base.summary.cost_usd)
