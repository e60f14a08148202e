"""Fold the steps of a plan into one day or week, minute by minute, and group it into time slots.

The cycle is the day or week after which the pattern repeats.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, timedelta
from typing import Literal
from zoneinfo import ZoneInfo

import numpy as np

from simulation.arrays import IntArray

MINUTES_PER_DAY, DAYS_PER_WEEK = 24 * 60, 7  # minutes, days of a week
MINUTES_PER_WEEK = DAYS_PER_WEEK * MINUTES_PER_DAY
UNKNOWN = -1  # replicas in a minute that the plan does not cover
Repeat = Literal["once", "daily", "weekly"]
CYCLE_MINUTES: dict[Repeat, int] = {"daily": MINUTES_PER_DAY, "weekly": MINUTES_PER_WEEK}  # minutes


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
    start_minute: int  # minute of the day
    length_minutes: int
    replicas: int
    date: date | None = None  # the only date on which it applies; None: it recurs


def fold_steps(steps: Sequence[Step], repeat: Repeat) -> IntArray:
    """Return the replicas of ``steps`` by minute of the day or week, ``[minute]``.

    A week begins on Monday. If several steps fall on the same minute, the largest number applies.
    Minutes without a step are UNKNOWN.
    """
    return replicas_by_minute(steps, CYCLE_MINUTES[repeat], 0)


def replicas_by_minute(steps: Sequence[Step], cycle_minutes: int, first_minute: int) -> IntArray:
    """Return the replicas of ``steps`` by minute of a cycle, ``[minute]``.

    The cycle begins at ``first_minute``, as ``minute_of`` counts. Later steps are folded into it,
    as in ``fold_steps``.
    """
    counts = np.full(cycle_minutes, UNKNOWN, np.int64)
    for step in steps:
        begins, ends = minute_of(step.begins), minute_of(step.ends)
        if ends - begins >= cycle_minutes:
            # A step as long as the cycle covers every minute of it.
            np.maximum(counts, step.replicas, out=counts)
        else:
            step_minutes = (np.arange(begins, ends) - first_minute) % cycle_minutes
            counts[step_minutes] = np.maximum(counts[step_minutes], step.replicas)
    return counts


def replicas_without_gaps(steps: Sequence[Step], repeat: Repeat) -> IntArray:
    """Return the replicas of ``steps`` by minute of the day or week, ``[minute]``, without gaps.

    A minute without a step gets the largest count of the other days of the week at that time of
    day, or else the last count before it. Without any step, all minutes are UNKNOWN.
    """
    counts = fold_steps(steps, repeat)
    if repeat == "weekly":
        by_day = counts.reshape(DAYS_PER_WEEK, MINUTES_PER_DAY)
        largest_of_days = np.tile(by_day.max(axis=0), DAYS_PER_WEEK)
        counts = np.where(counts == UNKNOWN, largest_of_days, counts)
    known_minutes = np.flatnonzero(counts != UNKNOWN)
    if not known_minutes.size:
        return counts
    # For each minute, the position in ``known_minutes`` of the last one up to it. Before the first
    # one it is -1, which is the last of the cycle: the cycle is a ring.
    minutes = np.arange(len(counts))
    last_known = np.searchsorted(known_minutes, minutes, side="right") - 1
    return counts[known_minutes[last_known]]


def in_utc(steps: Sequence[Step], zone: str) -> tuple[Step, ...]:
    """Convert steps in local time of ``zone`` to UTC."""
    zone_info = ZoneInfo(zone)

    def utc(local_time: datetime) -> datetime:
        moment = local_time.replace(tzinfo=zone_info)
        return moment.astimezone(UTC).replace(tzinfo=None)

    return tuple(Step(utc(step.begins), utc(step.ends), step.replicas) for step in steps)


def minute_of(moment: datetime) -> int:
    """Return the whole minutes since midnight of Monday, 5 January 1970."""
    return (moment - datetime(1970, 1, 5)) // timedelta(minutes=1)


def recurring_slots(counts: IntArray, minimum: int) -> list[Slot]:
    """Return the time slots with more than ``minimum`` replicas.

    ``counts`` are the replicas by minute of a day or week. Slots with the same time of day, length
    and replicas become one slot with several days.
    """
    cycle_minutes = len(counts)
    if not (counts > minimum).any():
        return []
    # The cycle is a ring: a slot may cross midnight, or the end of Sunday.
    changes = np.flatnonzero(counts != np.roll(counts, 1))  # minutes in which a slot begins
    if not changes.size:  # the same number at all times
        return [Slot((), 0, length_minutes=cycle_minutes, replicas=int(counts[0]))]
    # The last slot lasts until the first change of the next cycle.
    lengths = np.diff([*changes, changes[0] + cycle_minutes])
    days_by_time: dict[tuple[int, int, int], list[int]] = defaultdict(list)
    for begins, length in zip(changes.tolist(), lengths.tolist(), strict=True):
        replicas = int(counts[begins])
        if replicas > minimum:
            day, start_minute = divmod(begins, MINUTES_PER_DAY)
            days_by_time[start_minute, length, replicas].append(day)
    found = []
    for time, days in days_by_time.items():
        is_daily = cycle_minutes == MINUTES_PER_DAY or len(days) == DAYS_PER_WEEK
        found.append(Slot(() if is_daily else tuple(days), *time))
    return found


def dated_slots(steps: Sequence[Step], minimum: int) -> list[Slot]:
    """Return steps above ``minimum`` as dated slots, with adjacent equal steps joined."""
    joined: list[Step] = []
    for step in steps:
        last = joined[-1] if joined else None
        if last and last.ends == step.begins and last.replicas == step.replicas:
            joined[-1] = replace(last, ends=step.ends)
        else:
            joined.append(step)
    found = []
    for step in joined:
        begins, ends = minute_of(step.begins), minute_of(step.ends)
        # Skip steps below a minute, because schedules have a resolution of one minute.
        if step.replicas > minimum and ends > begins:
            found.append(
                Slot(
                    days=(),
                    start_minute=begins % MINUTES_PER_DAY,
                    length_minutes=ends - begins,
                    replicas=step.replicas,
                    date=step.begins.date(),
                )
            )
    return found
