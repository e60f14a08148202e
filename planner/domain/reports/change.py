"""Report what a proposal changes: the five figures that decide, and the checks of its plan."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from math import ceil

from planner.domain.formats import counted, figure, minus, percent
from planner.domain.recommend.alternatives import level_of
from planner.domain.report import Fact, Form, Meaning
from planner.domain.reports.policies import (
    Outcome,
    ReplicaLoss,
    Span,
    days_text,
    guard_text,
    replica_loss,
    saving_change,
    span_text,
    tightest_tier,
    time_text,
)
from planner.domain.results.assurance import TestDayFigures
from planner.domain.results.stored import StoredResult
from planner.domain.serialise import from_json

SEASON = timedelta(days=7)  # demand repeats by week, so older data lacks the latest week
NOW, BEFORE = "now", "before:"  # words before a figure to compare with
LEAST_DIFFERENCE = 0.0005  # smaller differences of a share are shown as none
UNKNOWN = "Not simulated."


@dataclass(frozen=True, slots=True)
class Check:
    """A check that a proposal must pass; ``passed`` is None if the outcome is not known."""

    name: str
    passed: bool | None
    detail: str


@dataclass(frozen=True, slots=True)
class Simulated:
    """A policy's figures in a stored result, with the test days on which it was simulated."""

    outcome: Outcome
    days: tuple[TestDayFigures, ...]
    deferrable: frozenset[str]
    assurance: str = ""  # level of assurance of the result's recommendation
    window: timedelta | None = None  # length of the simulated window, to which costs refer

    @property
    def tier(self) -> str | None:
        """Return the tier with the least attainment above its target; None without requests.

        Deferrable tiers count only if no other tier has requests.
        """
        tiers = [tier for tier in self.outcome.slo_attainment if tier not in self.deferrable]
        return tightest_tier(self.outcome, tiers)

    @property
    def attainment(self) -> float | None:
        """Return the SLO attainment of ``tier``; None without one."""
        return None if self.tier is None else self.outcome.slo_attainment[self.tier]

    @property
    def usd_per_day(self) -> float | None:
        """Return the mean cost (USD) of a day, or None if it is not known."""
        if not self.window or self.outcome.cost_usd is None:
            return None
        return self.outcome.cost_usd * (timedelta(days=1) / self.window)

    @property
    def level(self) -> str:
        """Return the level of assurance whose test days the policy has to pass; "" if unknown."""
        return level_of(self.outcome.name) or self.assurance

    @property
    def replica_loss(self) -> ReplicaLoss:
        """Return what losing one replica does to the SLO attainment."""
        return replica_loss(self.outcome, self.days, self.deferrable)

    @property
    def required_days(self) -> list[bool]:
        """Return for each required test day whether the policy passes it.

        Only days on which the policy was simulated count.
        """
        key = self.outcome.name
        level = level_of(key)
        return [
            day.policies[key].passes
            for day in self.days
            if key in day.policies and (day.required_by(level) if level else day.required)
        ]


def simulated_policy(result: StoredResult, policy: str) -> Simulated | None:
    """Return what a result has on ``policy``, a key such as "static"; None if not simulated."""
    if policy not in result.policies:
        return None
    outcome = from_json(Outcome, {**result.policies[policy].columns, "name": policy})
    assurance = "" if result.recommended is None else result.recommended.assurance or ""
    window = result.window.end - result.window.start if result.window else None
    return Simulated(outcome, result.test_days, frozenset(result.deferrable), assurance, window)


def change_facts(
    before: Simulated | None,
    after: Simulated | None,
    current: Span | None,
    proposed: Span | None,
    saving: float | None,
    before_label: str = NOW,
    simulated: Span | None = None,
) -> Iterator[Fact]:
    """Yield the replicas, cost, SLO attainment, energy and risk of a proposal.

    Each is compared with ``before``, the active plan. ``after`` is the proposal. They are None if
    not simulated; without ``after``, only the replicas are known. ``current`` and ``proposed`` are
    the (fewest, most) replicas in the schedules of both; ``simulated`` are those in the simulation
    of the proposal. ``saving`` is the share of the cost saved at equal SLO attainment; None: not
    known. ``before_label`` is the word before figures of ``before``: NOW, or BEFORE if the fleet
    has changed since.
    """
    # A guard may start more replicas than the proposal's schedule has.
    guarded = guard_text(proposed, simulated) if proposed else ""
    was_replicas = _note(before_label, span_text(current) if current else None)
    note = " · ".join(filter(None, (guarded, was_replicas)))
    yield Fact("Replicas", span_text(proposed) if proposed else None, note=note)
    if after is None:  # without a simulation, nothing else is known
        return
    old, new = before.outcome if before else None, after.outcome
    was_usd = _note(before_label, figure(old.cost_usd, "$") if old else None)
    time = f" {time_text(after.window)}" if after.window else ""
    yield Fact(f"Cost{time}", new.cost_usd, "$", note=was_usd, **saving_change(saving))
    if after.tier is not None:
        yield _attainment(new, old, after.tier, before_label)
    energy_saving = 1 - new.energy_kwh / old.energy_kwh if old and old.energy_kwh else None
    was_kwh = _note(before_label, figure(old.energy_kwh, "kWh") if old else None)
    yield Fact(f"Energy{time}", new.energy_kwh, "kWh", note=was_kwh, **saving_change(energy_saving))
    loss = after.replica_loss
    was_redundant = _note(before_label, before.replica_loss.verdict if before else None)
    note = " · ".join(filter(None, (loss.effect, was_redundant)))
    yield Fact("Redundancy", loss.verdict, note=note, meaning=loss.meaning)


