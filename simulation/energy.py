"""Energy and carbon of a simulated pool: watts by what its GPUs did, interval by interval.

A starting or idle instance draws idle power. A busy one draws what its pool's mean iteration of
the interval draws at load (``simulation.performance.power``) where the pool knows, else the GPU's
constants for iterations with and without prompt tokens, in the window's mix. The server around the
GPUs adds ``host_w`` per GPU all the time, the building multiplies both by PUE. Batches and prompts
are the interval's own; how long the contexts are that they attend to is the window's mean (a
simplification). Instances lent out are not the fleet's to pay for. What is kept after the window
until its work is done counts as one interval more, and so do starts before it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from simulation.arrays import FloatArray
from simulation.fleet import HOURS, Region
from simulation.results import Replay

HOUR_S = 3600.0
KWH_J = 3.6e6


@dataclass(frozen=True, slots=True, eq=False)
class PoolEnergy:
    """Of the window, interval by interval, and of starts before and work after it; energies
    include PUE."""

    busy_w: float  # per GPU while an iteration runs, in the window; 0 where none ran
    watts: FloatArray  # mean of the interval, all GPUs and hosts of the pool, shape [intervals]
    gpu_kwh: FloatArray  # shape [intervals]
    host_kwh: FloatArray
    before_gpu_kwh: float
    before_host_kwh: float
    after_gpu_kwh: float
    after_host_kwh: float
    carbon_kg: float

    @property
    def after_kwh(self) -> float:
        return self.after_gpu_kwh + self.after_host_kwh

    @property
    def all_host_kwh(self) -> float:
        return float(self.host_kwh.sum()) + self.before_host_kwh + self.after_host_kwh

    @property
    def kwh(self) -> float:
        before = self.before_gpu_kwh + self.before_host_kwh
        return float(self.gpu_kwh.sum() + self.host_kwh.sum()) + before + self.after_kwh


def pool_energy(result: Replay, p: int) -> PoolEnergy:
    """Energy of pool ``p``, GPUs and hosts apart, and what it emits."""
    pool, series = result.fleet.pools[p], result.series
    region = next(region for region in result.fleet.regions if region.name == pool.region)
    after = result.after
    seconds = _interval_seconds(result)
    window = (series.ready[p] + series.starting[p] + series.draining[p]) * seconds
    running = np.append(window, after.kept_s[p])
    busy = np.append(series.busy[p] * seconds, after.prefill_s[p] + after.decode_s[p])
    watts = _busy_watts(result, p, busy)
    factor = pool.gpus_per_instance * region.pue / KWH_J
    gpu = factor * ((running - busy) * pool.gpu.idle_w + busy * watts)
    host = factor * running * pool.host_w
    before_gpu = factor * float(result.totals.before_s[p]) * pool.gpu.idle_w
    before_host = factor * float(result.totals.before_s[p]) * pool.host_w
    inside = float(busy[:-1].sum())
    mean = float(watts[:-1] @ busy[:-1]) / inside if inside else 0.0
    return PoolEnergy(
        busy_w=mean,
        watts=(gpu + host)[:-1] * KWH_J / seconds,
        gpu_kwh=gpu[:-1],
        host_kwh=host[:-1],
        before_gpu_kwh=before_gpu,
        before_host_kwh=before_host,
        after_gpu_kwh=float(gpu[-1]),
        after_host_kwh=float(host[-1]),
        carbon_kg=carbon_kg((gpu + host)[:-1], region, result)
        + (before_gpu + before_host) * _g_per_kwh(region, result, -1.0, 0.0) / 1000.0
        + float(gpu[-1] + host[-1])
        * _g_per_kwh(region, result, result.duration_s, after.until_s)
        / 1000.0,
    )


def _busy_watts(result: Replay, p: int, busy_s: FloatArray) -> FloatArray:
    """Per GPU while an iteration runs, for ``busy_s`` [intervals and what came after]."""
    pool, totals, series, after = result.fleet.pools[p], result.totals, result.series, result.after
    prefill_s = np.array([totals.prefill_s[p], after.prefill_s[p]])
    decode_s = np.array([totals.decode_s[p], after.decode_s[p]])
    constant = prefill_s * pool.gpu.prefill_w + decode_s * pool.gpu.decode_w
    constant /= np.where(prefill_s + decode_s > 0, prefill_s + decode_s, 1.0)
    watts = np.append(np.full(len(busy_s) - 1, constant[0]), constant[1])
    iterations = np.append(series.iterations[p], after.iterations[p])
    ran = (iterations > 0) & (busy_s > 0)
    if pool.power is None or not ran.any():
        return watts
    contexts, outputs, pairs, inputs = result.attention(p)
    context, keys = float(contexts / outputs), float(pairs / inputs)
    # An iteration is counted where it ends and its time where it passes: what ends at the edge of
    # an interval may make too much of it, so intervals without one draw the mean of the others.
    iterations = iterations[ran]
    seconds = busy_s[ran] / iterations
    decodes = np.append(series.output_tokens[p], after.output_tokens[p])[ran] / iterations
    prompt = np.append(series.input_tokens[p], after.input_tokens[p])[ran] / iterations
    per_iteration = pool.power.watts(seconds, decodes, decodes * context, prompt, prompt * keys)
    watts[:] = np.average(per_iteration, weights=seconds * iterations)
    watts[ran] = per_iteration
    return watts


def carbon_kg(kwh: FloatArray, region: Region, result: Replay) -> float:
    """What energy per interval emits: at the rate of the UTC hour its middle lies in where the
    region's grid is known by hour, else at the region's mean."""
    if region.carbon_hourly_g_per_kwh is None:
        return float(kwh.sum()) * region.carbon_g_per_kwh / 1000.0
    middle = (np.arange(len(kwh)) + 0.5) * result.series.interval_s
    hour = ((result.start_s + middle) // HOUR_S).astype(np.int64) % HOURS
    return float(kwh @ np.array(region.carbon_hourly_g_per_kwh)[hour]) / 1000.0


def _g_per_kwh(region: Region, result: Replay, from_s: float, to_s: float) -> float:
    """Of a kWh drawn outside the window: the mean over the UTC hours of a stretch of time."""
    if region.carbon_hourly_g_per_kwh is None:
        return region.carbon_g_per_kwh
    start_s = result.start_s
    first = int((start_s + from_s) // HOUR_S)
    last = max(first, int(np.ceil((start_s + to_s) / HOUR_S)) - 1)
    return float(
        np.mean([region.carbon_hourly_g_per_kwh[h % HOURS] for h in range(first, last + 1)])
    )


def _interval_seconds(result: Replay) -> FloatArray:
    """The last interval ends with the window."""
    count = result.series.ready.shape[1]
    edges = np.append(np.arange(count) * result.series.interval_s, result.duration_s)
    return np.diff(edges)
