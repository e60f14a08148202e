"""Define daily traffic shapes from public traces and assumptions."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType

from planner.inputs.catalogue.files import read
from simulation.performance.specs import Provenance


@dataclass(frozen=True, slots=True)
class DayShape:
    """Relative rates by local hour of a weekday, with mean 1.

    ``weekend`` is the ratio of a weekend day's requests to a weekday's.
    """

    name: str
    words: str
    by_hour: tuple[float, ...]  # 24
    weekend: float
    provenance: Provenance


@cache
def shapes() -> Mapping[str, DayShape]:
    """Return the built-in shapes by name, with rates scaled to mean 1."""
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
    return MappingProxyType(shapes)
