"""How long a model's requests are: a sample of pairs, and what was known of it at a moment."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from simulation.arrays import Int32Array, IntArray
from simulation.synthesis import Lengths as Distribution
from simulation.trace import Trace

Lengths = tuple[Int32Array, Int32Array]  # ISL and OSL, drawn jointly

SAMPLE = 20_000  # requests kept per model to know its lengths by


def mixed(
    trace: Trace,
    rows: IntArray,
    others: Sequence[tuple[float, Distribution]],
    rng: np.random.Generator,
) -> tuple[Lengths, float]:
    """A sample of the requests ``rows`` of a trace and of other sources, each given as its requests
    and their lengths, in proportion to how many they are; and how many there are in all. One pair
    of ones where there are none."""
    volumes = np.array([float(len(rows)), *(volume for volume, _ in others)])
    total = float(volumes.sum())
    if not total:
        return (np.ones(1, np.int32), np.ones(1, np.int32)), 0.0
    sizes = np.ceil(SAMPLE * volumes / total).astype(int)
    picked = rng.choice(rows, size=sizes[0]) if len(rows) else rows
    pairs = [(trace.input_tokens[picked], trace.output_tokens[picked])]
    pairs += [its.sample(n, rng) for (_, its), n in zip(others, sizes[1:], strict=True)]
    isl, osl = (np.concatenate(part) for part in zip(*pairs, strict=True))
    return (isl, osl), total
