"""Served deployments on a GPU family that nobody measured anything on.

    python -m bench.accuracy families

``silicon`` leaves the served rows of a GPU type out of the fit, but the kernels of that type, run
alone, stay among the factors. Here the kernels of its whole family are left out as well, and the
served rows of all its types: what a family such as CDNA3 can expect. Only the factors of decoding
over a latent cache stay, which were measured on one family alone.
"""

from dataclasses import replace
from pathlib import Path

import numpy as np

from planner.inputs.catalogue import hardware
from planner.inputs.catalogue.estimate_calibration import efficiencies
from simulation.performance.estimate.closed_loop import steady_state
from tools.catalogue.fit_estimate import fit
from tools.catalogue.served_models import SILICON, served_rows

ONLY_ONE = "latent_decode"  # kind of kernel measured on a single family


def figures(data: Path) -> dict[str, float]:
    """Return median absolute errors by GPU family, with its kernels seen and left out."""
    if not (data / SILICON).exists():
        raise FileNotFoundError(data / SILICON)
    everything, rows = efficiencies(), served_rows(data, energy=False)
    family = np.array([hardware.gpu(name).family for name in rows.gpu])
    medians: dict[str, float] = {}
    for left_out in np.unique(family).tolist():
        others = [e for e in everything.entries if e.family != left_out or e.kind == ONLY_ONE]
        unseen = served_rows(data, energy=False, factors=replace(everything, entries=tuple(others)))
        which = np.flatnonzero(family == left_out)
        calibration = fit(rows.take(np.flatnonzero(family != left_out)))
        for name, part in (("_seen", rows.take(which)), ("", unseen.take(which))):
            steady = steady_state(part.loop, calibration)
            for figure, quantity in (("tpot", "tbt_s"), ("ttft", "ttft_s")):
                off = getattr(steady, quantity) / getattr(part, quantity) - 1.0
                medians[f"family_{left_out}_{figure}_error{name}"] = float(np.median(np.abs(off)))
    return medians
