"""Benchmark rows: what was measured on one arrangement, as columns of one type and one unit."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import numpy.typing as npt

from simulation.arrays import BoolArray, FloatArray, TextArray
from simulation.errors import SimulationError

PARTS = 1.5  # times what one batch takes: above it, the batch cannot have been one batch


@dataclass(frozen=True, slots=True, eq=False)
class BenchmarkRows:
    """Measurements, one array of shape ``[rows]`` per column; NaN (or "") where not given.

    Two kinds of row: a *batch* was run as one, from prefill to its last token (``batch`` given), or
    a deployment was *served* with a number of requests in flight (``concurrency`` given), where
    TTFT holds queueing and TBT holds the prefill of others.
    """

    model: TextArray
    gpu: TextArray
    precision: TextArray
    tp: FloatArray  # GPUs of one instance
    batch: FloatArray  # sequences run together
    isl: FloatArray  # input tokens of a request
    osl: FloatArray  # output tokens of a request
    concurrency: FloatArray  # requests in flight
    prefill_s: FloatArray  # of the whole batch, nothing queued
    ttft_s: FloatArray  # of a request, queueing included
    tbt_s: FloatArray  # between tokens of a request, after the first
    e2e_s: FloatArray  # of the whole batch, or of a request
    throughput: FloatArray  # output tokens per second of the instance
    power_share: FloatArray  # mean power over the GPU's TDP

    def __post_init__(self) -> None:
        for field in fields(self):
            if getattr(self, field.name).shape != (self.rows,):
                raise SimulationError(f"Benchmark rows: {field.name} must have {self.rows} rows.")

    @property
    def rows(self) -> int:
        return int(self.model.size)

    def take(self, which: npt.ArrayLike) -> BenchmarkRows:
        """The rows of a mask or of indices."""
        chosen = np.asarray(which)
        return BenchmarkRows(**{f.name: getattr(self, f.name)[chosen] for f in fields(self)})

    @property
    def generated(self) -> FloatArray:
        """Tokens after the first that each sequence really got, by what the whole batch took.

        An engine stops at an end-of-text token unless told not to, so that a row which asked for
        8,192 tokens may have seen 600. NaN where it cannot be told.
        """
        return (self.e2e_s - self.prefill_s) / self.tbt_s

    @property
    def whole(self) -> BoolArray:
        """Rows that are what they say: one batch. Where e2e takes much longer than prefill and
        decode together, memory did not hold the batch and its parts ran one after the other."""
        expected = self.prefill_s + self.osl * self.tbt_s
        return ~(self.e2e_s > PARTS * expected)

    @property
    def context(self) -> FloatArray:
        """Mean KV tokens of a sequence while it decodes: its prompt and half of its output."""
        generated = np.where(np.isfinite(self.generated), self.generated, self.osl)
        return self.isl + np.clip(generated, 0.0, self.osl) / 2

    @property
    def tokens(self) -> FloatArray:
        """Prompt tokens of the batch."""
        return self.batch * self.isl

    @property
    def decoding(self) -> FloatArray:
        """Mean sequences in decode of a served row: by Little's law tokens per second times the
        time between them, where the throughput is known, else all requests in flight."""
        return np.fmin(self.throughput * self.tbt_s, self.concurrency)

    def arrangements(self) -> Iterator[tuple[tuple[str, str, int], BenchmarkRows]]:
        """Rows by (model, GPU, TP), in the order of first appearance."""
        keys = list(zip(self.model.tolist(), self.gpu.tolist(), self.tp.tolist(), strict=True))
        places: dict[tuple[str, str, float], list[int]] = {}
        for i, key in enumerate(keys):
            places.setdefault(key, []).append(i)
        for (model, gpu, tp), rows in places.items():
            if not np.isfinite(tp):
                raise SimulationError(
                    f"Benchmark rows of {model or 'no model'} on {gpu or 'no GPU'} do not say how "
                    "many GPUs an instance has; give tp."
                )
            yield (model, gpu, int(tp)), self.take(rows)


NUMBERS = tuple(f.name for f in fields(BenchmarkRows))[3:]
TEXTS = ("model", "gpu", "precision")


def benchmark_rows(
    texts: Mapping[str, Sequence[str]], numbers: Mapping[str, npt.ArrayLike]
) -> BenchmarkRows:
    """Rows from the columns that are there; the others are "" or NaN."""
    arrays = {name: np.asarray(values, np.float64) for name, values in numbers.items()}
    sizes = {len(v) for v in texts.values()} | {v.size for v in arrays.values()}
    if len(sizes) != 1:
        raise SimulationError("Benchmark rows: every column must have the same number of rows.")
    rows = sizes.pop()
    columns: dict[str, Any] = {
        name: np.asarray(texts[name], np.str_) if name in texts else np.full(rows, "")
        for name in TEXTS
    }
    columns |= {name: arrays.get(name, np.full(rows, np.nan)) for name in NUMBERS}
    return BenchmarkRows(**columns)
