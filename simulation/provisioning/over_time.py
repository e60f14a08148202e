"""Provisioning window by window along a trace, each granularity at its own speed of acting (A8).

A plan for a window is made from what is known before it (the window before, or a forecast) and is
in force once its replicas are up: operators within the window, whole replicas after their start-up,
burning GPU time meanwhile. Capacity that is no longer wanted goes at once. Demand is rounded up to
a grid of 5%, so that the windows of a week are some hundred different problems.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from simulation.errors import SimulationError
from simulation.provisioning.energy import Watts, loaded_gpus, steady_w
from simulation.provisioning.levels import Level, model_level, operator_level
from simulation.provisioning.placement import latency_at
from simulation.provisioning.replicas import latency_of, loaded_by
from simulation.provisioning.workload import PhaseProblem, Service

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]
STEP = 1.05
OPERATOR_ACTS_S = 0.5
"""Seconds until an operator replica serves: "sub-second" (introduction of the source)."""


@dataclass(frozen=True, slots=True, eq=False)
class Windows:
    """Demand of a trace by window, arrays of shape ``[W]``."""

    seconds: float  # of a window
    requests_s: FloatArray
    isl: FloatArray  # mean input tokens
    osl: FloatArray  # mean output tokens


@dataclass(frozen=True, slots=True, eq=False)
class Course:
    """What one granularity held, drew and met, by window."""

    level: str
    devices: IntArray  # [W] paid for, starting ones included
    power_w: FloatArray  # [W]
    memory_bytes: FloatArray  # [W]
    met: BoolArray  # [W] the plan in force kept the limit under the real load
    refused: int  # windows without a plan that could meet the limit; the last one stays

    def gpu_hours(self, window_s: float) -> float:
        return float(self.devices.sum() * window_s / 3600)

    def kwh(self, window_s: float) -> float:
        return float(self.power_w.sum() * window_s / 3.6e6)


def windows_of(
    arrival_s: FloatArray, isl: npt.ArrayLike, osl: npt.ArrayLike, seconds: float
) -> Windows:
    """Counts and mean lengths of requests by window; lengths of empty windows are those before."""
    if arrival_s.size == 0:
        raise SimulationError("The trace has no requests to plan for.")
    at = (arrival_s // seconds).astype(np.int64)
    count = np.bincount(at)

    def mean(lengths: npt.ArrayLike) -> FloatArray:
        total = np.bincount(at, weights=np.asarray(lengths, np.float64))
        means = np.divide(total, count, out=np.full(count.size, np.nan), where=count > 0)
        known = np.flatnonzero(count > 0)
        last = np.searchsorted(known, np.arange(count.size), side="right") - 1
        return np.asarray(means[known[np.maximum(last, 0)]], np.float64)

    return Windows(seconds, count / seconds, mean(isl), mean(osl))


class _Book:
    """Problems and plans by rounded demand, each made once."""

    def __init__(
        self,
        service: Service,
        problem_of: Callable[[Service], PhaseProblem],
        device_bytes: float,
        power: Watts,
    ) -> None:
        self.service, self.problem_of = service, problem_of
        self.device_bytes, self.power = device_bytes, power
        self.problems: dict[tuple[int, int, int], PhaseProblem] = {}
        self.plans: dict[tuple[str, int, int, int], Level | None] = {}

    def problem(self, key: tuple[int, int, int]) -> PhaseProblem:
        if key not in self.problems:
            rate, isl, osl = (STEP**k for k in key)
            self.problems[key] = self.problem_of(
                replace(self.service, requests_s=rate, isl=isl, osl=osl)
            )
        return self.problems[key]

    def plan(self, level: str, key: tuple[int, int, int]) -> Level | None:
        if (level, *key) not in self.plans:
            phase = self.problem(key)
            found = model_level(phase, self.device_bytes, self.power)
            if level == "operator":
                found = operator_level(phase, self.device_bytes, self.power, whole=found)
            self.plans[level, *key] = found
        return self.plans[level, *key]


def keys_of(windows: Windows) -> IntArray:
    """Rounded demand of each window, ``[W, 3]``: powers of ``STEP`` not below it."""
    least = np.array([1.0 / windows.seconds, 1.0, 1.0])
    demand = np.stack([windows.requests_s, windows.isl, windows.osl], axis=1)
    steps = np.log(np.maximum(demand, least)) / np.log(STEP)
    return np.asarray(np.ceil(steps - 1e-9), np.int64)


def over_time(
    windows: Windows,
    service: Service,
    problem_of: Callable[[Service], PhaseProblem],
    device_bytes: float,
    power: Watts,
    *,
    startup_s: float,
    known: Windows | None = None,
) -> dict[str, Course]:
    """Courses of the model and the operator level; ``known`` is the forecast that plans see, by
    default each window sees the one before it."""
    real = keys_of(windows)
    seen = np.r_[real[:1], real[:-1]] if known is None else keys_of(known)
    if seen.shape != real.shape:
        raise SimulationError("The forecast must have as many windows as the trace.")
    book = _Book(service, problem_of, device_bytes, power)
    waits = {"model": startup_s, "operator": OPERATOR_ACTS_S}
    return {
        level: _course(level, book, real, seen, int(np.ceil(wait / windows.seconds - 1e-9)))
        for level, wait in waits.items()
    }


def _course(level: str, book: _Book, real: IntArray, seen: IntArray, lag: int) -> Course:
    """``lag`` windows pass until capacity that is asked for serves; below one window, none."""
    wanted: list[Level | None] = [book.plan(level, _key(row)) for row in seen]
    refused = sum(plan is None for plan in wanted)
    for w in range(1, len(wanted)):
        wanted[w] = wanted[w] or wanted[w - 1]
    count = len(wanted)
    devices, power = np.zeros(count, np.int64), np.zeros(count)
    memory, met = np.zeros(count), np.zeros(count, np.bool_)
    delay = lag if lag > 1 else 0
    for w in range(count):
        asked = wanted[w]
        if asked is None:
            continue
        ready = [plan for plan in wanted[max(0, w - delay) : w + 1] if plan is not None]
        serving = min(ready, key=lambda plan: plan.devices)  # the least asked for since then
        devices[w] = asked.devices
        memory[w] = asked.memory_bytes
        phase = book.problem(_key(real[w]))
        latency, loaded = _under(phase, serving)
        met[w] = latency <= phase.problem.slo_s
        power[w] = steady_w(asked.devices, min(loaded, serving.devices), book.power)
    return Course(level, devices, power, memory, met, refused)


def _under(phase: PhaseProblem, level: Level) -> tuple[float, float]:
    """Latency and GPUs' worth of work of a plan under the real load of a window."""
    if level.placement is not None and level.plan is not None:
        plan = level.plan
        loaded = loaded_gpus(phase.problem, phase.demand, plan.batch, plan.parallel)
        return latency_at(phase.problem, phase.demand, plan, level.placement), loaded
    assert level.replicas is not None
    return latency_of(phase, level.replicas), loaded_by(phase, level.replicas)


def _key(row: IntArray) -> tuple[int, int, int]:
    return int(row[0]), int(row[1]), int(row[2])
