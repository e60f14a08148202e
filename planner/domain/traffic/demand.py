"""Hold demand per model x region x tier in bins, and count it from a request trace."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import compress, product

import numpy as np

from forecasting.demand import INPUT_TOKENS, OUTPUT_TOKENS, REQUESTS, DemandSeries, SeriesKey
from forecasting.holidays import NO_HOLIDAYS, Holidays
from simulation.arrays import BoolArray, FloatArray, row_slices
from simulation.trace import Trace


@dataclass(frozen=True, slots=True, eq=False)
class Demand:
    """Requests and tokens per bin and key (model, region and tier); each array is ``[keys, bins]``.

    NaN marks a bin that was not observed.
    """

    keys: tuple[SeriesKey, ...]
    start_s: float  # left edge of the first bin, UTC epoch seconds
    bin_s: float
    requests: FloatArray
    input_tokens: FloatArray
    output_tokens: FloatArray
    sampling: FloatArray | None = None  # [keys] variance of the requests; None: not a sample
    holidays: Holidays = NO_HOLIDAYS

    def __post_init__(self) -> None:
        for name in (REQUESTS, INPUT_TOKENS, OUTPUT_TOKENS):
            array = np.array(getattr(self, name), dtype=np.float64)
            array.setflags(write=False)
            object.__setattr__(self, name, array)

    @property
    def bins(self) -> int:
        """Return the number of bins."""
        return int(self.requests.shape[1])

    @property
    def end_s(self) -> float:
        """Return the end of the last bin in epoch seconds."""
        return self.start_s + self.bins * self.bin_s

    @property
    def edges_s(self) -> FloatArray:
        """Return the left edge of each bin in epoch seconds, ``[bins]``."""
        return np.asarray(self.start_s + self.bin_s * np.arange(self.bins), np.float64)

    def inside(self, start_s: float, end_s: float) -> BoolArray:
        """Return a mask of the bins that begin within ``[start_s, end_s)``."""
        return np.asarray((self.edges_s > start_s - 1e-6) & (self.edges_s < end_s - 1e-6))

    def gaps(self, start_s: float, end_s: float) -> int:
        """Count the bins within ``[start_s, end_s)`` in which at least one key was not observed."""
        is_gap = np.isnan(self.requests[:, self.inside(start_s, end_s)])
        return int(is_gap.any(axis=0).sum())

    def series(self, index: int, unit: str = REQUESTS) -> DemandSeries:
        """Return the demand of key number ``index`` in ``unit``, from its first observed bin on."""
        values = getattr(self, unit)[index]
        return _series_from_first_bin(self, self.keys[index], values, unit, [index])

    def total(
        self, key: SeriesKey, unit: str, belongs: Callable[[SeriesKey], bool]
    ) -> DemandSeries:
        """Return the summed demand in ``unit`` of the keys that ``belongs`` accepts.

        The series is named ``key``. A gap in one of the keys is a gap in the sum.
        """
        rows = [i for i, row_key in enumerate(self.keys) if belongs(row_key)]
        values = getattr(self, unit)[rows].sum(axis=0) if rows else np.zeros(self.bins)
        return _series_from_first_bin(self, key, values, unit, rows)

    def level_error(self, rows: Sequence[int]) -> float:
        """Return the relative standard error of the requests of the keys number ``rows``, summed.

        It comes from sampling, so it is 0 if the trace is not a sample.
        """
        total = float(np.nansum(self.requests[list(rows)]))
        if self.sampling is None or not total:
            return 0.0
        return float(np.sqrt(self.sampling[list(rows)].sum())) / total


def _series_from_first_bin(
    demand: Demand, key: SeriesKey, values: FloatArray, unit: str, rows: Sequence[int]
) -> DemandSeries:
    """Return ``values [bins]`` as a series named ``key`` that begins at its first observed bin.

    The values are the sum of the keys number ``rows`` of ``demand``.
    """
    observed = np.flatnonzero(~np.isnan(values))
    first = int(observed[0]) if observed.size else 0
    return DemandSeries(
        key=key,
        start_s=demand.start_s + first * demand.bin_s,
        bin_s=demand.bin_s,
        values=values[first:],
        unit=unit,
        holidays=demand.holidays,
        level_error=demand.level_error(rows),
    )


def bin_demand(trace: Trace, bin_s: float, start_s: float, bins: int) -> Demand:
    """Return a trace's requests and tokens per bin, for every model x region x tier that occurs.

    The result has ``bins`` bins of ``bin_s`` seconds from ``start_s`` (epoch s) on. The first and
    last bin may extend beyond the trace, and then have too small counts.
    """
    requests, input_tokens, output_tokens = _sums_per_bin(trace, bin_s, start_s, bins)
    used = requests.any(axis=1)
    keys = [SeriesKey(*names) for names in product(trace.models, trace.regions, trace.tiers)]
    return Demand(
        keys=tuple(compress(keys, used)),
        start_s=start_s,
        bin_s=bin_s,
        requests=requests[used],
        input_tokens=input_tokens[used],
        output_tokens=output_tokens[used],
    )


def _sums_per_bin(trace: Trace, bin_s: float, start_s: float, bins: int) -> FloatArray:
    """Return requests, input and output tokens per bin, ``[3, model x region x tier, bin]``.

    Requests outside the bins do not count.
    """
    shape = (len(trace.models), len(trace.regions), len(trace.tiers), bins)
    size = int(np.prod(shape))
    sums = np.zeros((3, size))
    requests, input_tokens, output_tokens = sums  # views of its rows
    # In pieces, so that a large trace needs no temporary arrays of its full length.
    for piece in row_slices(len(trace)):
        since_start_s = trace.arrival_s[piece] + (trace.start_s - start_s)
        bin_of = np.floor(since_start_s / bin_s).astype(np.int64)
        inside = np.flatnonzero((bin_of >= 0) & (bin_of < bins))
        rows = piece.start + inside
        columns = trace.model[rows], trace.region[rows], trace.tier[rows], bin_of[inside]
        codes = np.ravel_multi_index(columns, shape)
        requests += np.bincount(codes, minlength=size)
        input_tokens += np.bincount(codes, trace.input_tokens[rows], size)
        output_tokens += np.bincount(codes, trace.output_tokens[rows], size)
    return sums.reshape(3, -1, bins)
