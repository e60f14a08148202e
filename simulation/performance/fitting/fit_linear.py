"""Least squares for the linear profile (methods.md C1).

A batch row gives TBT = alpha + beta b, and a prefill of p tokens gives gamma + delta p. A served
deployment shows both at once. In steady state every iteration decodes b sequences and prefills
b isl / osl tokens. So TBT = alpha + beta b + delta b isl / osl, and gamma cannot be seen.

Rows with only batch and ITL, as in C1's source, do not show gamma and delta. These then come from a
modelled profile, or from an upper bound if there is no such profile.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import scipy

from simulation.arrays import BoolArray, FloatArray, IntArray
from simulation.errors import SimulationError
from simulation.performance.monotone import medians
from simulation.performance.profile import Profile, iteration_s
from simulation.performance.rows import BenchmarkRows

CONFIDENCE = 0.95
FALLS = 0.02  # share of the peak tokens/s; a smaller fall is noise
SIZES = np.geomspace(64.0, 1.0, 24)  # the token budget over these gives the sampled prefill sizes
CONTEXT = 4096.0  # tokens of prompt and of output in the fits of TBT; C1 has no context term


@dataclass(frozen=True, slots=True)
class Parameter:
    """A fitted number and its 95% confidence interval."""

    name: str
    value: float
    low: float
    high: float
    unit: str


@dataclass(frozen=True, slots=True)
class LinearFit:
    """Fitted parameters of a linear profile, and the largest sizes among the rows of the fit."""

    parameters: tuple[Parameter, ...]  # alpha, beta, gamma, delta
    decodes: float
    prefill_tokens: float
    context: float  # tokens of a decoding sequence; inf if a row lacks it
    notes: tuple[str, ...] = ()  # sentences on assumptions
    tied: bool = False  # some parameters are modelled or assumed
    saturation: float | None = None  # batch of the peak throughput, if a fall was measured

    @property
    def seconds(self) -> tuple[float, float, float, float]:
        """Return the values of alpha, beta, gamma and delta."""
        alpha, beta, gamma, delta = (p.value for p in self.parameters)
        return alpha, beta, gamma, delta


@dataclass(frozen=True, slots=True, eq=False)
class Coefficients:
    """Non-negative coefficients and their confidence intervals, ``[terms]`` each."""

    values: FloatArray
    low: FloatArray
    high: FloatArray


def least_squares(design: FloatArray, seconds: FloatArray, groups: FloatArray) -> Coefficients:
    """Return the non-negative least squares fit of ``seconds [rows]`` to ``design [rows, terms]``.

    Rows with equal values in ``groups [rows, columns]`` are repeats, and form a cluster. Intervals
    come from the jackknife over clusters (CR3; Cameron and Miller 2015), with the t distribution of
    clusters - 1 degrees of freedom. They are NaN with fewer than terms + 2 clusters, or if a term
    is undetermined without one of them. Raises SimulationError if the rows do not determine all
    terms.
    """
    scale = np.linalg.norm(design, axis=0)
    if (scale == 0).any() or np.linalg.matrix_rank(design / scale) < design.shape[1]:
        raise SimulationError(
            "The rows do not differ enough in batch size or tokens to fit a slope. Measure at "
            "least two sizes of each."
        )
    values = scipy.optimize.nnls(design / scale, seconds)[0] / scale
    _, cluster = np.unique(groups, axis=0, return_inverse=True)
    margin = _jackknife_margin(design, seconds, cluster.ravel())
    return Coefficients(values, np.maximum(values - margin, 0.0), values + margin)


def _jackknife_margin(design: FloatArray, seconds: FloatArray, cluster: IntArray) -> FloatArray:
    """Return half the width of each term's confidence interval, ``[terms]``; see least_squares.

    ``cluster [rows]`` are numbers of clusters from 0 on.
    """
    terms, clusters = design.shape[1], int(cluster.max()) + 1
    if clusters < terms + 2:
        return np.full(terms, np.nan)
    # Normal equations squares @ x = products, as sums by cluster. Subtracting those of a cluster
    # gives the fit without it, so that no cluster needs a pass over all rows.
    squares = np.zeros((clusters, terms, terms))
    products = np.zeros((clusters, terms))
    np.add.at(squares, cluster, design[:, :, None] * design[:, None, :])
    np.add.at(products, cluster, design * seconds[:, None])
    all_squares, all_products = squares.sum(axis=0), products.sum(axis=0)
    squares_without = all_squares - squares
    scale = np.linalg.norm(design, axis=0)
    if (np.linalg.matrix_rank(squares_without / np.outer(scale, scale)) < terms).any():
        return np.full(terms, np.nan)
    left_out = np.linalg.solve(squares_without, (all_products - products)[:, :, None])[:, :, 0]
    of_all = np.linalg.solve(all_squares, all_products)
    deviation = np.sqrt((clusters - 1) / clusters * ((left_out - of_all) ** 2).sum(axis=0))
    t_value = scipy.special.stdtrit(clusters - 1, 0.5 + CONFIDENCE / 2)
    return np.asarray(t_value * deviation)


def configurations(rows: BenchmarkRows) -> FloatArray:
    """Return batch, isl, osl and concurrency, ``[rows, 4]``; equal rows are repeats.

    Missing values are -1.
    """
    columns = (rows.batch, rows.isl, rows.osl, rows.concurrency)
    return np.nan_to_num(np.column_stack(columns), nan=-1.0)


def linear_fit(
    rows: BenchmarkRows, max_batch_tokens: float, base: Profile | None = None
) -> LinearFit:
    """Return the fit of the linear profile (C1) to the rows of one arrangement.

    TBT is fitted to rows with at most ``CONTEXT`` tokens of prompt and of output, and with batches
    up to the peak of throughput. Prefill is fitted up to ``max_batch_tokens``, since longer prompts
    run in chunks. If no prefill was measured, it is taken from ``base``. Raises SimulationError if
    no row has a TBT with a batch or a concurrency, or if the rows do not differ enough.
    """
    rows = rows.take(rows.ran_as_one_batch)
    is_long = np.fmax(rows.isl, rows.osl) > CONTEXT
    tbt_rows = rows.take(rows.has_numbers_in("tbt_s", "batch") & ~is_long)
    if not tbt_rows.rows:
        return _from_served(served_rows(rows))
    saturated_at = saturation(tbt_rows)
    notes: tuple[str, ...] = ()
    if saturated_at is not None:
        tbt_rows = tbt_rows.take(tbt_rows.batch <= saturated_at)
        notes = (
            f"Throughput rises up to a batch of {saturated_at:,.0f} and falls beyond it. That is "
            "the largest batch. Rows beyond it are excluded (measured).",
        )
    tbt = least_squares(line_through(tbt_rows.batch), tbt_rows.tbt_s, configurations(tbt_rows))
    prefill_s, tokens, usable = prefills(rows, max_batch_tokens)
    if usable.any():
        prefill = _parameters(
            least_squares(
                line_through(tokens[usable]), prefill_s[usable], configurations(rows)[usable]
            ),
            ("gamma", "delta"),
        )
        longest_prefill = float(tokens[usable].max())
    else:
        prefill, note = _unmeasured_prefill(tbt, max_batch_tokens, base)
        notes, longest_prefill = (*notes, note), np.inf
    return LinearFit(
        (*_parameters(tbt, ("alpha", "beta")), *prefill),
        decodes=float(tbt_rows.batch.max()),
        prefill_tokens=longest_prefill,
        context=longest_context(tbt_rows),
        notes=notes,
        tied=not usable.any(),
        saturation=saturated_at,
    )


def line_through(sizes: FloatArray) -> FloatArray:
    """Return the design ``[rows, 2]`` of a straight line over ``sizes``: 1 and the size."""
    return np.column_stack([np.ones(sizes.size), sizes])


def prefills(
    rows: BenchmarkRows, max_batch_tokens: float
) -> tuple[FloatArray, FloatArray, BoolArray]:
    """Return the prefill seconds and tokens of each row, and a mask of rows usable for a fit.

    The TTFT of a lone request counts as a prefill time.
    """
    lone_ttft_s = np.where(rows.concurrency <= 1, rows.ttft_s, np.nan)
    seconds = np.where(np.isfinite(rows.prefill_s), rows.prefill_s, lone_ttft_s)
    tokens = np.where(np.isfinite(rows.tokens), rows.tokens, rows.isl)
    return seconds, tokens, np.isfinite(seconds) & (tokens <= max_batch_tokens)


def lacks_prefill(rows: BenchmarkRows, max_batch_tokens: float) -> bool:
    """Return whether rows have a TBT by batch but no prefill time, as those of llm-d's WVA."""
    _, _, usable = prefills(rows, max_batch_tokens)
    return bool(rows.has_numbers_in("tbt_s", "batch").any() and not usable.any())


