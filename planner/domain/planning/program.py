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
from simulation.arrays import FloatArray
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
    hardware, theta_tps = inputs.hardware, inputs.sizes.theta_tps
    kw = instance_kw(inputs) if kw is None else kw
    tp = np.ones((len(hardware.models), len(hardware.gpus)), np.int64)
    for (m, g), profile in hardware.profiles.items():
        tp[m, g] = profile.tp
    electricity = np.array([electricity_usd(r, start_s, period_s) for r in hardware.regions])
    usd_per_hour = tp[:, None, :] * hardware.gpu_usd(start_s, period_s)[None]
    usd_per_hour = usd_per_hour + kw * electricity[None, :, None]
    # A reclaimed spot replica is paid again until its replacement serves.
    usd_per_hour = usd_per_hour * (1 + hardware.reclaims_per_hour * hardware.startup_s / HOUR_S)
    planning = PlanningProblem(
        models=tuple(model.name for model in hardware.models),
        regions=tuple(region.name for region in hardware.regions),
        gpus=tuple(column.label for column in hardware.columns),
        current=inputs.current,
        theta_tps=theta_tps,
        usd_per_hour=usd_per_hour,
        # A start costs the GPU time until a replica serves (section 5), spread over the period.
        start_usd=usd_per_hour * hardware.startup_s / period_s,
        gpus_per_instance=tp,
        demand_tps=demand_tps,
        capacity_gpus=hardware.capacity_gpus,
        minimum=np.where(theta_tps[:, None, :] > 0, hardware.minimum, 0),
        maximum=hardware.maximum,
        epsilon=inputs.settings.objective.epsilon,
        weights=inputs.settings.weights,
        kw=kw,
        power_kw=power_limits(hardware, kw),
        kg_per_kwh=np.array([carbon_g(r, start_s, period_s) for r in hardware.regions]) / 1000,
        budget_usd=inputs.settings.each_hour.usd,
        carbon_kg=inputs.settings.each_hour.carbon_kg,
        churn=inputs.settings.each_hour.changes,
        pool_tps=inputs.sizes.pool_tps,
        spare=inputs.settings.spare.instances,
        by_pool=inputs.settings.spare.by_pool,
        lose_region=inputs.settings.spare.region,
        **_shared_columns(inputs),
    )
    _check_prices(hardware, planning)
    return planning


def _check_prices(hardware: Hardware, planning: PlanningProblem) -> None:
    """Raise ScenarioError, with the key, if a GPU that the plan may use has no positive price."""
    usable = (planning.theta_tps[:, None, :] > 0) & (planning.usable_gpus > 0)
    for _, r, g in np.argwhere(usable & (price(planning) <= 0))[:1]:
        column = hardware.columns[g]
        name = hardware.gpus[g].name
        key = f"spot.{name}.usd_per_gpu_hour" if column.spot else f"usd_per_gpu_hour.{name}"
        raise ScenarioError(
            f"regions[{r}].{key}: a plan never saves GPUs that are free. Give a price, a nominal "
            "one for GPUs of your own."
        )


def instance_kw(inputs: PlanInput) -> FloatArray:
    """Return the kilowatts of a replica at its rated load, ``[model, region, GPU column]``.

    Host and PUE are included. The rated load is the capacity in a large pool. A plan assumes this
    power whenever the replica runs, so its energy is an upper estimate.
    """
    hardware, sizes = inputs.hardware, inputs.sizes
    lengths = inputs.traffic.lengths if inputs.at_load else None
    kw = np.zeros((len(hardware.models), len(hardware.regions), len(hardware.gpus)))
    pue = np.array([region.pue for region in hardware.regions])
    for (m, g), profile in hardware.profiles.items():
        gpu = hardware.gpus[g]
        watts = gpu.decode_w
        power = power_at_load(hardware.models[m], gpu, profile)
        sized = sizes.capacity.get((m, g))
        if power is not None and sized is not None and lengths is not None:
            _, capacity = sized
            isl, osl = lengths[m]
            pooling = float(sizes.theta_tps[m, g]) / capacity.input_tps  # gain of a large pool
            watts = _rated_watts(power, capacity, pooling, float(isl.mean()), float(osl.mean()))
        kw[m, :, g] = profile.tp * (watts + host_of(gpu)[0]) * pue / 1000
    return kw


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
