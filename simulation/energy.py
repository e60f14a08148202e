"""Energy and carbon of a simulated pool, from the work of its GPUs in each interval.

A starting or idle instance draws idle power. A busy one draws the power of the pool's mean
iteration in the interval, if the pool has a power model (``simulation.performance.power``).
Otherwise it draws the GPU's constants for iterations with and without prompt tokens, in the
window's mix. The server adds ``host_w`` per GPU at all times. The building multiplies both by PUE.

Batches and prompts are those of the interval. The context length is the mean of the window (a
simplification). Lent instances do not count. Work after the window counts as one more interval, and
so do starts before it.
"""

from dataclasses import dataclass

import numpy as np

from simulation.arrays import FloatArray, IntArray
from simulation.fleet import HOUR_S, HOURS, Region
from simulation.results import Replay

KWH_J = 3.6e6


@dataclass(frozen=True, slots=True, eq=False)
class PoolEnergy:
    """Energy of a pool, with the PUE of the region.

    It is counted in the window (by interval), for starts before it, and for work after it.
    """

    busy_w: float  # per GPU while an iteration runs, in the window; 0 if none ran
    watts: FloatArray  # mean of the interval over all GPUs and hosts of the pool, shape [intervals]
    gpu_kwh: FloatArray  # shape [intervals]
    host_kwh: FloatArray
    before_gpu_kwh: float
    before_host_kwh: float
    after_gpu_kwh: float
    after_host_kwh: float
    carbon_kg: float
    electricity_usd: float

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
    """Return the energy, emissions and electricity cost of the pool with index ``p``."""
    pool, intervals = result.fleet.pools[p], result.series.ready.shape[1]
    # Seconds of each interval; the last one ends with the window.
    starts_s = np.arange(intervals) * result.series.interval_s
    interval_s = np.diff(np.append(starts_s, result.duration_s))
    region = next(region for region in result.fleet.regions if region.name == pool.region)
    running_s, busy_s = _instance_seconds(result, p, interval_s)
    busy_watts = _busy_watts(result, p, busy_s)
    kwh_per_watt = pool.gpus_per_instance * region.pue / KWH_J  # and instance-second
    # By interval; the last value is for the time after the window. GPUs draw idle or busy power.
    gpu_kwh = kwh_per_watt * ((running_s - busy_s) * pool.gpu.idle_w + busy_s * busy_watts)
    host_kwh = kwh_per_watt * running_s * pool.host_w
    before_s = float(result.totals.before_s[p])  # of starts before the window
    before_gpu_kwh = kwh_per_watt * before_s * pool.gpu.idle_w
    before_host_kwh = kwh_per_watt * before_s * pool.host_w
    window_kwh, window_busy_s = (gpu_kwh + host_kwh)[:-1], float(busy_s[:-1].sum())
    # In the window (by interval), before it, and after it.
    kwh_by_time = window_kwh, before_gpu_kwh + before_host_kwh, float(gpu_kwh[-1] + host_kwh[-1])
    return PoolEnergy(
        busy_w=float(busy_watts[:-1] @ busy_s[:-1]) / window_busy_s if window_busy_s else 0.0,
        watts=window_kwh * KWH_J / interval_s,
        gpu_kwh=gpu_kwh[:-1],
        host_kwh=host_kwh[:-1],
        before_gpu_kwh=before_gpu_kwh,
        before_host_kwh=before_host_kwh,
        after_gpu_kwh=float(gpu_kwh[-1]),
        after_host_kwh=float(host_kwh[-1]),
        carbon_kg=_all_carbon_kg(*kwh_by_time, region, result),
        electricity_usd=_electricity_usd(*kwh_by_time, region, result),
    )


