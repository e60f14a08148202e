"""Profiles that sum measured kernels over the operator graph of a model.

Operators that were not measured on the GPU are modelled by their efficiency factors. Examples are
norms between the products, and head dimensions without a table. Iterations with kernels beyond the
measured points are outside the profile's range, see ``measured_range``.
"""

from functools import partial

import numpy as np

from simulation.arrays import BoolArray, FloatArray
from simulation.performance.compiled_graph import GraphProfile, compile_graph
from simulation.performance.curves import beside_host
from simulation.performance.efficiency import Efficiencies
from simulation.performance.graph import operator_graph
from simulation.performance.kernel_tables import Kernels
from simulation.performance.roofline import TYPICAL, estimated_s, mean_over_time, spread_of
from simulation.performance.specs import (
    Arrangement,
    EngineSettings,
    GpuSpec,
    ModelShape,
    Provenance,
)
from simulation.performance.work import Iteration, Operator

# Standard deviation of ln(sum of kernels / TPOT of served deployments). The median error is 0.083
# over 527 deployments on H100 (tools/catalogue/operator_checks.py). Of a normal error, the median
# size is 0.6745 standard deviations.
KERNEL_SPREAD = 0.12


def measured_s(
    operator: Operator, it: Iteration, kernels: Kernels, gpu: GpuSpec, efficiencies: Efficiencies
) -> FloatArray:
    """Return the seconds of one call from measurements, or else by efficiency factors."""
    reading = kernels.read(operator, it)
    return estimated_s(operator, it, gpu, efficiencies) if reading is None else reading[0]


def measured_at(operator: Operator, it: Iteration, kernels: Kernels) -> BoolArray:
    """Return the mask of calls within the measured points; all True for a modelled operator."""
    reading = kernels.read(operator, it)
    return np.ones(it.decodes.shape, np.bool_) if reading is None else reading[1]


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
    timing = partial(measured_s, kernels=kernels, gpu=gpu, efficiencies=efficiencies)
    among = kernels.among_prompts()
    mixed = None if among is None else partial(timing, kernels=among)
    share = mean_over_time(graph, timing, lambda o: kernels.read(o, TYPICAL) is not None)
    modelled = spread_of(graph, gpu, efficiencies, timing)
    return GraphProfile(
        kind="operator",
        model=shape.name,
        gpu=gpu.name,
        tp=graph.arrangement.gpus,
        max_batch=engine.max_batch,
        max_batch_tokens=engine.max_batch_tokens,
        kv_capacity_tokens=engine.kv_capacity_tokens,
        provenance=Provenance(
            "measured" if share > 0.5 else "modelled",
            f"Sum of kernels measured on {kernels.gpu} ({kernels.source}), {share:.0%} of a decode "
            "iteration's time; the rest by efficiency factors",
        ),
        curve=beside_host(
            compile_graph(
                graph, timing, engine.overhead_s, partial(measured_at, kernels=kernels), mixed
            ),
            engine.sequence_s / arrangement.attention_dp,
        ),
        graph=graph,
        timing=timing,
        spread=share * KERNEL_SPREAD + (1.0 - share) * modelled,
        start_s=engine.start_s,
    )
