"""Sample pairs of input and output lengths of a model's requests, with their cached tokens."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from simulation.arrays import Int32Array, IntArray
from simulation.sizing.trial import SharedPrompts
from simulation.synthesis import Lengths as Distribution
from simulation.trace import CachedTokens, Trace

Lengths = tuple[Int32Array, Int32Array]  # ISL and OSL, drawn jointly

SAMPLED_REQUESTS = 20_000  # requests sampled per model


@dataclass(frozen=True, slots=True)
class DrawnLengths:
    """Length distributions of a source of counts, weighted by its number of ``requests``."""

    requests: float
    lengths: Distribution
    cached_share: float = 0.0  # of the input tokens


@dataclass(frozen=True, slots=True, eq=False)
class LengthSample:
    """A sample of lengths, and the number of requests that it stands for."""

    lengths: Lengths
    requests: float
    cached: CachedTokens | None = None  # None: no source counts cached tokens

    @property
    def shared_prompts(self) -> SharedPrompts | None:
        """Return the lengths with their cached tokens; None if no source counts cached tokens."""
        return None if self.cached is None else SharedPrompts(*self.lengths, self.cached)

    @property
    def cached_tokens(self) -> Int32Array:
        """Return the cached tokens, ``[requests]``; 0 if they are not counted."""
        isl, _ = self.lengths
        return np.zeros_like(isl) if self.cached is None else self.cached.tokens

    @property
    def prefill(self) -> Int32Array:
        """Return the input tokens without the cached ones, ``[requests]``."""
        isl, _ = self.lengths
        return isl - self.cached_tokens


def mix_lengths(
    trace: Trace, rows: IntArray, counted: Sequence[DrawnLengths], rng: np.random.Generator
) -> LengthSample:
    """Return a sample of lengths from the requests ``rows`` of a log and ``counted`` sources.

    The sample has about ``SAMPLED_REQUESTS`` requests. The log and each source have shares in
    proportion to their numbers of requests. If there are no requests at all, the sample is one
    request with one input and one output token.
    """
    volumes = np.array([float(len(rows)), *(source.requests for source in counted)])
    total = float(volumes.sum())
    if not total:
        return LengthSample((np.ones(1, np.int32), np.ones(1, np.int32)), 0.0)
    log_size, *sizes = np.ceil(SAMPLED_REQUESTS * volumes / total).astype(int).tolist()
    picked = rng.choice(rows, size=log_size) if len(rows) else rows
    cached = trace.blocks.rows(picked) if isinstance(trace.blocks, CachedTokens) else None
    lengths = trace.input_tokens[picked], trace.output_tokens[picked]
    parts = [LengthSample(lengths, float(len(rows)), cached)]
    for source, size in zip(counted, sizes, strict=True):
        isl, osl = source.lengths.sample(size, rng)
        cached = cached_part(isl, source.cached_share) if source.cached_share else None
        parts.append(LengthSample((isl, osl), source.requests, cached))
    return _joined(parts, total)


def _joined(parts: Sequence[LengthSample], requests: float) -> LengthSample:
    """Return one sample of all ``parts`` that stands for a number of requests."""
    isl_of_parts, osl_of_parts = zip(*(part.lengths for part in parts), strict=True)
    isl, osl = np.concatenate(isl_of_parts), np.concatenate(osl_of_parts)
    if all(part.cached is None for part in parts):
        return LengthSample((isl, osl), requests)
    tokens = np.concatenate([part.cached_tokens for part in parts])
    return LengthSample((isl, osl), requests, CachedTokens(tokens))


def cached_part(isl: Int32Array, share: float) -> CachedTokens:
    """Return the cached tokens of prompts, ``share`` of the tokens of each."""
    return CachedTokens(np.floor(share * isl).astype(np.int32))
