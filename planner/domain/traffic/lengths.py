"""Sample pairs of input and output lengths of a model's requests."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from simulation.arrays import Int32Array, IntArray
from simulation.synthesis import Lengths as Distribution
from simulation.trace import Trace

Lengths = tuple[Int32Array, Int32Array]  # ISL and OSL, drawn jointly

SAMPLE = 20_000  # requests sampled per model


def mixed(
    trace: Trace,
    rows: IntArray,
    others: Sequence[tuple[float, Distribution]],
    rng: np.random.Generator,
) -> tuple[Lengths, float]:
    """Return a sample of lengths from a trace and other sources, and the number of requests.

    ``rows`` are the requests of the trace. Each of ``others`` is a number of requests and their
    length distribution. Sources are sampled in proportion to their number of requests. If there
    are no requests, the sample is one pair of ones.
    """
    volumes = np.array([float(len(rows)), *(volume for volume, _ in others)])
    total = float(volumes.sum())
    if not total:
        return (np.ones(1, np.int32), np.ones(1, np.int32)), 0.0
    sizes = np.ceil(SAMPLE * volumes / total).astype(int)
    picked = rng.choice(rows, size=sizes[0]) if len(rows) else rows
    pairs = [(trace.input_tokens[picked], trace.output_tokens[picked])]
    pairs += [
        source_lengths.sample(n, rng)
        for (_, source_lengths), n in zip(others, sizes[1:], strict=True)
    ]
    isl, osl = (np.concatenate(part) for part in zip(*pairs, strict=True))
    return (isl, osl), total
