"""Random streams of a study: each draws from its own, so that one more draw in one of them leaves
the others as they were."""

from __future__ import annotations

from enum import IntEnum

import numpy as np


class Stream(IntEnum):
    """Told apart by their numbers; 0 would be the plain seed's own, which sizing draws from."""

    REQUESTS = 1  # of a window, from demand files
    AHEAD = 2  # requests of a window after the trace
    SOURCES = 3  # what a trace leaves open: repeats, places, which lengths are kept
    KNOWN = 4  # which requests lengths are known by at a decision
    STRAYS = 5  # days unlike the one rehearsed on
    PRESSURE = 7  # arrivals of the pressure test
    VERIFYING = 8  # a window's requests drawn anew


def generator(seed: int, stream: Stream) -> np.random.Generator:
    """The same bytes for the same ``seed``, others in every stream."""
    return np.random.default_rng([seed, stream.value])
