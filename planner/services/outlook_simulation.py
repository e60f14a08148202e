"""Simulate the last month of an outlook, to show whether requests would meet the SLO."""

from planner.domain.outlook.calendar import WEEK_S
from planner.errors import NotReady, PlannerError
from planner.inputs.scenario.document import parse
from planner.models import Run, User
from planner.selectors.runs import run_result
from planner.services.access import check_may_plan
from planner.services.scenarios import free_name
from planner.services.whatif import run_on_draft

# requests, as in a draft; above this, one of several equal cells is replayed
MAX_REPLAYED = 2_000_000
PERIOD_S = 3600.0


def month_to_replay(run: Run) -> str:
    """Return the last month that has a plan; "" if none. Growth makes it the most demanding."""
    months = [row for row in run_result(run)["months"] if row["cost_usd"] is not None]
    return str(months[-1]["month"]) if months else ""


def outlook_replay(*, run: Run, user: User, idempotency_key: str = "") -> Run:
    """Start a comparison run for the last month of an outlook, on its representative week.

    The week includes the month's busiest day. The run has its own scenario, with the demand that
    the outlook forecasts for that month.
    """
    check_may_plan(user)
    if run.kind != Run.Kind.OUTLOOK:
        raise PlannerError(
            f"Run {run.pk} is not an outlook. Only an outlook has months to simulate."
        )
    month = month_to_replay(run)
    if not month:
        raise NotReady(f"No month of run {run.pk} has a plan, so there is nothing to replay.")
    growth = next(row["growth"] for row in run_result(run)["months"] if row["month"] == month)
    scenario = parse(run.document)
    period_s = scenario.horizon.period_s
    changes = {
        "horizon.start": "end",
        "horizon.duration_s": WEEK_S,
        "horizon.period_s": period_s if period_s and WEEK_S % period_s == 0 else PERIOD_S,
        # The traffic of the trace, scaled to that month's demand.
        "traffic.growth": {"factor": growth},
        "traffic.max_replayed": min(scenario.traffic.max_replayed, MAX_REPLAYED),
    }
    return run_on_draft(
        run=run, user=user, kind=Run.Kind.COMPARE, changes=changes, options={},
        name=free_name(f"{scenario.name[:80]}, a week of {month}"),
        idempotency_key=idempotency_key,
    )  # fmt: skip
