"""Check a proposal by the gates of review: SLO, N+1, test days, budget and age of the data."""

from datetime import datetime, timedelta
from typing import Any

from planner.domain.reports.change import Check, Simulated, checks
from planner.models import Proposal, Run
from planner.selectors.review import review_rules
from planner.services.plan_outcomes import traffic_known_until


def checks_of(
    proposal: Proposal, result: dict[str, Any], after: Simulated | None, now: datetime
) -> list[Check]:
    """Return the checks of a proposal for its reviewers.

    ``result`` is the run result that contains the simulated proposal, ``after``.
    """
    return list(
        checks(
            after,
            usd_30d=proposal.usd_30d,
            budget_usd_30d=review_rules().admin_above_usd_30d,
            data_age=_data_age(proposal.run, result, now) if proposal.run else None,
        )
    )


def _data_age(run: Run, result: dict[str, Any], now: datetime) -> timedelta | None:
    """Return the time since the end of the plan's traffic; None for a trace without dates."""
    window = result.get("window") or {}
    if window.get("clock", "utc") != "utc" or "start" not in window:
        return None
    ends = [datetime.fromisoformat(window["start"])]
    if (known_until := traffic_known_until(run)) is not None:
        ends.append(known_until)
    return now - min(ends)
