"""Plan when and where deferrable work is done: in the cheapest periods before it is urgent."""

from dataclasses import replace

import numpy as np

from planner.domain.planning.deferred_work import filled_level
from planner.domain.planning.inputs import Load, PlanInput
from planner.domain.planning.period_solver import Periods
from planner.domain.progress import silent
from planner.domain.traffic.forecasts import MEAN, forecast_window
from planner.domain.traffic.groups import Group
from planner.optimizer.problem import Shift
from planner.optimizer.shifting import Work, cheapest_shift
from simulation.arrays import FloatArray


def shifted_work(inputs: PlanInput, interactive_tps: FloatArray) -> Shift | None:
    """Return when and where to serve deferrable work at the least cost, as tokens by period.

    ``interactive_tps [period, model, region, bin]`` are served too. None means that there is no
    deferrable work, or that no fleet serves it in time.
    """
    work = _deferrable_work(inputs)
    if not len(work.tokens):
        return None
    together = Periods.of(inputs, Load(interactive_tps)).together()
    settings = inputs.settings
    is_open = np.isfinite(inputs.hardware.latency_s)  # routes [home, serving]; inf is closed
    return cheapest_shift(
        together,
        work,
        is_open,
        solver=settings.objective.solver,
        gap=settings.objective.gap,
        time_limit_s=settings.objective.time_limit_s,
    )


def tps_of(tokens: FloatArray, interactive_tps: FloatArray, bin_s: float) -> FloatArray:
    """Return the tokens/s in each bin, ``[period, model, region, bin]``, of work in ``tokens``.

    ``tokens [period, model, region]`` first fill the bins of their period with the lowest
    interactive load. ``bin_s`` is the length of a bin in seconds.
    """
    tps = np.zeros_like(interactive_tps)
    for cell in np.argwhere(tokens > 0):
        load = interactive_tps[tuple(cell)]
        filled = filled_level(load, float(tokens[tuple(cell)]) / bin_s)
        tps[tuple(cell)] = np.maximum(filled - load, 0.0)
    return tps


def on_arrival(inputs: PlanInput, shift: Shift) -> tuple[PlanInput, Load]:
    """Return (inputs, load) of a plan that serves the work of ``shift`` when it arrives.

    The plan reserves no GPUs.
    """
    settings = inputs.settings.with_objective(reserve=None)
    deferrable_tps = tps_of(shift.arrived, shift.other_tps, inputs.window.bin_s)
    return replace(inputs, settings=settings), Load(shift.other_tps + deferrable_tps)


def _deferrable_work(inputs: PlanInput) -> Work:
    """Return the expected deferrable work by model, region, tier and period of arrival.

    Work may be done in the period of its arrival, and in later ones of the window before its first
    request is urgent.
    """
    hardware, traffic, window = inputs.hardware, inputs.traffic, inputs.window
    tiers = {tier.name: tier for tier in hardware.tiers if tier.deferrable}
    groups = [(Group(name, frozenset((name,)), 1.0), MEAN) for name in tiers]
    forecasts = forecast_window(
        groups, traffic, window, method=inputs.settings.forecast.method, progress=silent,
        at_once=True,
    )  # fmt: skip
    rows: list[tuple[float, int, int, int, int]] = []  # the fields of ``Work``
    periods = len(window.period_starts_s)
    for series in forecasts:
        m = traffic.models.index(series.key.model)
        r = traffic.regions.index(series.key.region)
        # The first request of a period arrives as it begins, and all work waits no longer.
        periods_to_wait = max(0, int(tiers[series.key.tier].urgent_after_s // window.period_s) - 1)
        tokens = series.mean.reshape(periods, -1).sum(axis=1)  # by period of arrival
        for p in np.flatnonzero(tokens > 0).tolist():
            last_period = min(p + periods_to_wait, periods - 1)
            rows.append((float(tokens[p]), m, r, p, last_period))
    amounts, *places = np.array(rows, np.float64).reshape(-1, 5).T
    return Work(amounts, *(column.astype(np.int64) for column in places))