def _instance_seconds(result: Replay, p: int, seconds: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return the seconds of running instances and of busy ones, ``[intervals + 1]`` each.

    The last value is for the time after the window. ``seconds`` are the lengths of the
    intervals.
    """
    series, after = result.series, result.after
    running_s = (series.ready[p] + series.starting[p] + series.draining[p]) * seconds
    busy_s = series.busy[p] * seconds
    busy_after = after.prefill_s[p] + after.decode_s[p]
    return np.append(running_s, after.kept_s[p]), np.append(busy_s, busy_after)


def _all_carbon_kg(
    window_kwh: FloatArray, before_kwh: float, after_kwh: float, region: Region, result: Replay
) -> float:
    """Return the emissions in kg of the energy in the window, before it and after it.

    ``window_kwh`` is by interval.
    """
    before_g_per_kwh = _g_per_kwh(region, result, -1.0, 0.0)  # of the hour that ends before it
    after_g_per_kwh = _g_per_kwh(region, result, result.duration_s, result.after.until_s)
    return (
        carbon_kg(window_kwh, region, result)
        + before_kwh * before_g_per_kwh / 1000.0
        + after_kwh * after_g_per_kwh / 1000.0
    )


def _electricity_usd(
    kwh: FloatArray, before_kwh: float, after_kwh: float, region: Region, result: Replay
) -> float:
    """Return the cost of electricity, at the price of the UTC hour of each interval.

    ``kwh [intervals]`` is the energy in the window. Energy before and after the window has the mean
    price of the day.
    """
    by_hour = np.array(region.electricity_usd_per_kwh)
    hours = hours_of(len(kwh), result.start_s, result.series.interval_s)
    return float(kwh @ by_hour[hours]) + (before_kwh + after_kwh) * float(by_hour.mean())


def hours_of(intervals: int, start_s: float, interval_s: float) -> IntArray:
    """Return the UTC hour at the middle of each interval from ``start_s`` (epoch)."""
    middle = (np.arange(intervals) + 0.5) * interval_s
    hours: IntArray = ((start_s + middle) // HOUR_S).astype(np.int64) % HOURS
    return hours


def _busy_watts(result: Replay, p: int, busy_s: FloatArray) -> FloatArray:
    """Return the power in watts per GPU while an iteration runs, ``[intervals + 1]``.

    ``busy_s [intervals + 1]`` are busy seconds. In all arrays by interval, the last value is for
    the time after the window. Without a power model or iterations, the power is constant.
    """
    window_w, after_w = _constant_watts(result, p)
    watts = np.append(np.full(len(busy_s) - 1, window_w), after_w)
    iterations = np.append(result.series.iterations[p], result.after.iterations[p])
    has_iterations = (iterations > 0) & (busy_s > 0)
    power = result.fleet.pools[p].power
    if power is None or not has_iterations.any():
        return watts
    context_tokens, all_outputs, prompt_pairs, all_inputs = result.attention(p)
    mean_context = float(context_tokens / all_outputs)  # KV tokens that an output token attends to
    mean_prompt_context = float(prompt_pairs / all_inputs)  # the same for a prompt token
    # An iteration counts in the interval in which it ends, its time in those that it spans. So the
    # seconds of an iteration may be too high in an interval in which an iteration begins, and too
    # low in the next one. Intervals without an end of an iteration get the mean power.
    # The mean iteration of each interval that has one: seconds, decodes and prompt tokens.
    iterations = iterations[has_iterations]
    iteration_seconds = busy_s[has_iterations] / iterations
    output_tokens = np.append(result.series.output_tokens[p], result.after.output_tokens[p])
    input_tokens = np.append(result.series.input_tokens[p], result.after.input_tokens[p])
    decodes = output_tokens[has_iterations] / iterations
    prompt_tokens = input_tokens[has_iterations] / iterations
    per_iteration = power.watts(
        iteration_seconds,
        decodes,
        decodes * mean_context,
        prompt_tokens,
        prompt_tokens * mean_prompt_context,
    )
    watts[:] = np.average(per_iteration, weights=iteration_seconds * iterations)
    watts[has_iterations] = per_iteration
    return watts


def _constant_watts(result: Replay, p: int) -> FloatArray:
    """Return the mean busy power in watts per GPU, in the window and after it, ``[2]``.

    It is the mean of the GPU type's constants for prefill and decode, weighted by time. 0: idle.
    """
    gpu, totals, after = result.fleet.pools[p].gpu, result.totals, result.after
    prefill_s = np.array([totals.prefill_s[p], after.prefill_s[p]])
    decode_s = np.array([totals.decode_s[p], after.decode_s[p]])
    joules = prefill_s * gpu.prefill_w + decode_s * gpu.decode_w
    return joules / np.where(prefill_s + decode_s > 0, prefill_s + decode_s, 1.0)


def carbon_kg(kwh: FloatArray, region: Region, result: Replay) -> float:
    """Return the emissions in kg of the energy ``kwh [intervals]``.

    The carbon intensity is that of the UTC hour at the middle of each interval. A region without
    hourly values has its mean.
    """
    if region.carbon_hourly_g_per_kwh is None:
        return float(kwh.sum()) * region.carbon_g_per_kwh / 1000.0
    by_hour = np.array(region.carbon_hourly_g_per_kwh)
    hours = hours_of(len(kwh), result.start_s, result.series.interval_s)
    return float(kwh @ by_hour[hours]) / 1000.0


def _g_per_kwh(region: Region, result: Replay, from_s: float, to_s: float) -> float:
    """Return the mean g/kWh over the UTC hours from ``from_s`` to ``to_s``, outside the window.

    Both are seconds since the start of the window.
    """
    if region.carbon_hourly_g_per_kwh is None:
        return region.carbon_g_per_kwh
    start_s = result.start_s
    first_hour = int((start_s + from_s) // HOUR_S)
    last_hour = max(first_hour, int(np.ceil((start_s + to_s) / HOUR_S)) - 1)
    hours = np.arange(first_hour, last_hour + 1) % HOURS
    return float(np.mean(np.array(region.carbon_hourly_g_per_kwh)[hours]))
