"""Profiles of unmeasured models and GPUs from published peaks and efficiency factors.

The factors are calibrated on measured kernels of the same or the nearest GPU family.
"""

from collections.abc import Callable
from functools import partial

import numpy as np

from simulation.arrays import FloatArray
from simulation.performance.compiled_graph import GraphProfile, Timing, compile_graph
from simulation.performance.curves import Curve, beside_host
from simulation.performance.efficiency import Efficiencies, kernel_s
from simulation.performance.graph import OperatorGraph, operator_graph
from simulation.performance.specs import (
    Arrangement,
    EngineSettings,
    GpuSpec,
    ModelShape,
    Provenance,
)
from simulation.performance.work import Iteration, Operator, iteration

TYPICAL = iteration(decodes=64.0, decode_context=64.0 * 2048.0)  # a typical iteration


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
    timing = partial(estimated_s, gpu=gpu, efficiencies=efficiencies)
    families = sorted({efficiencies.of(o, gpu).family for o in graph.operators})
    return GraphProfile(
        kind="roofline",
        model=shape.name,
        gpu=gpu.name,
        tp=graph.arrangement.gpus,
        max_batch=engine.max_batch,
        max_batch_tokens=engine.max_batch_tokens,
        kv_capacity_tokens=engine.kv_capacity_tokens,
        provenance=Provenance(
            "modelled",
            f"Operators of {shape.name} at the published peaks of {gpu.name}, times the share "
            f"that measured kernels reach on {', '.join(families)}",
        ),
        curve=roofline_curve(graph, gpu, efficiencies, engine.overhead_s, engine.sequence_s),
        graph=graph,
        timing=timing,
        spread=spread_of(graph, gpu, efficiencies, timing),
        checks=efficiencies.checks,
        start_s=engine.start_s,
    )


def roofline_curve(
    graph: OperatorGraph,
    gpu: GpuSpec,
    efficiencies: Efficiencies,
    overhead_s: float = 0.0,
    sequence_s: float = 0.0,
) -> Curve:
    """Return only the curve of ``roofline_profile``, to compare thousands of arrangements."""
    timing = partial(estimated_s, gpu=gpu, efficiencies=efficiencies)
    seconds = sequence_s / graph.arrangement.attention_dp
    return beside_host(compile_graph(graph, timing, overhead_s), seconds)


def estimated_s(
    operator: Operator, it: Iteration, gpu: GpuSpec, efficiencies: Efficiencies
) -> FloatArray:
    """Return the seconds of one call of ``operator`` by the factors of the nearest family."""
    return efficiencies.slower(operator, gpu) * kernel_s(operator, it, gpu, efficiencies)


def spread_of(
    graph: OperatorGraph, gpu: GpuSpec, efficiencies: Efficiencies, timing: Timing
) -> float:
    """Return the expected spread of the prediction error of an iteration's time.

    Errors of one kind of kernel are correlated, so spreads are averaged over time and not combined
    as independent errors.
    """
    return mean_over_time(
        graph, timing, lambda o: efficiencies.spread(efficiencies.of(o, gpu), gpu.family)
    )


def mean_over_time(
    graph: OperatorGraph, timing: Timing, value: Callable[[Operator], float]
) -> float:
    """Return the mean of ``value`` over the operators, weighted by their time in TYPICAL."""
    operators = [operator for operator in graph.operators if operator.axis != "encoder"]
    seconds = [operator.count * float(timing(operator, TYPICAL)) for operator in operators]
    return float(np.average([value(operator) for operator in operators], weights=seconds))
