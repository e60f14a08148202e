"""Load the efficiency factors of the catalogue, fitted to measured kernels."""

from functools import cache

from planner.inputs.catalogue.estimate_calibration import estimate_fit
from planner.inputs.catalogue.files import read
from simulation.performance.efficiency import Efficiencies, Efficiency
from simulation.performance.profile import Check


@cache
def efficiencies(engine: str = "vllm") -> Efficiencies:
    """Return the efficiency factors by kind of operator, GPU family and precision.

    They come with the spread of their prediction error, their source, and checks of the resulting
    profiles. Factors that only whole deployments can show come from the fit of estimates, some of
    them by ``engine``.
    """
    content = read("efficiency")
    entries = tuple(Efficiency(**entry) for entry in content["entries"])
    checks = tuple(Check(**check) for check in content["checks"])
    fit = estimate_fit().calibration
    return Efficiencies(
        entries, content["across"], checks, fit.unpacked, fit.foreign, fit.scaled_by(engine)
    )
