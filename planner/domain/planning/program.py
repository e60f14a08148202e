"""Build the planning problem of one period: prices, limits, energy and GPU columns."""

from typing import Any

import numpy as np

from planner.domain.planning.inputs import PlanInput
from planner.domain.planning.power_limits import power_limits
from planner.errors import ScenarioError
from planner.inputs.scenario.build import Hardware
from planner.inputs.scenario.power import host_of, power_at_load
from planner.optimizer.objective import price
from planner.optimizer.problem import PlanningProblem
from simulation.arrays import FloatArray, IntArray
from simulation.fleet import HOUR_S, Region, mean_over
from simulation.performance.power import PowerAtLoad
from simulation.sizing.capacity import Capacity


def problem(
    inputs: PlanInput,
    demand_tps: FloatArray,
    period_s: float,
    start_s: float | None = None,
    kw: FloatArray | None = None,
) -> PlanningProblem:
    """Return the planning problem of one period of ``period_s`` seconds.

    ``demand_tps [model, region, bin]`` is the demand in input tokens/s. ``start_s`` is the period's
    start in epoch s; None: prices of a mean day. ``kw`` is the power of a replica from
    ``instance_kw``; None: compute it. Raises ScenarioError if a GPU that the plan may use has no
    positive price.
    """
    hardware, sizes, settings = inputs.hardware, inputs.sizes, inputs.settings
    limits, spare = settings.each_hour, settings.spare
    kw = instance_kw(inputs) if kw is None else kw
    usd_per_hour = _usd_per_hour(hardware, kw, start_s, period_s)
    planning = PlanningProblem(
        models=tuple(model.name for model in hardware.models),
        regions=tuple(region.name for region in hardware.regions),
        gpus=tuple(column.label for column in hardware.columns),
        current=inputs.current,
        theta_tps=sizes.theta_tps,
        usd_per_hour=usd_per_hour,
        # A start costs the GPU time until a replica serves (section 5), spread over the period.
        start_usd=usd_per_hour * hardware.startup_s / period_s,
        gpus_per_instance=_gpus_per_instance(hardware),
        demand_tps=demand_tps,
        capacity_gpus=hardware.capacity_gpus,
        minimum=np.where(sizes.theta_tps[:, None, :] > 0, hardware.minimum, 0),
        maximum=hardware.maximum,
        epsilon=settings.objective.epsilon,
        weights=settings.weights,
        kw=kw,
        power_kw=power_limits(hardware, kw),
        kg_per_kwh=np.array([carbon_g(r, start_s, period_s) for r in hardware.regions]) / 1000,
        budget_usd=limits.usd,
        carbon_kg=limits.carbon_kg,
        churn=limits.changes,
        pool_tps=sizes.pool_tps,
        spare=spare.instances,
        by_pool=spare.by_pool,
        lose_region=spare.region,
        **_shared_columns(inputs),
    )
    _check_prices(hardware, planning)
    return planning


def _gpus_per_instance(hardware: Hardware) -> IntArray:
    """Return the GPUs of a replica, ``[model, GPU column]``; 1 where the model does not run."""
    gpus = np.ones((len(hardware.models), len(hardware.gpus)), np.int64)
    for model_and_column, profile in hardware.profiles.items():
        gpus[model_and_column] = profile.tp
    return gpus


def _usd_per_hour(
    hardware: Hardware, kw: FloatArray, start_s: float | None, period_s: float
) -> FloatArray:
    """Return the dollars per hour of a replica, ``[model, region, GPU column]``, with electricity.

    ``kw`` is its power in kilowatts. Prices are means over ``period_s`` seconds from ``start_s``
    (epoch s); None: over a day.
    """
    gpus = _gpus_per_instance(hardware)[:, None, :]
    electricity = np.array([electricity_usd(r, start_s, period_s) for r in hardware.regions])
    usd_per_hour = gpus * hardware.gpu_usd(start_s, period_s)[None]
    usd_per_hour = usd_per_hour + kw * electricity[None, :, None]
    # A reclaimed spot replica is paid again until its replacement serves.
    paid_again = hardware.reclaims_per_hour * hardware.startup_s / HOUR_S
    return np.asarray(usd_per_hour * (1 + paid_again))


