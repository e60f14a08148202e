"""Compute which experts the tokens of a measured expert layer went to.

aiconfigurator measures expert layers twice. One run routes tokens evenly. The other draws
popularities from a power law and times the busiest rank of an expert parallel group
(``collector/helper.py``, ``_generate_power_law_distribution``, read at 006afd7). A popular expert
takes tokens that would have reached others, so fewer experts are read than with even routing. The
time per expert of a kernel depends on the experts that were read, not on those of another routing.
"""

import functools

import numpy as np

from simulation.arrays import FloatArray, IntArray

EVEN, SKEWED = "balanced", "power_law_1.2"
EXPONENT = 1.2
DRAWS = 12  # draws of popularities; theirs is a single one with an unknown seed


def expert_load(
    distribution: str, tokens: FloatArray, experts: FloatArray, top_k: FloatArray, ep: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Return how many experts of the timed rank get tokens, and its share of token-expert pairs.

    All arrays have one shape.
    """
    if distribution == EVEN:
        return np.minimum(experts, tokens * top_k) / ep, 1.0 / ep
    keys = np.column_stack([tokens, experts, top_k, ep]).astype(int)
    different, which = np.unique(keys, axis=0, return_inverse=True)
    pairs = np.array([_mean_expert_load(*row) for row in different.tolist()])[which.ravel()]
    return pairs[:, 0], pairs[:, 1]


@functools.cache
def _mean_expert_load(tokens: int, experts: int, top_k: int, ep: int) -> tuple[float, float]:
    """Return ``expert_load`` of a skewed distribution, as means over DRAWS draws."""
    random = np.random.default_rng(0)
    drawn = [_busiest(random, tokens, experts, top_k, ep) for _ in range(DRAWS)]
    return (
        float(np.mean([(rank > 0).sum() for rank in drawn])),
        float(np.mean([rank.sum() / (tokens * top_k) for rank in drawn])),
    )


def _busiest(
    random: np.random.Generator, tokens: int, experts: int, top_k: int, ep: int
) -> IntArray:
    """Return the tokens of each expert on the rank with the most tokens, in one draw."""
    pairs, power = tokens * top_k, 1.0 - EXPONENT
    low, high = (1.0, 0.8 * tokens) if pairs > experts else (0.01, 2.0)
    # Popularities from a power law between low and high, by its inverse distribution function.
    uniform = random.random(experts)
    popularity = (low**power + (high**power - low**power) * uniform) ** (1.0 / power)
    drawn = np.round(popularity / popularity.sum() * pairs).astype(np.int64)
    counts = np.minimum(drawn, tokens)  # a token goes to an expert at most once
    ranks = counts.reshape(ep, -1)
    missing = pairs - int(counts.sum())  # from rounding, and from the limit on popular experts
    for number in range(ep):
        units = abs(missing) // ep + (number < abs(missing) % ep)
        sign = 1 if missing > 0 else -1
        ranks[number] = sign * _fill_up(sign * ranks[number], units)
    return np.asarray(ranks[int(ranks.sum(axis=1).argmax())])


def _fill_up(counts: IntArray, units: int) -> IntArray:
    """Return the counts after adding ``units``, one by one, each to the smallest count.

    Counts below some level end at that level. Bisection finds the highest possible level.
    """
    low, high = int(counts.min()), int(counts.min()) + units
    while low < high:
        level = (low + high + 1) // 2
        if np.maximum(level - counts, 0).sum() <= units:
            low = level
        else:
            high = level - 1
    level_counts = np.maximum(counts, low)
    rest = units - int((level_counts - counts).sum())
    level_counts[np.argsort(level_counts, kind="stable")[:rest]] += 1
    return level_counts