def longest_context(decode: BenchmarkRows) -> float:
    """Return the largest mean context of a decoding sequence over the rows, in tokens.

    It is inf if the lengths of a row are unknown.
    """
    return float(np.nan_to_num(decode.context, nan=np.inf).max())


def saturation(decode: BenchmarkRows) -> float | None:
    """Return the batch with the peak tokens/s, or None if no fall beyond it was measured.

    It is the bound "beyond which performance degrades" of C1. A fall was measured if the largest
    batch has less tokens/s than the peak, by the share ``FALLS``; smaller differences are noise.
    """
    tokens_per_s = np.where(
        np.isfinite(decode.throughput), decode.throughput, decode.batch / decode.tbt_s
    )
    batches, rates, _ = medians(decode.batch, tokens_per_s)
    best = int(rates.argmax())
    falls = rates[-1] < (1.0 - FALLS) * rates[best]
    return float(batches[best]) if falls and best >= 1 else None


def _unmeasured_prefill(
    tbt: Coefficients, max_batch_tokens: float, base: Profile | None
) -> tuple[tuple[Parameter, ...], str]:
    """Return gamma and delta for rows without a prefill time, and a sentence on their origin.

    They are those of the modelled profile ``base``. Without it they have the upper bounds
    gamma = alpha and delta = beta, from ``tbt``: a prompt token reads no cache of its own, so it
    takes no longer than a decoding sequence.
    """
    if base is None:
        values = tuple(tbt.values.tolist())
        note = (
            "No prefill was measured: gamma equals alpha and delta equals beta. A token of "
            "a prompt takes as long as a decoding sequence (assumed, an upper bound)."
        )
    else:
        values = prefill_line(base, max_batch_tokens)
        note = (
            f"No prefill was measured: gamma and delta are those of the {base.kind} profile "
            "(modelled). Alpha and beta are of the rows (measured)."
        )
    unknown = np.full(2, np.nan)
    return _parameters(Coefficients(np.array(values), unknown, unknown), ("gamma", "delta")), note


