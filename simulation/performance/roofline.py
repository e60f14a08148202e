"""Profiles that sum the operators of a model: rooflines, and sums of measured kernels.

A roofline computes the seconds of an operator from published peaks and efficiency factors. These
are fitted to measured kernels of the same or the nearest GPU family. An operator profile reads the
seconds from kernels that were measured on the GPU. It models the rest as in a roofline, such as
norms between the products, and head dimensions without a table. Iterations with kernels beyond the
measured points are outside the profile's range, see ``measured_range``.

The spread of a prediction is the standard deviation of ln(predicted / measured).
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from simulation.arrays import BoolArray, FloatArray
from simulation.performance.compiled_graph import GraphProfile, Timing, compile_graph
from simulation.performance.curves import Curve, with_host_time
from simulation.performance.efficiency import Efficiencies, kernel_s
from simulation.performance.graph import OperatorGraph, operator_graph
from simulation.performance.kernel_tables import Kernels
from simulation.performance.specs import (
    Arrangement,
    EngineSettings,
    GpuSpec,
    ModelShape,
    Provenance,
)
from simulation.performance.work import Iteration, Operator, iteration

TYPICAL = iteration(decodes=64.0, decode_context=64.0 * 2048.0)  # a typical iteration
# Standard deviation of ln(sum of kernels / TPOT of served deployments). The median error is 0.083
# over 527 deployments on H100 (tools/catalogue/operator_checks.py). Of a normal error, the median
# size is 0.6745 standard deviations.
KERNEL_SPREAD = 0.12


@dataclass(frozen=True, slots=True, eq=False)
class OperatorTiming:
    """Gives the seconds of one call of an operator, for each iteration.

    They are read from measured kernels of the GPU. Without such a kernel, they are estimated by
    efficiency factors of the nearest GPU family that was measured.
    """

    gpu: GpuSpec
    efficiencies: Efficiencies = field(repr=False)
    kernels: Kernels | None = field(default=None, repr=False)
    slowdown: float = 1.0  # of all calls: measured time of a model over that of its operators

    def __call__(self, operator: Operator, iteration: Iteration) -> FloatArray:
        reading = None if self.kernels is None else self.kernels.read(operator, iteration)
        if reading is not None:
            return self.slowdown * reading.seconds
        factor = self.efficiencies.slower(operator, self.gpu)
        return self.slowdown * (factor * kernel_s(operator, iteration, self.gpu, self.efficiencies))

    def reached_shares(self, operator: Operator) -> tuple[float, float]:
        """Return the shares of published FLOP/s and bytes/s that kernels of this kind reach.

        Factors on the seconds divide both shares, since a slower call does the same work.
        """
        entry = self.efficiencies.of(operator, self.gpu)
        factor = self.slowdown * self.efficiencies.slower(operator, self.gpu)  # on the seconds
        return min(entry.compute / factor, 1.0), min(entry.bandwidth / factor, 1.0)

    def is_measured(self, operator: Operator, iteration: Iteration) -> BoolArray | None:
        """Return the mask of calls within the measured range; None if the operator is modelled."""
        reading = None if self.kernels is None else self.kernels.read(operator, iteration)
        return None if reading is None else reading.is_measured


def roofline_profile(
    shape: ModelShape,
    gpu: GpuSpec,
    arrangement: Arrangement,
    efficiencies: Efficiencies,
    engine: EngineSettings,
) -> GraphProfile:
    """Return a modelled profile of ``shape`` on ``arrangement.gpus`` GPUs, without measurements.

    Raises SimulationError if a peak is unknown.
    """
    graph = operator_graph(shape, arrangement)
    timing = OperatorTiming(gpu, efficiencies)
    families = sorted({efficiencies.of(operator, gpu).family for operator in graph.operators})
    return _graph_profile(
        graph,
        gpu,
        engine,
        kind="roofline",
        provenance=Provenance(
            "modelled",
            f"Roofline of {shape.name}: published peaks of {gpu.name} x kernel efficiency "
            f"measured on {', '.join(families)}",
        ),
        curve=compile_graph(graph, timing, engine.overhead_s),
        timing=timing,
        spread=expected_spread(graph, gpu, efficiencies, timing),
        checks=efficiencies.checks,
    )


def operator_profile(
    shape: ModelShape,
    gpu: GpuSpec,
    arrangement: Arrangement,
    kernels: Kernels,
    efficiencies: Efficiencies,
    engine: EngineSettings,
) -> GraphProfile:
    """Return a profile of ``shape`` on ``arrangement.gpus`` GPUs from kernels of their type.

    Raises SimulationError if an unmeasured operator needs a peak that is unknown.
    """
    graph = operator_graph(shape, arrangement)
    timing = OperatorTiming(gpu, efficiencies, kernels)
    # Decodes in an iteration with prompts have their own measured kernels, if there are any.
    mixed_kernels = kernels.among_prompts()
    mixed = OperatorTiming(gpu, efficiencies, mixed_kernels) if mixed_kernels else None
    measured_share = mean_over_time(
        graph, timing, lambda operator: kernels.read(operator, TYPICAL) is not None
    )
    modelled_spread = expected_spread(graph, gpu, efficiencies, timing)
    return _graph_profile(
        graph,
        gpu,
        engine,
        kind="operator",
        provenance=Provenance(
            "measured" if measured_share > 0.5 else "modelled",
            f"Sum of kernels measured on {kernels.gpu} ({kernels.source}), {measured_share:.0%} of "
            "a decode iteration's time. Other kernels: efficiency factors",
        ),
        curve=compile_graph(graph, timing, engine.overhead_s, timing.is_measured, mixed),
        timing=timing,
        spread=measured_share * KERNEL_SPREAD + (1.0 - measured_share) * modelled_spread,
    )


def _graph_profile(
    graph: OperatorGraph, gpu: GpuSpec, engine: EngineSettings, curve: Curve, **fields: Any
) -> GraphProfile:
    """Return the profile of ``graph`` with the limits of ``engine`` and the other ``fields``.

    ``curve`` has the times on the GPU. The host's time per sequence is added here.
    """
    return GraphProfile(
        model=graph.shape.name,
        gpu=gpu.name,
        tp=graph.arrangement.gpus,
        max_batch=engine.max_batch,
        max_batch_tokens=engine.max_batch_tokens,
        kv_capacity_tokens=engine.kv_capacity_tokens,
        curve=with_host_time(curve, engine.sequence_s / graph.arrangement.attention_dp),
        start_s=engine.start_s,
        graph=graph,
        **fields,
    )


def roofline_curve(
    graph: OperatorGraph,
    gpu: GpuSpec,
    efficiencies: Efficiencies,
    overhead_s: float = 0.0,
    sequence_s: float = 0.0,
) -> Curve:
    """Return only the curve of ``roofline_profile``, to compare thousands of arrangements.

    ``overhead_s`` and ``sequence_s`` are those of ``EngineSettings``.
    """
    curve = compile_graph(graph, OperatorTiming(gpu, efficiencies), overhead_s)
    return with_host_time(curve, sequence_s / graph.arrangement.attention_dp)


def expected_spread(
    graph: OperatorGraph, gpu: GpuSpec, efficiencies: Efficiencies, timing: Timing
) -> float:
    """Return the expected spread of an iteration's time: of ln(predicted / measured).

    It is the mean of the operators' spreads, weighted by their time. They are not combined as
    independent errors, because errors of one kind of kernel are correlated.
    """

    def spread_of(operator: Operator) -> float:
        """Return the spread of the kind of ``operator`` on the GPU's family."""
        return efficiencies.spread(efficiencies.of(operator, gpu), gpu.family)

    return mean_over_time(graph, timing, spread_of)


def mean_over_time(
    graph: OperatorGraph, timing: Timing, value_of: Callable[[Operator], float]
) -> float:
    """Return the mean of ``value_of`` over the operators, weighted by their time in TYPICAL."""
    operators = [operator for operator in graph.operators if operator.axis != "encoder"]
    seconds = [operator.count * float(timing(operator, TYPICAL)) for operator in operators]
    return float(np.average([value_of(operator) for operator in operators], weights=seconds))
