"""The efficiency factors of the catalogue, fitted to measured kernels."""

from __future__ import annotations

from functools import cache

from planner.catalogue.files import read
from simulation.performance.efficiency import Efficiencies, Efficiency
from simulation.performance.profile import Check


@cache
def efficiencies() -> Efficiencies:
    """Factors by kind of operator, GPU family and precision, with their spread and source, and what
    profiles made of them were checked against."""
    content = read("efficiency")
    entries = tuple(Efficiency(**entry) for entry in content["entries"])
    checks = tuple(Check(**check) for check in content["checks"])
    return Efficiencies(entries, content["across"], checks)
