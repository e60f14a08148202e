"""A made week: 4 models in 3 regions and 3 tiers, with days, nights and a weekend.

Each hour of each model is drawn by its own seed, so that the requests of some models are the same
whether the others are drawn or not, and none has to be kept.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from bench import reference
from bench.simulate import SHARES, TIERS, serving_fleet
from simulation.arrays import IntArray
from simulation.fleet import Fleet
from simulation.stream.stream import Stream
from simulation.trace import Trace

HOURS = 168
WEEK_S = HOURS * 3600.0
MODELS, REGIONS = ("a", "b", "c", "d"), ("east", "west", "north")
BUSY_RPS = 1.6  # of an instance, at what it is given here


@dataclass(frozen=True, slots=True)
class Week:
    """``requests`` over a week; ``lengths [observed, 2]`` are drawn from."""

    requests: int
    lengths: IntArray

    def counts(self) -> IntArray:
        """Return requests by hour and model; rates swing by half around the mean over a day."""
        hours = np.arange(HOURS)
        shape = (1 + 0.5 * np.sin(2 * np.pi * hours / 24)) * np.where(hours // 24 < 5, 1.0, 0.7)
        edges = np.rint(np.r_[0, np.cumsum(shape)] / shape.sum() * self.requests / len(MODELS))
        return np.repeat(np.diff(edges).astype(np.int64)[:, None], len(MODELS), axis=1)

    def stream(self, models: tuple[str, ...]) -> Stream:
        """Return the requests of some models as a stream, with the names of all models."""

        def chunks() -> Iterator[Trace]:
            for hour, counts in enumerate(self.counts()):
                yield self._hour(hour, [(MODELS.index(m), counts[MODELS.index(m)]) for m in models])

        return Stream(
            chunks=chunks,
            models=MODELS,
            regions=REGIONS,
            tiers=tuple(tier.name for tier in TIERS),
            start_s=0.0,
            requests=int(self.counts().sum()),
            most_tokens=int(self.lengths.sum(axis=1).max()),
        )

    def _hour(self, hour: int, counts: list[tuple[int, int]]) -> Trace:
        columns = [self._draw_requests(hour, model, int(n)) for model, n in counts]
        arrival, length, region, tier = (
            np.concatenate(part) for part in zip(*columns, strict=True)
        )
        model = np.repeat([m for m, _ in counts], [n for _, n in counts]).astype(np.int16)
        order = np.argsort(arrival, kind="stable")
        isl, osl = self.lengths[length[order]].T
        return Trace(
            arrival_s=arrival[order],
            input_tokens=isl.astype(np.int32),
            output_tokens=osl.astype(np.int32),
            model=model[order],
            region=region[order],
            tier=tier[order],
            models=MODELS,
            regions=REGIONS,
            tiers=tuple(tier.name for tier in TIERS),
            start_s=0.0,
            provenance="synthesised for a bench",
        )

    def _draw_requests(self, hour: int, model: int, n: int) -> tuple[Any, ...]:
        rng = np.random.default_rng([hour, model])
        arrival = 3600.0 * (hour + np.sort(rng.random(n)))
        region = rng.integers(len(REGIONS), size=n).astype(np.int16)
        tier = np.searchsorted(np.cumsum(SHARES)[:-1], rng.random(n)).astype(np.int16)
        return arrival, rng.integers(len(self.lengths), size=n), region, tier


def week(requests: int) -> Week:
    """Return a week with the lengths of the reference scenario."""
    rows = reference.rows("mixed_poisson80")
    return Week(requests, rows["input_tokens", "output_tokens"].to_numpy().astype(np.int64))


def fleet(requests: int) -> Fleet:
    """Return a fleet with pools that can grow to twice the mean load."""
    mean = requests / WEEK_S / (len(MODELS) * len(REGIONS)) / BUSY_RPS
    made = serving_fleet(MODELS, REGIONS, initial=max(2, round(mean)), maximum=round(2 * mean) + 8)
    return replace(made, tiers=TIERS)
