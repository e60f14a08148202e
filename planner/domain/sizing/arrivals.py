"""Read the arrivals that a size assumes: the peak rate and the burstiness of a model's requests."""

import numpy as np

from planner.domain.traffic.groups import interactive
from planner.domain.traffic.traffic import Traffic
from planner.inputs.scenario.build import Hardware
from simulation.sizing.workload import Burstiness, local_burstiness

MOST_BURSTY = 100.0  # largest squared coefficient of variation
TRACE, POISSON = "trace", "poisson"


def variation_of(burstiness: str) -> float | None:
    """Return the squared coefficient of variation of gaps between arrivals; None for "trace".

    ``burstiness`` is "trace", "poisson" (1) or a number up to MOST_BURSTY. Otherwise, raise
    ValueError.
    """
    if burstiness in (TRACE, POISSON):
        return None if burstiness == TRACE else 1.0
    try:
        value = float(burstiness)
    except ValueError:
        value = np.nan
    if not 0 <= value <= MOST_BURSTY:
        raise ValueError(
            f"give poisson, trace, or a squared coefficient of variation from 0 to {MOST_BURSTY:g}"
        )
    return value


def variation_in(traffic: Traffic, m: int, notes: list[str]) -> float:
    """Return the squared coefficient of variation of gaps between requests of model number ``m``.

    It is the mean over windows of five minutes, so that daily cycles do not count as bursts. If
    only counts are known, return 1 (Poisson). If sizes then assume Poisson too, add a note to
    ``notes``.
    """
    arrivals = traffic.measured.arrival_s[traffic.measured.model == m]
    if not len(arrivals):
        if (traffic.arrivals[m] if traffic.arrivals else 1.0) == 1.0:
            notes.append(
                f"{traffic.models[m]}: the traffic holds counts per bin, so arrivals within a bin "
                "are Poisson. Set traffic.sources.dispersion if they are bursty."
            )
        return 1.0
    return min(local_burstiness(arrivals), MOST_BURSTY)


def arrivals_of(
    traffic: Traffic | None, variation: float | None, models: int
) -> tuple[Burstiness, ...]:
    """Return the burstiness of arrivals to simulate, for each of ``models`` models.

    ``variation`` is the squared coefficient of variation of gaps; None: that of the traffic.
    Without traffic, arrivals are Poisson (1).
    """
    if variation is None and traffic is not None and traffic.arrivals:
        return traffic.arrivals
    return (1.0 if variation is None else variation,) * models


def peak_rps(hardware: Hardware, traffic: Traffic, m: int) -> dict[str, float]:
    """Return the peak requests/s of the interactive tiers of model number ``m``, by region.

    The peak is the mean of the region's busiest bin. Regions without requests are left out.
    """
    tiers = interactive(hardware)
    demand, peaks = traffic.demand, {}
    for region in traffic.regions:
        rows = [
            i for i, key in enumerate(demand.keys)
            if (key.model, key.region) == (traffic.models[m], region) and key.tier in tiers
        ]  # fmt: skip
        peak = float(np.nan_to_num(demand.requests[rows]).sum(axis=0).max(initial=0.0))
        if peak:
            peaks[region] = peak / demand.bin_s
    return peaks
