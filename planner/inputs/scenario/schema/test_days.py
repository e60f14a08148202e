"""Test days: what a policy has to pass before it is recommended (docs/recommendation.md).

Each kind has a default name, weight and level. ``required: true`` or ``false`` replaces the level,
so that the day counts at every level of assurance, or at none.
"""

from typing import Annotated, Literal, get_args

from pydantic import Field

from planner.schema_types import Name, Section

Assurance = Literal["economy", "balanced", "safe"]
LEVELS: tuple[str, ...] = get_args(Assurance)
Weight = Annotated[float, Field(ge=0, le=1000)]
Times = Annotated[float, Field(gt=0, le=100)]
Hours = Annotated[float, Field(gt=0, le=24)]


class _TestDay(Section):
    name: Name | None = None  # name in the result; default: by kind
    weight: Weight = 0.0  # weight of its cost in the expected cost
    required: bool | None = None  # default: at its level of assurance and above


class Past(_TestDay):
    """Past windows as they were: the last day, the same weekday, and the busiest day known."""

    kind: Literal["past"]
    windows: Annotated[int, Field(ge=1, le=3)] = 3  # number of past windows
    weight: Weight = 1.0  # weight of each window


class Drawn(_TestDay):
    """Days drawn from the forecast, with its growth and its uncertainty."""

    kind: Literal["drawn"]
    paths: Annotated[int, Field(ge=1, le=1000)] = 100  # number of drawn days
    pass_share: Annotated[float, Field(gt=0, le=1)] = 0.9  # of the paths that have to pass
    weight: Weight = 3.0  # weight of all paths


class SlowerProfile(_TestDay):
    """The forecast day on profiles that are slower by their stated error."""

    kind: Literal["slower_profile"]
    # Error that half, or nine of ten, profiles stay within.
    error: Literal["half", "nine-of-ten"] = "half"


class MoreDemand(_TestDay):
    """The forecast day with more requests all day; no forecast knows of them."""

    kind: Literal["more_demand"]
    times: Times = 1.25  # factor on requests


class Crowd(_TestDay):
    """The forecast day with a traffic spike at its busiest time; no forecast knows of it."""

    kind: Literal["crowd"]
    times: Times = 3.0  # factor on requests
    hours: Hours = 1.0  # length of the spike


class LongerOutputs(_TestDay):
    """The forecast day with longer outputs in its second half."""

    kind: Literal["longer_outputs"]
    times: Times = 2.0  # factor on output tokens


class ReplicaLost(_TestDay):
    """The forecast day without any one replica, for interactive tiers (N+1)."""

    kind: Literal["replica_lost"]


class RegionLost(_TestDay):
    """The forecast day on which any one region fails at its busiest time."""

    kind: Literal["region_lost"]
    hours: Hours = 1.0  # length of the failure


class SlowStart(_TestDay):
    """The forecast day on which starts take longer, and the first start of each pool fails."""

    kind: Literal["slow_start"]
    times: Times = 2.0  # factor on start times


TestDay = (
    Past | Drawn | SlowerProfile | MoreDemand | Crowd | LongerOutputs | ReplicaLost | RegionLost
    | SlowStart
)  # fmt: skip

USUAL: tuple[TestDay, ...] = (
    Past(kind="past"),
    Drawn(kind="drawn"),
    SlowerProfile(kind="slower_profile"),
    ReplicaLost(kind="replica_lost"),
    SlowerProfile(kind="slower_profile", error="nine-of-ten"),
    MoreDemand(kind="more_demand"),
    Crowd(kind="crowd"),
    LongerOutputs(kind="longer_outputs"),
    RegionLost(kind="region_lost"),
    SlowStart(kind="slow_start"),
)

# Test days of a draft: those that Balanced requires, with one past window.
DRAFT_DAYS: tuple[dict[str, str | int], ...] = (
    {"kind": "past", "windows": 1},
    {"kind": "drawn"},
    {"kind": "slower_profile"},
    {"kind": "replica_lost"},
)


def level_of(day: TestDay) -> int | None:
    """Return the index in LEVELS of the lowest level that requires ``day``; None: no level."""
    economy, balanced, safe = range(len(LEVELS))
    if day.required is not None:
        return economy if day.required else None
    if isinstance(day, Past | Drawn):
        return economy
    if isinstance(day, ReplicaLost) or (isinstance(day, SlowerProfile) and day.error == "half"):
        return balanced
    return safe
