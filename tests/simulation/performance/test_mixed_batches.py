"""Decodes whose attention is slower in a call that also has prompts."""

import numpy as np
import pytest

from simulation.performance.adjusted_profile import adjust_profile
from simulation.performance.compiled_graph import compile_graph
from simulation.performance.graph import operator_graph
from simulation.performance.profile import iteration_s
from simulation.performance.specs import Arrangement, ModelShape
from tests.simulation.builders import profile

TINY = ModelShape("tiny", 4, 256, 1000, 4, 2, 64, 512, 4096)


def timing(operator, it):
    """A microsecond for each token that an operator works on, and for each key of a decode."""
    rows = np.asarray(operator.rows(it), float)
    keys = it.decode_context if operator.axis == "decodes" else 0.0
    return 1e-6 * (rows + keys)


def slower(operator, it):
    return timing(operator, it) * (3.0 if operator.axis == "decodes" else 1.0)


def test_only_iterations_that_also_prefill_take_longer():
    graph = operator_graph(TINY, Arrangement())
    plain, beside = (
        adjust_profile(profile(), curve=compile_graph(graph, timing, mixed=mixed))
        for mixed in (None, slower)
    )
    for b, p in ((8, 0), (0, 128)):
        load = b, b * 512, p, p * p / 2
        assert iteration_s(beside, *load) == iteration_s(plain, *load)
    load = 8, 8 * 512, 128, 128 * 64
    more = iteration_s(beside, *load) - iteration_s(plain, *load)
    attention = [o for o in graph.operators if o.axis == "decodes"]
    assert attention
    expected = 2.0 * 1e-6 * (8 + 8 * 512) * sum(o.count for o in attention)
    assert more == pytest.approx(expected)
