"""Shapes of a day, of public traces and assumed ones."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from planner.catalogue.files import read
from simulation.performance.specs import Provenance


@dataclass(frozen=True, slots=True)
class DayShape:
    """Relative rates by hour of a weekday in local time, with mean 1, and what a weekend day has of
    a weekday's requests."""

    name: str
    words: str
    by_hour: tuple[float, ...]  # 24
    weekend: float
    provenance: Provenance


def shapes() -> dict[str, DayShape]:
    return dict(_shapes())


@cache
def _shapes() -> dict[str, DayShape]:
    shapes = {}
    for entry in read("shapes")["shapes"]:
        mean = sum(entry["by_hour"]) / 24
        shapes[entry["name"]] = DayShape(
            name=entry["name"],
            words=entry["words"],
            by_hour=tuple(rate / mean for rate in entry["by_hour"]),
            weekend=float(entry["weekend"]),
            provenance=Provenance(entry["kind"], entry["source"]),
        )
    return shapes
