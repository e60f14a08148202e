"""Forecast, objective and window of the plan."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal

from pydantic import Field

from planner.scenario.schema.policies import PolicyName
from planner.scenario.schema.types import (
    Buffer,
    Delay,
    Quantile,
    Section,
    Share,
)


class Forecast(Section):
    """How demand is forecast."""

    method: Literal["auto", "arima", "last-value", "seasonal-naive"] = "arima"
    quantile: Quantile | None = None  # left out: the mean, as the source
    niw_buffer: Buffer = 0.1  # beta: share of the last period's NIW load added


class Objective(Section):
    """What the plan minimises and how hard the solver tries."""

    minimise: Literal["cost"] = "cost"
    epsilon: Share = 0.8  # share of a region's peak served in the region
    solver: Literal["highs", "cbc"] = "highs"
    gap: Annotated[float, Field(ge=0, le=1)] = 1e-4  # of fleet cost
    time_limit_s: Annotated[float, Field(gt=0, le=3600)] = 30.0
    baseline: PolicyName | None = (
        None  # savings are counted against it; left out: today or flat-peak
    )


class Horizon(Section):
    """The window to plan; left out, the last day of a long trace or the last half of a short one.

    A window inside the trace is planned with what was known at each moment and replayed against
    what then came; a window after its end is planned and replayed on the forecast.
    """

    start: datetime | Literal["end"] | None = None  # "end": right after the trace
    duration_s: Annotated[float, Field(gt=0, le=366 * 86_400)] | None = None
    # Between decisions; left out: an hour, or less for short traces.
    period_s: Annotated[float, Field(gt=0, le=366 * 86_400)] | None = None
    lead_s: Delay | None = None  # decide this long before a period; left out: startup_s
