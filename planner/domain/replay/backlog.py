"""Find the requests that are in flight as a window begins."""

from __future__ import annotations

import numpy as np

from planner.domain.study import Study
from simulation.arrays import FloatArray
from simulation.carry_over import in_flight
from simulation.trace import Trace

LONGEST_S = 3600.0  # before the window; earlier requests are taken to be done


def carried_into(study: Study) -> Trace | None:
    """Return the interactive requests in flight at the window's start, for one cell of the fleet.

    They arrived before the window and are assumed to be served at the speed of a replica at its
    rated load. Return None if nothing is known before the window.
    """
    window, traffic = study.window, study.traffic
    ttft_s, tbt_s = _speeds(study)
    longest = [
        ttft + tbt * float(osl.max(initial=1))
        for ttft, tbt, (_, osl) in zip(ttft_s, tbt_s, traffic.lengths, strict=True)
    ]
    since_s = max(window.start_s - min(max(longest), LONGEST_S), traffic.demand.start_s)
    if since_s >= window.start_s:
        return None
    before = traffic.requests(since_s, window.start_s, study.settings.seed, cells=study.cells)
    waiting = [before.tiers.index(name) for name in traffic.deferrable if name in before.tiers]
    before = before.rows(~np.isin(before.tier, waiting))
    carried = in_flight(before, ttft_s, tbt_s, window.start_s)
    return carried if len(carried) else None


def _speeds(study: Study) -> tuple[FloatArray, FloatArray]:
    """Return TTFT and TBT in seconds of a replica of each model at its rated load, ``[l]`` each."""
    models = range(len(study.hardware.models))
    found: list[FloatArray] = []
    for field, idle in (("ttft_s", "decode"), ("tbt_s", "prefill")):
        of_model = [
            [
                getattr(carried, field)
                for (m, g), (_, carried) in study.sizes.capacity.items()
                if m == model and study.hardware.columns[g].role != idle
            ]
            for model in models
        ]
        seconds = [[s for s in values if np.isfinite(s)] for values in of_model]
        found.append(np.array([float(np.mean(s)) if s else 0.0 for s in seconds]))
    return found[0], found[1]
