"""Fold the steps of a plan into one day or week, minute by minute, and group it into time slots.

The cycle is the day or week after which the pattern repeats.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import Literal
from zoneinfo import ZoneInfo

import numpy as np

from simulation.arrays import IntArray

DAY, DAYS = 24 * 60, 7  # minutes, days of a week
WEEK = DAYS * DAY
UNKNOWN = -1  # replicas in a minute that the plan does not cover
Repeat = Literal["once", "daily", "weekly"]
CYCLES: dict[Repeat, int] = {"daily": DAY, "weekly": WEEK}  # minutes


@dataclass(frozen=True, slots=True)
class Step:
    """A step of a schedule: ``replicas`` from ``begins`` until before ``ends``, in local time."""

    begins: datetime
    ends: datetime
    replicas: int


@dataclass(frozen=True, slots=True)
class Slot:
    """A recurring time with a constant number of replicas."""

    days: tuple[int, ...]  # days of the week, 0 is Monday; (): every day
    start: int  # minute of the day
    minutes: int  # length
    replicas: int
    date: date | None = None  # the only date on which it applies; None: it recurs


def fold_steps(steps: Sequence[Step], repeat: Repeat) -> IntArray:
    """Return the replicas of ``steps`` by minute of the day or week, ``[minute]``.

    A week begins on Monday. If several steps fall on the same minute, the largest number applies.
    Minutes without a step are UNKNOWN.
    """
    return replicas_by_minute(steps, CYCLES[repeat], 0)


def replicas_by_minute(steps: Sequence[Step], cycle: int, first_minute: int) -> IntArray:
    """Return the replicas of ``steps`` by minute of a cycle of ``cycle`` minutes.

    The cycle begins at ``first_minute``, as ``minute_of`` counts. Later steps are folded into it,
    as in ``fold_steps``.
    """
    counts = np.full(cycle, UNKNOWN, np.int64)
    for step in steps:
        begins, ends = minute_of(step.begins), minute_of(step.ends)
        if ends - begins >= cycle:
            # A step as long as the cycle covers every minute of it.
            np.maximum(counts, step.replicas, out=counts)
            continue
        minutes = (np.arange(begins, ends) - first_minute) % cycle
        counts[minutes] = np.maximum(counts[minutes], step.replicas)
    return counts


def replicas_without_gaps(steps: Sequence[Step], repeat: Repeat) -> IntArray:
    """Return the replicas of ``steps`` by minute of the day or week, ``[minute]``, without gaps.

    A minute without a step gets the largest count of the other days of the week at that time of
    day, or else the last count before it. Without any step, all minutes are UNKNOWN.
    """
    counts = fold_steps(steps, repeat)
    if len(counts) == WEEK:
        largest_of_days = counts.reshape(DAYS, DAY).max(axis=0)
        counts = np.where(counts == UNKNOWN, np.tile(largest_of_days, DAYS), counts)
    known = np.flatnonzero(counts != UNKNOWN)
    if not known.size:
        return counts
    # The last known minute up to each minute. Index -1 wraps to the last one: the cycle is a ring.
    last_known = np.searchsorted(known, np.arange(len(counts)), side="right") - 1
    return counts[known[last_known]]


def in_utc(steps: Sequence[Step], zone: str) -> tuple[Step, ...]:
    """Convert steps in local time of ``zone`` to UTC."""
    local_zone = ZoneInfo(zone)

    def utc(wall: datetime) -> datetime:
        return wall.replace(tzinfo=local_zone).astimezone(UTC).replace(tzinfo=None)

    return tuple(Step(utc(step.begins), utc(step.ends), step.replicas) for step in steps)


def minute_of(moment: datetime) -> int:
    """Return the whole minutes since midnight of Monday, 5 January 1970."""
    return (moment - datetime(1970, 1, 5)) // timedelta(minutes=1)


def slots(counts: IntArray, floor: int) -> list[Slot]:
    """Return the time slots with more than ``floor`` replicas.

    ``counts`` are the replicas by minute of a day or week. Slots with the same time of day, length
    and replicas become one slot with several days.
    """
    cycle, above = len(counts), counts > floor
    if not above.any():
        return []
    # The cycle is a ring: a slot may cross midnight, or the end of Sunday.
    changes = np.flatnonzero(counts != np.roll(counts, 1))
    if not changes.size:  # the same number at all times
        return [Slot(days=(), start=0, minutes=cycle, replicas=int(counts[0]))]
    # The last slot lasts until the first change of the next cycle.
    lengths = np.diff(np.r_[changes, changes[0] + cycle])
    days_of_slot: dict[tuple[int, int, int], list[int]] = defaultdict(list)
    for begins, length in zip(changes.tolist(), lengths.tolist(), strict=True):
        if above[begins]:
            start, day = begins % DAY, begins // DAY
            days_of_slot[start, length, int(counts[begins])].append(day)
    every_day = [*range(DAYS)]
    by_first_day = sorted(days_of_slot.items(), key=lambda item: item[1][0])
    return [
        Slot(() if cycle == DAY or days == every_day else tuple(days), start, length, replicas)
        for (start, length, replicas), days in by_first_day
    ]


def dated_slots(steps: Sequence[Step], floor: int) -> list[Slot]:
    """Return steps above ``floor`` as dated slots, with adjacent equal steps joined."""
    joined: list[Step] = []
    for step in steps:
        if joined and joined[-1].ends == step.begins and joined[-1].replicas == step.replicas:
            joined[-1] = Step(joined[-1].begins, step.ends, step.replicas)
        else:
            joined.append(step)
    return [
        Slot(
            days=(),
            start=minute_of(step.begins) % DAY,
            minutes=minute_of(step.ends) - minute_of(step.begins),
            replicas=step.replicas,
            date=step.begins.date(),
        )
        for step in joined
        # Skip steps below a minute, because schedules have a resolution of one minute.
        if step.replicas > floor and minute_of(step.ends) > minute_of(step.begins)
    ]
