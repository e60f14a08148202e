"""Number the random streams of a study.

The streams are independent, so one more draw in one of them does not change the others.
"""

from enum import IntEnum

import numpy as np


class Stream(IntEnum):
    """The numbers of the random streams."""

    REQUESTS = 1  # requests of a window, from demand files
    AHEAD = 2  # requests of a window after the trace
    SOURCES = 3  # repeats, labels by shares, and samples of lengths of the sources
    KNOWN = 4  # samples of the lengths known at a decision
    STRAYS = 5  # traffic of stress tests
    PRESSURE = 7  # arrivals of the pressure test
    ARRIVALS = 6  # arrivals drawn from counts, for the bursts that sizes assume
    VERIFYING = 8  # another draw of the requests of a window
    DRAWN = 9  # days drawn from the forecast
    SHIFTS = 10  # times by which models that share GPUs are shifted
    LENGTHS = 11  # lengths of requests that judge plans by operators and layers


def generator(seed: int, stream: Stream, *index: int) -> np.random.Generator:
    """Return a random generator that depends only on ``seed``, ``stream`` and ``index``."""
    return np.random.default_rng([seed, stream.value, *index])
