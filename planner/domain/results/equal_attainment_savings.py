"""Compute savings at equal SLO attainment (methods.md X4).

A policy that costs less but serves fewer requests within the SLO does not save. So its cost is
scaled to what it would be with the attainment of its baseline.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from planner.domain.formats import counted, lower_first
from planner.domain.replay.equal_attainment import EQUAL_SLO
from planner.domain.study import PolicyRun

MIN_SHOWN_SHARE = 0.005  # smaller shares of a cost are shown as 0%
CENT_USD = 0.01


@dataclass(frozen=True, slots=True)
class EqualSlo:
    """The cost of a policy at its baseline's SLO attainment.

    ``tier`` is the tier in which their attainments differ most. ``cost_usd`` is the policy's cost,
    times the cost of the smallest static fleet with the baseline's attainment, over that of the
    smallest static fleet with the policy's. It is None if no such fleet was found, or if one of the
    two policies is far below a target.
    """

    policy: str
    baseline: str
    tier: str
    attainment: float
    baseline_attainment: float
    cost_usd: float | None
    saving: float | None  # share of the baseline's cost, at its attainment


def largest_attainment_difference(
    run: PolicyRun, base: PolicyRun
) -> tuple[str, float, float] | None:
    """Return (tier, attainment of ``run``, attainment of ``base``) where the two differ most.

    None if no difference exceeds ``EQUAL_SLO``.
    """
    largest, largest_difference = None, EQUAL_SLO
    for tier, share in run.summary.slo_attainment.items():
        base_share = base.summary.slo_attainment.get(tier)
        if share is None or base_share is None:  # no request of the tier
            continue
        if abs(share - base_share) > largest_difference:
            largest, largest_difference = (tier, share, base_share), abs(share - base_share)
    return largest


def equal_slo(run: PolicyRun, base: PolicyRun) -> EqualSlo | None:
    """Return the cost of ``run`` at the attainment of ``base``; None if both attain the same."""
    difference = largest_attainment_difference(run, base)
    if difference is None:
        return None
    usd = saving = None
    if run.flat_usd and base.flat_usd:
        usd = run.summary.cost_usd * base.flat_usd / run.flat_usd
        saving = 1 - usd / base.summary.cost_usd if base.summary.cost_usd else None
    return EqualSlo(run.name, base.name, *difference, usd, saving)


def saving(run: PolicyRun, base: PolicyRun) -> float | None:
    """Return what ``run`` saves at the attainment of ``base``, as a share of the cost of ``base``.

    Return None if it is not known.
    """
    at_equal_attainment = equal_slo(run, base)
    if at_equal_attainment is not None:
        return at_equal_attainment.saving
    # Both attain the same, so their costs compare as they are.
    return 1 - run.summary.cost_usd / base.summary.cost_usd if base.summary.cost_usd else None


def cost_difference_words(run: PolicyRun, base: PolicyRun, *, usd: bool) -> str:
    """Return the difference in cost from ``base`` in words, such as ", 12% less than static".

    It is the difference of the simulated costs, with ``usd`` also in dollars. If the attainments
    differ, the difference at equal attainment follows. Oracle baselines are marked.
    """
    if run is base:
        return ""
    base_usd = base.summary.cost_usd
    saved_usd = base_usd - run.summary.cost_usd
    words = "as much as"
    # The dollars that count as no difference: half a cent, or a share rounded to 0%.
    if abs(saved_usd) > max(CENT_USD / 2, MIN_SHOWN_SHARE * base_usd):
        difference = f"${amount(abs(saved_usd))}"
        if base_usd:
            share = f"{abs(saved_usd) / base_usd:.0%}"
            difference = f"{difference} ({share})" if usd else share
        words = f"{difference} {'less' if saved_usd > 0 else 'more'} than"
    at_equal_slo = equal_slo(run, base)  # None: they attain the same
    notes = [*_size_of_oracle(run, base), *_reasons_unequal(at_equal_slo, base)]
    remarks = f" ({'; '.join(notes)})" if notes else ""
    equal = ", at equal SLO attainment" if at_equal_slo is None and base.meets_slo else ""
    return f", {words} {lower_first(base.label)}{remarks}{equal}"


def _size_of_oracle(run: PolicyRun, base: PolicyRun) -> Iterator[str]:
    """Yield a remark if ``base`` uses future data, with its size if both fleets are static."""
    oracle = oracle_words(base)
    if oracle and run.traits.flat and base.traits.flat:  # static fleets differ only in size
        count = sum(pool.initial for pool in base.fleet.pools)
        yield f"{counted(count, 'replica')}, {oracle}"
    elif oracle:
        yield oracle


def oracle_words(run: PolicyRun) -> str:
    """Return a remark for a policy that uses future data; "" for deployable policies."""
    if run.traits.reads_future:
        return "knows future demand"
    return "sized with future data" if run.traits.hindsight else ""


def amount(value: float) -> str:
    """Return a number of dollars without a sign, with cents below a thousand."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:,.2f}"


def _reasons_unequal(unequal: EqualSlo | None, base: PolicyRun) -> Iterator[str]:
    """Yield the reasons why the cost of a policy does not compare directly with that of ``base``.

    ``unequal`` compares both at equal attainment; None: they attain the same.
    """
    if not base.meets_slo:
        yield "it misses a tier"
    if unequal is None:
        return
    yield (
        f"SLO attainment of {unequal.tier}: {unequal.baseline_attainment:.1%} there, here "
        f"{unequal.attainment:.1%}"
    )
    if unequal.saving is None:
        yield "no static fleet has the same attainment to compare with"
    elif abs(unequal.saving) < MIN_SHOWN_SHARE:
        yield "at equal SLO attainment as much"
    else:
        than = "less" if unequal.saving >= 0 else "more"
        yield f"at equal SLO attainment {abs(unequal.saving):.0%} {than}"
