"""Compare the autoscaler that runs today with the recommended policy, in sentences."""

from collections.abc import Iterable, Sequence

from planner.domain.formats import figure, signed_percent
from planner.domain.results.answer import DAY_S
from planner.domain.results.equal_attainment_savings import NOTHING
from planner.domain.results.warnings import lower_first, missed_tiers
from planner.domain.study import PolicyRun
from planner.policies.base import SEPARATOR, TODAY


def setting_of_today(policies: Iterable[str]) -> str | None:
    """Return the key of the policy labelled ``today``, the autoscaler that runs now, or None."""
    return next((key for key in policies if key.partition(SEPARATOR)[2] == TODAY), None)


def autoscaler_sentences(
    runs: Sequence[PolicyRun], recommended: PolicyRun, *, qualifies: bool
) -> str:
    """Return what today's autoscaler costs and misses, and whether ``recommended`` does better.

    ``qualifies``: the recommended policy passes every required test day. The result is "" if no run
    is today's autoscaler.
    """
    key = setting_of_today(run.name for run in runs)
    if key is None:
        return ""
    today = next(run for run in runs if run.name == key)
    # Costs are per day, and a shorter window shows only part of one.
    rate = " at this window's rate" if today.summary.duration_s < DAY_S else ""
    text = (
        f"Your autoscaler ({today.traits.label}) costs {_daily(today)}{rate} and {_result(today)}."
    )
    if recommended is today:
        return f"{text} It is the recommended policy."
    more = _usd_per_day(recommended) / _usd_per_day(today) - 1 if _usd_per_day(today) else 0.0
    change = f" ({signed_percent(more, 0)})" if abs(more) >= NOTHING else ""
    text += (
        f" The recommended policy, {lower_first(recommended.label)}, costs "
        f"{_daily(recommended)}{change} and {_result(recommended)}."
    )
    if recommended.meets_slo:
        preferred = today.meets_slo and more >= NOTHING and qualifies
        return f"{text} It is preferred for its results on the test days." if preferred else text
    meeting = [run for run in runs if run.meets_slo and not run.traits.uses_future_data]
    if not meeting:
        return f"{text} No policy in this comparison meets every SLO."
    cheapest = min(meeting, key=lambda run: run.summary.cost_usd)
    if cheapest is today:
        return text
    return f"{text} {cheapest.label} costs {_daily(cheapest)} and {_result(cheapest)}."


def _usd_per_day(run: PolicyRun) -> float:
    """Return dollars per day, without what is paid once."""
    return run.summary.recurring_usd * DAY_S / run.summary.duration_s


def _daily(run: PolicyRun) -> str:
    """Return the cost of a day in words."""
    return f"{figure(_usd_per_day(run), '$')} a day"


def _result(run: PolicyRun) -> str:
    """Return the tiers that a run misses, with their hours below the target, in words."""
    missed = missed_tiers(run)
    if missed:
        return f"misses {'; '.join(missed)}"
    hours = sum(run.summary.missed_hours.values())
    below = f", with {hours:,} hour{'s' * (hours != 1)} below a target" if hours else ""
    return f"meets every SLO{below}"
