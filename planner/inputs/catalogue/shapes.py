"""Define daily traffic shapes from public traces and assumptions."""

from dataclasses import dataclass
from functools import cache

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


def shapes() -> dict[str, DayShape]:
    return dict(_shapes())


@cache
def _shapes() -> dict[str, DayShape]:
    """Build the shapes of ``shapes.yaml``, with rates scaled to mean 1."""
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
