"""Scale the requests of a trace: keep a part of them, or repeat them, sessions as a whole."""

from __future__ import annotations

import numpy as np

from simulation.arrays import CodeArray, FloatArray, Int32Array, IntArray

REPEAT_JITTER_S = 30.0  # with a scale above 1, largest distance of a repeat from the original
SAMPLE_SCALE = 10.0  # from this scale on requests are a sample, and copies spread over bins
SAMPLE_BINS_S = (60, 300, 900, 3600)
SAMPLE_ROWS = 10  # requests of a sample that such a bin holds on average


def scaled_arrivals(
    arrived: FloatArray,
    scale: float,
    start_s: float,
    last_s: float,
    rng: np.random.Generator,
    *,
    sampled: bool,
) -> tuple[FloatArray, IntArray]:
    """Return the scaled arrivals in order, and the index of each one's original in ``arrived``.

    With ``sampled``, or from SAMPLE_SCALE on, copies spread over a bin of the clock.
    """
    times = int(scale) + (rng.random(len(arrived)) < scale % 1.0)
    original = np.repeat(np.arange(len(arrived)), times)
    repeats = np.concatenate([[False], np.diff(original) == 0]) if len(original) else original > 0
    arrival = arrived[original]
    if scale < SAMPLE_SCALE and not sampled:
        arrival[repeats] += rng.uniform(-REPEAT_JITTER_S, REPEAT_JITTER_S, int(repeats.sum()))
    else:  # a sample: copies within seconds would be a burst that the traffic never had
        low, high = _stretch(arrived, start_s, last_s)
        copies = original[repeats]
        arrival[repeats] = rng.uniform(low[copies], high[copies])
    arrival = np.clip(arrival, 0.0, last_s)
    order = np.argsort(arrival, kind="stable")
    return arrival[order], original[order]


def _stretch(arrived: FloatArray, start_s: float, last_s: float) -> tuple[FloatArray, FloatArray]:
    """Return begin and end of the stretch over which copies of each request spread.

    It is the bin of the clock around the request. Bins hold about SAMPLE_ROWS requests, so that
    counts spread as those of the sample do. ``start_s`` is the time of arrival 0.
    """
    rate = len(arrived) / max(last_s, 1e-9)
    width = next((each for each in SAMPLE_BINS_S if each * rate >= SAMPLE_ROWS), SAMPLE_BINS_S[-1])
    low = np.floor((arrived + start_s) / width) * width - start_s
    return np.maximum(low, 0.0), np.minimum(low + width, last_s)


def scaled_sessions(
    arrived: FloatArray,
    session: Int32Array,
    scale: float,
    start_s: float,
    last_s: float,
    rng: np.random.Generator,
    *,
    sampled: bool,
) -> tuple[FloatArray, IntArray, Int32Array]:
    """Return the scaled arrivals, the index of each one's original, and the new sessions.

    Each session is kept, left out or repeated as a whole, with its times between turns. A request
    without a session (-1) counts as one by itself.
    """
    free = int(session.max(initial=-1)) + 1
    group = np.where(session >= 0, session, free + np.arange(len(session)))
    by_group = np.argsort(group, kind="stable")
    _, first, turns = np.unique(group[by_group], return_index=True, return_counts=True)
    begin = arrived[by_group[first]]
    copy_begin, of_copy = scaled_arrivals(begin, scale, start_s, last_s, rng, sampled=sampled)
    counts = turns[of_copy]
    # Index of each copied turn: the start of its session plus its place within the session.
    offset = first[of_copy] - (np.cumsum(counts) - counts)
    original = by_group[np.repeat(offset, counts) + np.arange(counts.sum())]
    copy = np.repeat(np.arange(len(of_copy)), counts)
    arrival = np.minimum(copy_begin[copy] + arrived[original] - begin[of_copy[copy]], last_s)
    order = np.argsort(arrival, kind="stable")
    scaled = np.where(counts[copy] > 1, copy, -1).astype(np.int32)
    return arrival[order], original[order], scaled[order]


def of_first_turn(codes: CodeArray, session: Int32Array) -> CodeArray:
    """Return the code of each request, with that of the first turn for all turns of a session."""
    turns = session >= 0
    _, first, which = np.unique(session[turns], return_index=True, return_inverse=True)
    codes = codes.copy()
    codes[turns] = codes[turns][first[which]]
    return codes
