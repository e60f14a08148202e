"""The time of a request before its first iteration, which no profile of iterations contains."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from simulation.performance.efficiency import Efficiencies
from simulation.performance.estimate.calibration import ENGINES, Calibration
from simulation.performance.estimate.closed_loop import (
    SGLANG,
    demands,
    gathered,
    iteration_s,
    overlapped,
)
from simulation.performance.graph import operator_graph
from simulation.performance.specs import Arrangement, GpuSpec, ModelShape
from simulation.performance.work import iteration

PROMPT, ANSWER = 1024.0, 128.0  # tokens of the request that a start is computed for


def starts_s(
    shape: ModelShape,
    gpu: GpuSpec,
    where: Arrangement,
    engines: Sequence[str],
    calibration: Calibration,
    efficiencies: Efficiencies,
    recv_interval: float = 1.0,
) -> list[float]:
    """Return, per engine, the seconds of a lone request's TTFT outside its prompt.

    The parts are those of ``steady_state``: the engine's start-up of a request, one decode
    iteration, and kernel launches that the prompt does not hide. Iterations that pass until the
    engine polls for requests, or gathers prompts of all attention ranks, are added. Memory is not
    checked.
    """
    c, graph = calibration, operator_graph(replace(shape, encoder=None), where)
    prompt = min(PROMPT, float(shape.max_context - 1))
    answer, tokens = min(ANSWER, shape.max_context - prompt), where.attention_dp * prompt
    lone = iteration(
        [1.0, 0.0], [prompt + answer / 2.0, 0.0], [0.0, tokens], [0.0, tokens * prompt / 2.0]
    )
    work = demands(graph, gpu, efficiencies, lone)
    decode, prompt_s = iteration_s(work, c)
    eager = c.eager_s * work["kernels"][1]
    engine_index = np.array([ENGINES.index(engine) for engine in engines])
    ranks = np.full(engine_index.size, float(where.attention_dp))
    polls = np.where(engine_index == SGLANG, c.polls * recv_interval, 0.0)
    passed_iterations = gathered(engine_index, ranks, c) + polls
    launches = float(overlapped(prompt_s, eager) - prompt_s)
    return [
        c.of("start", engine)
        + launches
        + (float(decode) + c.sequence_s / where.attention_dp) * (1.0 + float(passed))
        for engine, passed in zip(engines, passed_iterations, strict=True)
    ]
