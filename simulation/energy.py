"""Energy and carbon of a simulated pool: watts by what its GPUs did, interval by interval.

A starting or idle instance draws idle power. A busy one draws what its pool's mean iteration of
the interval draws at load (``simulation.performance.power``) where the pool knows, else the GPU's
constants for iterations with and without prompt tokens, in the window's mix. The server around the
GPUs adds ``host_w`` per GPU all the time, the building multiplies both by PUE. Batches and prompts
are the interval's own; how long the contexts are that they attend to is the window's mean (a
simplification). Instances lent out are not the fleet's to pay for.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from simulation.arrays import FloatArray
from simulation.fleet import HOURS, Region
from simulation.results import SimulationResult

HOUR_S = 3600.0
KWH_J = 3.6e6


@dataclass(frozen=True, slots=True, eq=False)
class PoolEnergy:
    """Of the window; both energies include PUE."""

    busy_w: float  # per GPU while an iteration runs; 0 where none ran
    watts: FloatArray  # mean of the interval, all GPUs and hosts of the pool, shape [intervals]
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
    watts = _busy_watts(result, p)
    factor = pool.gpus_per_instance * region.pue / KWH_J
    gpu = factor * ((running - busy) * pool.gpu.idle_w + busy * watts)
    host = factor * running * pool.host_w
    mean = float(watts @ busy) / float(busy.sum()) if busy.sum() else 0.0
    power = (gpu + host) * KWH_J / seconds
    return PoolEnergy(mean, power, gpu, host, carbon_kg(gpu + host, region, result))


def _busy_watts(result: SimulationResult, p: int) -> FloatArray:
    """Per GPU while an iteration runs, shape [intervals]."""
    pool, totals, series = result.fleet.pools[p], result.totals, result.series
    prefill_s, decode_s = float(totals.prefill_s[p]), float(totals.decode_s[p])
    busy_s = prefill_s + decode_s
    if busy_s == 0:
        return np.zeros(series.busy.shape[1])
    constant = (prefill_s * pool.gpu.prefill_w + decode_s * pool.gpu.decode_w) / busy_s
    watts = np.full(series.busy.shape[1], constant)
    ran = (series.iterations[p] > 0) & (series.busy[p] > 0)
    if pool.power is None or not ran.any():
        return watts
    trace = result.trace
    served = result.requests.pool == p
    if not served.any():  # a pool that only prefills: its requests end elsewhere
        served = trace.model == trace.models.index(pool.model)
    outputs = trace.output_tokens[served].astype(np.float64)
    inputs = trace.input_tokens[served].astype(np.float64)
    context = float((outputs * (inputs + outputs / 2)).sum() / outputs.sum())
    keys = float((inputs**2 / 2).sum() / inputs.sum())
    # An iteration is counted where it ends and its time where it passes: what ends at the edge of
    # an interval may make too much of it, so intervals without one draw the mean of the others.
    iterations = series.iterations[p][ran]
    seconds = series.busy[p][ran] * _interval_seconds(result)[ran] / iterations
    decodes = series.output_tokens[p][ran] / iterations
    prompt = series.input_tokens[p][ran] / iterations
    found = pool.power.watts(seconds, decodes, decodes * context, prompt, prompt * keys)
    watts[:] = np.average(found, weights=seconds * iterations)
    watts[ran] = found
    return watts


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