def _check_prices(hardware: Hardware, planning: PlanningProblem) -> None:
    """Raise ScenarioError, with the key, if a GPU that the plan may use has no positive price."""
    usable = (planning.theta_tps[:, None, :] > 0) & (planning.usable_gpus > 0)
    free_pools = np.argwhere(usable & (price(planning) <= 0))
    if len(free_pools):
        _, r, g = free_pools[0]
        name = hardware.gpus[g].name
        is_spot = hardware.columns[g].spot
        key = f"spot.{name}.usd_per_gpu_hour" if is_spot else f"usd_per_gpu_hour.{name}"
        raise ScenarioError(
            f"regions[{r}].{key}: a plan never saves GPUs that are free. Give a price, a nominal "
            "one for GPUs of your own."
        )


def instance_kw(inputs: PlanInput) -> FloatArray:
    """Return the kilowatts of a replica at its rated load, ``[model, region, GPU column]``.

    Host and PUE are included. A plan assumes this power whenever the replica runs, so its energy is
    an upper estimate.
    """
    hardware = inputs.hardware
    kw = np.zeros((len(hardware.models), len(hardware.regions), len(hardware.gpus)))
    pue = np.array([region.pue for region in hardware.regions])
    for (m, g), profile in hardware.profiles.items():
        gpu = hardware.gpus[g]
        gpu_w = _gpu_watts(inputs, m, g) if inputs.at_load else gpu.decode_w
        host_w, _ = host_of(gpu)
        kw[m, :, g] = profile.tp * (gpu_w + host_w) * pue / 1000
    return kw


def _gpu_watts(inputs: PlanInput, m: int, g: int) -> float:
    """Return the watts of a GPU at the rated load: the replica's capacity in a large pool.

    If the power at that load is unknown, return the constant of the GPU type.
    """
    hardware, sizes, gpu = inputs.hardware, inputs.sizes, inputs.hardware.gpus[g]
    power = power_at_load(hardware.models[m], gpu, hardware.profiles[m, g])
    if power is None or (m, g) not in sizes.capacity:
        return gpu.decode_w
    _, capacity = sizes.capacity[m, g]
    isl, osl = inputs.traffic.lengths[m]
    pooling = float(sizes.theta_tps[m, g]) / capacity.input_tps  # gain of a large pool
    return _rated_watts(power, capacity, pooling, float(isl.mean()), float(osl.mean()))


def _rated_watts(
    power: PowerAtLoad, capacity: Capacity, pooling: float, isl: float, osl: float
) -> float:
    """Return the watts of a GPU whose replica serves ``pooling`` times its ``capacity``.

    ``pooling`` is the gain in capacity per replica in a large pool. ``isl`` and ``osl`` are the
    mean prompt and output tokens of a request.
    """
    has_tbt = np.isfinite(capacity.tbt_s) and capacity.tbt_s > 0
    iteration_s = capacity.tbt_s if has_tbt else capacity.ttft_s
    # Sequences in flight, by Little's law, and prompt tokens of an iteration.
    decodes = max(1.0, pooling * capacity.max_rps * osl * iteration_s)
    prompt = pooling * capacity.input_tps * iteration_s
    context = decodes * (isl + osl / 2)
    attention_pairs = prompt * isl / 2  # of prompt tokens
    return float(power.watts(iteration_s, decodes, context, prompt, attention_pairs))


def electricity_usd(region: Region, start_s: float | None, period_s: float) -> float:
    """Return the mean USD per kWh in ``region`` for ``period_s`` seconds from ``start_s`` on.

    ``start_s`` is in epoch seconds; None: the mean over a day. Prices are by UTC hour.
    """
    by_hour = np.array(region.electricity_usd_per_kwh)
    if start_s is None:
        return float(by_hour.mean())
    return float(mean_over(by_hour, start_s, period_s))


def carbon_g(region: Region, start_s: float | None, period_s: float) -> float:
    """Return the mean g CO2e per kWh in ``region`` for ``period_s`` seconds from ``start_s`` on.

    ``start_s`` is in epoch seconds. It is the yearly mean if ``start_s`` is None, or if no figures
    by UTC hour are known.
    """
    if region.carbon_hourly_g_per_kwh is None or start_s is None:
        return region.carbon_g_per_kwh
    by_hour = np.array(region.carbon_hourly_g_per_kwh)
    return float(mean_over(by_hour, start_s, period_s))


def _shared_columns(inputs: PlanInput) -> dict[str, Any]:
    """Return the arguments that the problem needs if GPU columns share a GPU type or have roles."""
    hardware = inputs.hardware
    if hardware.has_one_column_per_gpu:
        return {}
    return {
        "types": hardware.types,
        "type_names": hardware.type_names,
        "stages": hardware.stages,
        "spot": hardware.spot,
        "spot_share": inputs.settings.objective.spot_share,
    }
