"""Draw active and former plans on the clock of one week."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

import numpy as np

from planner.models import ActivePlan
from planner.outputs.plan_comparison import pools_by_minute
from planner.outputs.render.figure import DASHES, FEW_REPLICAS, PALETTE, Figure, figure, line
from planner.outputs.weekly_pattern import UNKNOWN, WEEK
from simulation.arrays import IntArray

MONDAY = datetime(2024, 1, 1)  # an arbitrary week: only its weekdays and hours are shown
WEEKDAYS = {"tickformat": "%a", "dtick": 86_400_000, "hoverformat": "%a %H:%M UTC"}


def week_figure(plans: Sequence[ActivePlan]) -> Figure | None:
    """Draw the replicas of each deployment of one plan, or the totals of several plans.

    The result is None if no plan has any.
    """
    if len(plans) == 1:
        courses = {name: counts for (name, _), counts in pools_by_minute(plans[0]).items()}
    else:
        courses = {f"Plan {plan.pk}": _total(plan) for plan in plans if plan.pools}
    drawn = [
        line(
            *_steps(counts),
            name,
            PALETTE[i % len(PALETTE)],
            dash=DASHES[i % len(DASHES)],
            line_shape="hv",
            hover="%{y:,} replicas",
        )
        for i, (name, counts) in enumerate(courses.items())
    ]
    if not drawn:
        return None
    most = max(int(counts.max()) for counts in courses.values())
    ticks = {"dtick": 1} if most <= FEW_REPLICAS else {}
    return figure(
        drawn, height=300, x="UTC, by day", y="replicas", together=True, xaxis=WEEKDAYS, yaxis=ticks
    )


def _total(plan: ActivePlan) -> IntArray:
    """Return the total of a plan's deployments, or UNKNOWN if one of them is unknown."""
    counts = np.stack([*pools_by_minute(plan).values()])
    return np.where((counts == UNKNOWN).any(axis=0), UNKNOWN, counts.sum(axis=0))


def _steps(counts: IntArray) -> tuple[list[str], list[int | None]]:
    """Return the points at which a line changes, and None where its value is unknown."""
    edges = [0, *(np.flatnonzero(np.diff(counts)) + 1).tolist()]
    values = [int(counts[edge]) for edge in edges]
    shown = [None if value == UNKNOWN else value for value in values]
    when = [MONDAY + timedelta(minutes=edge) for edge in (*edges, WEEK)]
    return [moment.isoformat() for moment in when], [*shown, shown[-1]]