def _attainment(new: Outcome, old: Outcome | None, tier: str, before_label: str) -> Fact:
    """Return the SLO attainment of a tier in the plan ``new``, with its change in percent points.

    ``old`` is the plan to compare with, if any; ``before_label`` is the word before its attainment.
    """
    share = new.slo_attainment[tier]
    old_share = old.slo_attainment.get(tier) if old else None
    change = note = ""
    if old_share is not None:
        note = _note(before_label, percent(old_share))
        if share is not None and abs(share - old_share) >= LEAST_DIFFERENCE:
            change = minus(f"{100 * (share - old_share):+.1f} points")
    meaning = Meaning.MET if all(new.slo_met.values()) else Meaning.MISSED
    label = f"SLO attainment, {tier}"
    return Fact(label, share, form=Form.SHARE, change=change, note=note, meaning=meaning)


def checks(
    after: Simulated | None,
    *,
    usd_30d: float | None,
    budget_usd_30d: float | None,
    data_age: timedelta | None,
) -> Iterator[Check]:
    """Yield the checks of a proposal: SLO met, N+1, test days, budget and fresh data.

    ``after`` is the simulated proposal; None: not simulated. ``usd_30d`` is its cost in 30 days;
    if it exceeds ``budget_usd_30d``, an admin must approve. ``data_age`` is the time since the
    traffic ends; None if the traffic has no calendar dates.
    """
    if after is None:
        for name in ("SLO met", "N+1", "Test days passed"):
            yield Check(name, None, UNKNOWN)
    else:
        yield _slo_check(after)
        yield _n_plus_1_check(after.replica_loss)
        yield _test_days_check(after)
    yield _budget_check(usd_30d, budget_usd_30d)
    if data_age is None:
        yield Check("Data freshness", None, "Its planning data has no calendar date.")
    else:
        days = days_old(data_age)
        words = f"The planning data ended {counted(days, 'day')} ago, limit {SEASON.days}."
        yield Check("Data freshness", data_age <= SEASON, words)


def _n_plus_1_check(loss: ReplicaLoss) -> Check:
    """Return the check whether the plan meets the SLO without one replica."""
    words = {True: "Passed.", False: "Not N+1.", None: UNKNOWN}[loss.survives]
    if loss.attainment:
        place = f" {loss.where}" if loss.where else ""
        words = f"{percent(loss.attainment)} SLO attainment after losing 1 replica{place}."
    return Check("N+1", loss.survives, words)


def _test_days_check(after: Simulated) -> Check:
    """Return the check whether the policy passes the required test days."""
    passes = after.required_days
    if not passes:
        return Check("Test days passed", None, "None were simulated.")
    words = f"{days_text(sum(passes), len(passes), after.level)}."
    return Check("Test days passed", all(passes), words)


def days_old(age: timedelta) -> int:
    """Return an age in days, rounded up, and 0 for data that end in the future."""
    return max(0, ceil(age / timedelta(days=1)))


def _slo_check(after: Simulated) -> Check:
    """Return the check whether the simulated plan meets the SLO of every tier."""
    outcome = after.outcome
    missed = [tier for tier, met in outcome.slo_met.items() if not met]
    if missed:
        return Check("SLO met", False, f"Missed for {' and '.join(missed)}.")
    tier = after.tier
    if tier is None:
        return Check("SLO met", None, "No tier has a request.")
    target = outcome.target(tier)
    against = "" if target is None else f", target {percent(target, 0)}"
    return Check("SLO met", True, f"{percent(outcome.slo_attainment[tier])} for {tier}{against}.")


def _budget_check(usd_30d: float | None, budget: float | None) -> Check:
    """Return the check whether the cost in 30 days is within the budget, both in dollars.

    None: not known, or no budget is set.
    """
    if budget is None:
        return Check("Within budget", None, "The review rules have no budget.")
    if usd_30d is None:
        return Check("Within budget", None, "The cost is not known.")
    words = f"{figure(usd_30d, '$')} of {figure(budget, '$')} in 30 days."
    return Check("Within budget", usd_30d <= budget, words)


def _note(before_label: str, text: str | None) -> str:
    """Return the label and the earlier value, such as "now $5"; "" if the value is None."""
    return f"{before_label} {text}" if text else ""
