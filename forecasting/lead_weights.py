"""Weight forecast methods by the errors of their past forecasts at the same lead time.

The steps of a forecast are divided into blocks that grow with the lead time. The first block is the
window whose peak decides between methods in ``method_choice``. The blocks here follow it. An origin
is the bin at which a past forecast began.
"""

from itertools import pairwise

import numpy as np

from forecasting.arrays import FloatArray, IntArray
from forecasting.demand import windows_at
from forecasting.method_choice import HALF_LIFE, DiscountedMeans, ensemble_weights

HALF_LIFE_LEADS = 7  # lead times after which an error counts half
DAYS_OF_WEEK = 7  # each day of the first week is a block; later blocks are weeks


def block_edges(window: int, day: int, steps: int) -> tuple[int, ...]:
    """Return the step at which each block begins, and the end of the last block.

    Blocks double from ``window`` to a day, then are a day each for a week, then a week each.
    ``day`` is the number of steps of a day, 0 if it is not whole: then blocks only double. The last
    edge is at ``steps`` or later.
    """
    edges = [window]
    while edges[-1] < steps:
        last = edges[-1]
        if not day:
            edges.append(2 * last)
        elif last < day:
            edges.append(min(2 * last, day))
        else:  # the end of the current day or week, counted from the origin
            length = day if last < DAYS_OF_WEEK * day else DAYS_OF_WEEK * day
            edges.append((last // length + 1) * length)
    return tuple(edges)


def _origin_distance(stride: int, horizon: int, end: int) -> float:
    """Return the distance of two origins in windows, by which errors of a block are discounted.

    Origins are ``stride`` bins apart, and a window has ``horizon`` bins. Errors count half after
    HALF_LIFE windows. For a block that ends at step ``end``, that is lengthened to HALF_LIFE_LEADS
    times ``end`` if this is longer: the distance is reduced accordingly.
    """
    half_life_bins, block_half_life_bins = HALF_LIFE * horizon, HALF_LIFE_LEADS * end
    return stride / horizon * min(1.0, half_life_bins / block_half_life_bins)


class LeadWeights:
    """Weights of methods by lead time, from their past errors in each block of steps.

    ``edges`` are those of the blocks. ``errors`` has, for each block, the discounted mean errors as
    they were known at each past origin. ``paths`` are forecasts whose errors are not known yet.
    """

    def __init__(
        self, methods: int, series: int, edges: tuple[int, ...], stride: int, horizon: int
    ) -> None:
        """Begin without forecasts. Origins are ``stride`` bins apart, windows ``horizon`` long."""
        self.edges, self.stride = edges, stride
        shape = methods, series
        self.blocks = tuple(pairwise(edges))
        self.errors = [
            DiscountedMeans.empty(shape, _origin_distance(stride, horizon, end), default=np.inf)
            for _, end in self.blocks
        ]
        self.origins: IntArray = np.empty(0, np.int64)  # first bin of each past forecast
        self.first_path = 0  # index of the origin of the first of ``paths``
        self.paths = np.empty((methods, series, 0, edges[-1]))  # [method, series, origin, step]

    def add_origins(self, values: FloatArray, origins: IntArray, paths: FloatArray) -> None:
        """Add the forecasts of new ``origins``, and all errors that are known by now.

        ``paths [method, series, origin, step]`` are the forecasts, ``values [series, bins]`` the
        demand up to now.
        """
        self.origins = np.concatenate([self.origins, origins])
        self.paths = np.concatenate([self.paths, paths[..., : self.edges[-1]]], axis=2)
        self.add_known_errors(values)

    def add_known_errors(self, values: FloatArray) -> None:
        """Add the errors of the blocks that have ended by the end of ``values [series, bins]``."""
        for b, (start, end) in enumerate(self.blocks):
            # Indices of the origins whose block has ended and has no error yet. Origins are rising.
            ended = int((self.origins + end <= values.shape[1]).sum())
            new_origins = np.arange(self.errors[b].end, ended)
            if new_origins.size:
                actual = windows_at(values, self.origins[new_origins] + start, end - start)
                forecast = self.paths[:, :, new_origins - self.first_path, start:end]
                self.errors[b] = self.errors[b].append(_mean_absolute_error(forecast, actual))
        # Drop the paths whose errors are known in every block.
        known_everywhere = min((means.end for means in self.errors), default=len(self.origins))
        self.paths = self.paths[:, :, known_everywhere - self.first_path :].copy()
        self.first_path = known_everywhere

    def keep_needed(self) -> None:
        """Drop the mean errors that no later origin needs."""
        self.errors = [
            means.keep_last(-(-end // self.stride))
            for means, (_, end) in zip(self.errors, self.blocks, strict=True)
        ]

    def mix(
        self,
        rows: IntArray,
        paths: FloatArray,
        origin_index: IntArray,
        window_weights: FloatArray,
        age: int,
    ) -> tuple[FloatArray, FloatArray]:
        """Return the weighted mean of the methods' forecasts, and the weights at the last step.

        ``paths [method, row, origin, step]`` are the forecasts of the series ``rows``. The mean is
        ``[row, origin, step]``, NaN in the steps of the window. The weights are ``[method, row,
        origin]``. ``origin_index`` is that of each origin among all. ``window_weights`` are used
        until an error at a longer lead time is known. The last observed bin is ``age`` bins before
        the origins, so step k has the lead time k + ``age``. Blocks are ranges of lead times.
        """
        weights = last_weights = window_weights
        mixed = np.full(paths.shape[1:], np.nan)
        steps = paths.shape[3]
        for block, (start, end) in enumerate(self.blocks):
            # The steps of the paths that have the lead times of this block
            first, stop = max(0, start - age), max(0, min(end - age, steps))
            # The latest mean errors of the block that are known at each origin
            origins_back = -(-end // self.stride)  # rounded up
            error = self.errors[block].at(origin_index - origins_back)[:, rows]
            # Weights by these errors; without any, those of the block before
            has_no_path = np.isnan(paths[..., min(first, steps - 1)])
            block_weights = ensemble_weights(np.where(has_no_path, np.inf, error))
            has_weight = block_weights.sum(axis=0) > 0
            weights = np.where(has_weight, block_weights, weights)
            if stop > first:
                known_paths = np.nan_to_num(paths[..., first:stop])
                # The sum over methods (m), for each series, origin and step (k).
                mixed[..., first:stop] = np.einsum("mso,msok->sok", weights, known_paths)
                last_weights = weights
        return mixed, last_weights


def _mean_absolute_error(forecast: FloatArray, actual: FloatArray) -> FloatArray:
    """Return the mean error over known steps; NaN for a window that ends in a gap."""
    absolute = np.abs(forecast - actual)
    known = ~np.isnan(absolute)
    count = known.sum(axis=3)
    error = np.where(known, absolute, 0.0).sum(axis=3) / np.maximum(count, 1)
    return np.where((count > 0) & known[..., -1], error, np.nan)
