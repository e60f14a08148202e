"""Manifests read back: what number of replicas they ask for in each minute of a week."""

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

import numpy as np
from ruamel.yaml import YAML

from planner.outputs.weekly_pattern import DAYS_PER_WEEK, MINUTES_PER_DAY, MINUTES_PER_WEEK, Step
from simulation.arrays import BoolArray, IntArray

WEEKDAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")


def objects_of(text: str) -> list[dict[str, Any]]:
    return list(YAML(typ="safe", pure=True).load_all(text))


def week_of_cron(triggers: Iterable[Mapping[str, Any]], floor: int) -> IntArray:
    """Of KEDA's cron triggers without dates, ``[minute]`` from Monday on: the largest that is
    active, and no fewer than ``floor``."""
    counts = np.full(MINUTES_PER_WEEK, floor, np.int64)
    for trigger in triggers:
        metadata = trigger["metadata"]
        active = _active(_moments(metadata["start"]), _moments(metadata["end"]))
        np.maximum(counts, int(metadata["desiredReplicas"]), out=counts, where=active)
    return counts


def _moments(cron: str) -> IntArray:
    """Minutes of the week at which a cron without dates fires."""
    minute, hour, day, month, week = cron.split()
    if (day, month) != ("*", "*"):
        raise ValueError(f"{cron} has a date")
    on: set[int] = set()
    for part in week.split(","):
        first, _, last = part.partition("-")
        on |= (
            set(range(DAYS_PER_WEEK))
            if part == "*"
            else set(range(int(first), int(last or first) + 1))
        )
    days = sorted((day - 1) % DAYS_PER_WEEK for day in on)  # cron's Sunday is 0
    return np.array(
        [MINUTES_PER_DAY * day + 60 * int(hour) + int(minute) for day in days], np.int64
    )


def _active(starts: IntArray, ends: IntArray) -> BoolArray:
    """Where the next end comes before the next start, as KEDA has it."""
    now = np.arange(MINUTES_PER_WEEK)[:, None]
    following = [
        ((moments[None, :] - now - 1) % MINUTES_PER_WEEK).min(axis=1) for moments in (starts, ends)
    ]
    active: BoolArray = following[1] < following[0]
    return active


def steps_of_cron(triggers: Iterable[Mapping[str, Any]], year: int) -> list[Step]:
    """Of cron triggers with dates, in the year that a plan was made for."""
    steps = []
    for trigger in triggers:
        metadata = trigger["metadata"]
        begins, ends = (_dated(metadata[name], year) for name in ("start", "end"))
        if ends <= begins:
            ends = _dated(metadata["end"], year + 1)
        steps.append(Step(begins, ends, int(metadata["desiredReplicas"])))
    return sorted(steps, key=lambda step: step.begins)


def _dated(cron: str, year: int) -> datetime:
    minute, hour, day, month, _ = cron.split()
    return datetime(year, int(month), int(day), int(hour), int(minute))


def week_of_schedules(spec: Mapping[str, Any]) -> IntArray:
    """Of an AIBrix PodAutoscaler what it keeps at least, ``[minute]`` from Monday on."""
    counts = np.full(MINUTES_PER_WEEK, spec["minReplicas"], np.int64)
    for rule in spec.get("schedules", ()):
        start, end = (_clock(rule[name]) for name in ("startTime", "endTime"))
        for day in rule.get("daysOfWeek", WEEKDAYS):
            first_day = WEEKDAYS.index(day) * MINUTES_PER_DAY
            counts[first_day + start : first_day + end] = rule["minReplicas"]
    return counts


def _clock(text: str) -> int:
    hour, minute = text.split(":")
    return 60 * int(hour) + int(minute)
