"""The time of a request before its first iteration, which no profile of iterations contains."""

import math
from collections.abc import Sequence

from simulation.performance.efficiency import Efficiencies
from simulation.performance.estimate.calibration import Calibration
from simulation.performance.estimate.closed_loop import steady_state
from simulation.performance.estimate.defaults import Deployment, arrange
from simulation.performance.estimate.estimate import PlacedDeployment, loop_of
from simulation.performance.specs import Arrangement, GpuSpec, ModelShape

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
    """Return the seconds of a lone request's TTFT outside its prompt's iteration, per engine.

    Memory is not checked.
    """
    prompt = min(PROMPT, float(shape.max_context - 1))
    answer = min(ANSWER, shape.max_context - prompt)
    lone = [
        Deployment(shape, gpu, where, prompt, answer, concurrency=1.0, engine=engine,
                   rounds=math.inf, recv_interval=recv_interval)
        for engine in engines
    ]  # fmt: skip
    placed = [
        PlacedDeployment(deployment, arrange(deployment), 1.0, 0.0, 0.0, ()) for deployment in lone
    ]
    steady = steady_state(loop_of(placed, efficiencies), calibration)
    seconds: list[float] = (steady.ttft_s - steady.prompt_s).tolist()
    return seconds