def prefill_line(base: Profile, budget: float) -> tuple[float, float]:
    """Return gamma and delta in seconds for prefill iterations of ``base`` up to ``budget`` tokens.

    They minimize the squared relative errors of gamma + delta * tokens.
    """
    tokens = budget / SIZES
    none = np.zeros(tokens.shape)
    seconds = iteration_s(base, none, none, tokens, tokens * tokens / 2)
    gamma, delta = scipy.optimize.nnls(
        np.column_stack([1 / seconds, tokens / seconds]), np.ones(tokens.size)
    )[0]
    return float(gamma), float(delta)


def served_rows(rows: BenchmarkRows) -> BenchmarkRows:
    """Return the served rows with all columns that a fit of TBT needs.

    Rows with more than ``CONTEXT`` tokens of prompt or output are dropped if others remain.
    """
    served = rows.take(rows.served_rows_with("tbt_s"))
    short = np.fmax(served.isl, served.osl) <= CONTEXT
    return served.take(short) if short.any() else served


UNITS = {"alpha": "s", "beta": "s per sequence", "gamma": "s", "delta": "s per token"}


def _parameters(fitted: Coefficients, names: Sequence[str]) -> tuple[Parameter, ...]:
    """Return the coefficients as parameters with ``names``."""
    columns = (fitted.values.tolist(), fitted.low.tolist(), fitted.high.tolist())
    return tuple(
        Parameter(name, value, low, high, UNITS[name])
        for name, value, low, high in zip(names, *columns, strict=True)
    )


def _from_served(rows: BenchmarkRows) -> LinearFit:
    """Return the fit of alpha, beta and delta to the TBT of served rows; gamma equals alpha."""
    if not rows.rows:
        raise SimulationError(
            "A linear profile needs rows with the time between tokens and a batch or a "
            "concurrency; there are none."
        )
    batch = rows.decoding
    tokens = batch * rows.isl / rows.osl
    design = np.column_stack([np.ones(rows.rows), batch, tokens])
    fitted = least_squares(design, rows.tbt_s, configurations(rows))
    alpha, beta, delta = _parameters(fitted, ("alpha", "beta", "delta"))
    note = (
        "Fitted to the TBT of served deployments, which mix decode and prefill. A prefill "
        "alone was not measured, so gamma equals alpha."
    )
    return LinearFit(
        (alpha, beta, replace(alpha, name="gamma"), delta),
        decodes=float(batch.max()),
        prefill_tokens=float(tokens.max()),
        context=longest_context(rows),
        notes=(note,),
    )
