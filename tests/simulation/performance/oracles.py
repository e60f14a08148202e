"""What the models of speed are held against: bounds, sums and counts, worked out another way."""

from functools import partial

import numpy as np

from simulation.arrays import FloatArray
from simulation.performance.compiled_graph import GraphProfile, compile_graph
from simulation.performance.curves import Curve
from simulation.performance.efficiency import bound_s
from simulation.performance.graph import operator_graph
from simulation.performance.parameters import parameters
from simulation.performance.specs import Arrangement, GpuSpec, ModelShape
from simulation.performance.work import Iteration, Operator, iteration


def ideal_curve(shape: ModelShape, gpu: GpuSpec, arrangement: Arrangement) -> Curve:
    """The roofline bound of an iteration: the published peaks, all of them reached."""
    return compile_graph(operator_graph(shape, arrangement), partial(ideal_s, gpu=gpu))


def ideal_s(operator: Operator, it: Iteration, gpu: GpuSpec) -> FloatArray:
    return bound_s(operator, operator.work(it), gpu)


def operator_s(profile: GraphProfile, it: Iteration) -> dict[str, FloatArray]:
    """Seconds of an iteration by operator, over all its layers."""
    return {o.name: o.count * profile.timing(o, it) for o in profile.graph.operators}


def encoder_s(profile: GraphProfile, tokens: float, tokens_per_image: float) -> float:
    """Seconds that the vision encoder takes for image tokens; it is not part of the curve."""
    seen = np.float64(tokens)
    it = iteration(encoder_tokens=seen, encoder_pairs=seen * tokens_per_image)
    encoder = [o for o in profile.graph.operators if o.axis == "encoder"]
    return float(sum(o.count * profile.timing(o, it) for o in encoder))


def active_parameters(shape: ModelShape) -> float:
    """Parameters that a token of text passes: its experts, no embedding table, no encoder."""
    parts = parameters(shape)
    share = shape.experts_per_token / shape.experts if shape.experts else 0
    head = parts.head or parts.embedding
    return parts.attention + parts.feed_forward + share * parts.experts + parts.router + head
