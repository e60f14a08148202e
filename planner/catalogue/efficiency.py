"""The efficiency factors of the catalogue, fitted to measured kernels."""

from __future__ import annotations

from functools import cache

from planner.catalogue.estimating import estimate_fit
from planner.catalogue.files import read
from simulation.performance.efficiency import Efficiencies, Efficiency
from simulation.performance.profile import Check


@cache
def efficiencies() -> Efficiencies:
    """Factors by kind of operator, GPU family and precision, with their spread and source, and what
    profiles made of them were checked against. What unpacking 4-bit integers takes is as in
    estimates: served deployments say it, kernels do not."""
    content = read("efficiency")
    entries = tuple(Efficiency(**entry) for entry in content["entries"])
    checks = tuple(Check(**check) for check in content["checks"])
    unpacked = estimate_fit().calibration.unpacked
    return Efficiencies(entries, content["across"], checks, unpacked)
