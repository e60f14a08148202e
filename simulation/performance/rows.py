"""Benchmark rows: measurements as columns of one type and one unit."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import numpy.typing as npt

from simulation.arrays import BoolArray, FloatArray, TextArray
from simulation.errors import SimulationError

MOST_TIMES_EXPECTED = 1.5  # e2e over the expected time; a slower batch did not run as one


@dataclass(frozen=True, slots=True, eq=False)
class BenchmarkRows:
    """Measurements, one array of shape ``[rows]`` per column; NaN or "" for missing values.

    There are two kinds of row. A *batch* row has ``batch``: its sequences ran together from prefill
    to the last token. A *served* row has ``concurrency``: a deployment ran with that number of
    requests in flight. Its TTFT includes queueing, and its TBT includes prefills of other requests.
    """

    model: TextArray
    gpu: TextArray
    precision: TextArray
    tp: FloatArray  # GPUs of one instance
    batch: FloatArray  # sequences run together
    isl: FloatArray  # input tokens of a request
    osl: FloatArray  # output tokens of a request
    concurrency: FloatArray  # requests in flight
    prefill_s: FloatArray  # of the whole batch, without queueing
    ttft_s: FloatArray  # of a request, with queueing
    tbt_s: FloatArray  # between the output tokens of a request
    e2e_s: FloatArray  # of the whole batch, or of a request
    throughput: FloatArray  # output tokens per second of the instance
    power_share: FloatArray  # mean power over the GPU's TDP
    completed: FloatArray  # requests of the run that ended with an answer
    failed: FloatArray  # requests of the run that did not

    def __post_init__(self) -> None:
        for field in fields(self):
            if getattr(self, field.name).shape != (self.rows,):
                raise SimulationError(f"Benchmark rows: {field.name} must have {self.rows} rows.")

    @property
    def rows(self) -> int:
        return int(self.model.size)

    def take(self, which: npt.ArrayLike) -> BenchmarkRows:
        """Return the rows at a mask or at indices."""
        chosen = np.asarray(which)
        return BenchmarkRows(**{f.name: getattr(self, f.name)[chosen] for f in fields(self)})

    @property
    def generated_tokens(self) -> FloatArray:
        """Return the output tokens per sequence after the first: decode time over TBT.

        They may be fewer than ``osl``, since an engine stops at an end-of-text token by default.
        With an ``osl`` of 8,192, 600 tokens may have been generated. NaN if a time is missing.
        """
        return (self.e2e_s - self.prefill_s) / self.tbt_s

    @property
    def ran_as_one_batch(self) -> BoolArray:
        """Return a mask of the rows whose sequences ran as one batch; True if a time is missing.

        A batch that did not fit in memory ran as smaller ones, one after the other. Its e2e is then
        much longer than its prefill and decode together.
        """
        expected = self.prefill_s + self.osl * self.tbt_s
        return ~(self.e2e_s > MOST_TIMES_EXPECTED * expected)

    @property
    def context(self) -> FloatArray:
        """Return the mean KV tokens of a decoding sequence: its prompt and half of its output."""
        generated = np.where(np.isfinite(self.generated_tokens), self.generated_tokens, self.osl)
        return self.isl + np.clip(generated, 0.0, self.osl) / 2

    @property
    def tokens(self) -> FloatArray:
        """Return the prompt tokens of the batch."""
        return self.batch * self.isl

    @property
    def decoding(self) -> FloatArray:
        """Return the mean number of decoding sequences of a served row.

        By Little's law it is throughput times TBT, at most the concurrency. Without a throughput it
        is the concurrency.
        """
        return np.fmin(self.throughput * self.tbt_s, self.concurrency)

    def has_numbers_in(self, *columns: str) -> BoolArray:
        """Return a mask of the rows with a number in all ``columns`` (fields or properties)."""
        return np.asarray(np.all([np.isfinite(getattr(self, name)) for name in columns], axis=0))

    def served_rows_with(self, time: str) -> BoolArray:
        """Return a mask of the served rows with both lengths and a number in column ``time``."""
        return (
            self.has_numbers_in(time, "concurrency", "isl") & np.isnan(self.batch) & (self.osl >= 1)
        )

    def single_arrangement(self) -> tuple[str, str, int]:
        """Return the model, GPU and TP of all rows; raise SimulationError if rows differ."""
        arrangements = [key for key, _ in self.arrangements()]
        if len(arrangements) != 1:
            names = ", ".join(f"{model} on {tp} x {gpu}" for model, gpu, tp in arrangements)
            raise SimulationError(
                f"A profile is of one arrangement, these rows are of {names}. Choose one."
            )
        return arrangements[0]

    def arrangements(self) -> Iterator[tuple[tuple[str, str, int], BenchmarkRows]]:
        """Yield the rows by (model, GPU, TP), in the order of first appearance.

        Raises SimulationError if a row has no ``tp``.
        """
        rows_by_arrangement: dict[tuple[str, str, float], list[int]] = {}
        arrangements = zip(self.model.tolist(), self.gpu.tolist(), self.tp.tolist(), strict=True)
        for i, arrangement in enumerate(arrangements):
            rows_by_arrangement.setdefault(arrangement, []).append(i)
        for (model, gpu, tp), rows in rows_by_arrangement.items():
            if not np.isfinite(tp):
                raise SimulationError(
                    f"Benchmark rows of {model or 'no model'} on {gpu or 'no GPU'} do not give the "
                    "GPUs per replica. Give tp."
                )
            yield (model, gpu, int(tp)), self.take(rows)


NUMBERS = tuple(f.name for f in fields(BenchmarkRows))[3:]
TEXTS = ("model", "gpu", "precision")


def benchmark_rows(
    texts: Mapping[str, Sequence[str]], numbers: Mapping[str, npt.ArrayLike]
) -> BenchmarkRows:
    """Build rows from the given columns; missing columns become "" or NaN.

    Raises SimulationError if the columns differ in length.
    """
    arrays = {name: np.asarray(values, np.float64) for name, values in numbers.items()}
    rows = max([*map(len, texts.values()), *(values.size for values in arrays.values())])
    columns: dict[str, Any] = {
        name: np.asarray(texts[name], np.str_) if name in texts else np.full(rows, "")
        for name in TEXTS
    }
    columns |= {name: arrays.get(name, np.full(rows, np.nan)) for name in NUMBERS}
    return BenchmarkRows(**columns)
