"""Energy and carbon of a simulated pool: watts by what its GPUs did, interval by interval.

A starting or idle instance draws idle power. A busy one draws what its pool's mean iteration draws
at load (``simulation.performance.power``) where the pool knows, else the GPU's constants for
iterations with and without prompt tokens. The server around the GPUs adds ``host_w`` per GPU all
the time, the building multiplies both by PUE. One mean iteration stands for the busy time of the
whole window (a simplification): the hours of a day differ by how long GPUs are busy, not by how
full the batches are.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from simulation.fleet import HOURS, Region
from simulation.results import SimulationResult

FloatArray = npt.NDArray[np.float64]
HOUR_S = 3600.0
KWH_J = 3.6e6


@dataclass(frozen=True, slots=True, eq=False)
class PoolEnergy:
    """Of the window; both energies include PUE."""

    busy_w: float  # per GPU while an iteration runs; 0 where none ran
    gpu_kwh: FloatArray  # shape [intervals]
    host_kwh: FloatArray
    carbon_kg: float

    @property
    def kwh(self) -> float:
        return float(self.gpu_kwh.sum() + self.host_kwh.sum())


def pool_energy(result: SimulationResult, p: int) -> PoolEnergy:
    """Energy of pool ``p``, GPUs and hosts apart, and what it emits."""
    pool, series = result.fleet.pools[p], result.series
    region = next(region for region in result.fleet.regions if region.name == pool.region)
    seconds = _interval_seconds(result)
    running = (series.ready[p] + series.starting[p] + series.draining[p]) * seconds
    busy = series.busy[p] * seconds
    watts = busy_watts(result, p)
    factor = pool.gpus_per_instance * region.pue / KWH_J
    gpu = factor * ((running - busy) * pool.gpu.idle_w + busy * watts)
    host = factor * running * pool.host_w
    return PoolEnergy(watts, gpu, host, carbon_kg(gpu + host, region, result))


def busy_watts(result: SimulationResult, p: int) -> float:
    """Per GPU, mean over the time that instances of pool ``p`` ran iterations."""
    pool, totals = result.fleet.pools[p], result.totals
    prefill_s, decode_s = float(totals.prefill_s[p]), float(totals.decode_s[p])
    busy_s = prefill_s + decode_s
    if busy_s == 0:
        return 0.0
    constant = (prefill_s * pool.gpu.prefill_w + decode_s * pool.gpu.decode_w) / busy_s
    series, trace = result.series, result.trace
    given, read = float(series.output_tokens[p].sum()), float(series.input_tokens[p].sum())
    if pool.power is None or not given + read or not totals.iterations[p]:
        return constant
    # Iterations go on after the window until the last request is done; tokens tell their share.
    served = result.requests.pool == p
    outputs_served = float(trace.output_tokens[served].sum())
    inside = min(given / outputs_served, 1.0) if outputs_served else 1.0
    iterations = totals.iterations[p] * inside
    if not served.any():  # a pool that only prefills: its requests end elsewhere
        served = trace.model == trace.models.index(pool.model)
    outputs = trace.output_tokens[served].astype(np.float64)
    inputs = trace.input_tokens[served].astype(np.float64)
    context = float((outputs * (inputs + outputs / 2)).sum() / outputs.sum())
    keys = float((inputs**2 / 2).sum() / inputs.sum())
    decodes, prompt = given / iterations, read / iterations
    return float(
        pool.power.watts(busy_s / iterations, decodes, decodes * context, prompt, prompt * keys)
    )


def carbon_kg(kwh: FloatArray, region: Region, result: SimulationResult) -> float:
    """What energy per interval emits: at the rate of the UTC hour its middle lies in where the
    region's grid is known by hour, else at the region's mean."""
    if region.carbon_hourly_g_per_kwh is None:
        return float(kwh.sum()) * region.carbon_g_per_kwh / 1000.0
    middle = (np.arange(len(kwh)) + 0.5) * result.series.interval_s
    hour = ((result.trace.start_s + middle) // HOUR_S).astype(np.int64) % HOURS
    return float(kwh @ np.array(region.carbon_hourly_g_per_kwh)[hour]) / 1000.0


def _interval_seconds(result: SimulationResult) -> FloatArray:
    """The last interval ends with the window."""
    count = result.series.ready.shape[1]
    edges = np.append(np.arange(count) * result.series.interval_s, result.duration_s)
    return np.diff(edges)
