"""The efficiency factors of the catalogue, fitted to measured kernels."""

from __future__ import annotations

from functools import cache

from planner.catalogue.files import read
from simulation.performance.efficiency import Efficiencies, Efficiency


@cache
def efficiencies() -> Efficiencies:
    """Factors by kind of operator, GPU family and precision, with their spread and source."""
    content = read("efficiency")
    return Efficiencies(
        tuple(Efficiency(**entry) for entry in content["entries"]), content["across"]
    )
