"""Least squares for the linear profile (methods.md C1).

A batch row gives TBT = alpha + beta b, and a prefill of p tokens gives gamma + delta p. A served
deployment shows both at once. In steady state every iteration decodes b sequences and prefills
b isl / osl tokens. So TBT = alpha + beta b + delta b isl / osl, and gamma cannot be seen.

Rows with only batch and ITL, as in C1's source, do not show gamma and delta. These then come from a
modelled profile, or from an upper bound if there is no such profile.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import scipy

from simulation.arrays import BoolArray, FloatArray
from simulation.errors import SimulationError
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
class Line:
    """Non-negative coefficients and their confidence intervals, ``[terms]`` each."""

    values: FloatArray
    low: FloatArray
    high: FloatArray


def least_squares(design: FloatArray, seconds: FloatArray, groups: FloatArray) -> Line:
    """Fit non-negative least squares; ``design`` has shape ``[rows, terms]``.

    Rows with equal values in ``groups [rows, columns]`` form a cluster. Intervals come from the
    jackknife over clusters (CR3; Cameron and Miller 2015), with t of clusters - 1 degrees of
    freedom. Repeats of one configuration tell less about a slope than different configurations do.
    Intervals are NaN with fewer than terms + 2 clusters, or if a term needs one certain cluster.
    Raises SimulationError if the rows do not determine all terms.
    """
    scale = np.linalg.norm(design, axis=0)
    if (scale == 0).any() or np.linalg.matrix_rank(design / scale) < design.shape[1]:
        raise SimulationError(
            "The rows do not differ enough in batch size or tokens to fit a slope. Measure at "
            "least two sizes of each."
        )
    values = scipy.optimize.nnls(design / scale, seconds)[0] / scale
    _, group = np.unique(groups, axis=0, return_inverse=True)
    group = group.ravel()
    k, count = design.shape[1], int(group.max()) + 1
    if count < k + 2:
        nothing = np.full(k, np.nan)
        return Line(values, nothing, nothing)
    # Fit without each group by subtracting its sums, so that no group needs a pass over all rows.
    squares = np.zeros((count, k, k))
    products = np.zeros((count, k))
    np.add.at(squares, group, design[:, :, None] * design[:, None, :])
    np.add.at(products, group, design * seconds[:, None])
    without = squares.sum(axis=0) - squares
    if (np.linalg.matrix_rank(without / np.outer(scale, scale)) < k).any():
        nothing = np.full(k, np.nan)  # one group carries a term alone
        return Line(values, nothing, nothing)
    left = np.linalg.solve(without, (products.sum(axis=0) - products)[:, :, None])[:, :, 0]
    of_all = np.linalg.solve(squares.sum(axis=0), products.sum(axis=0))
    deviation = np.sqrt((count - 1) / count * ((left - of_all) ** 2).sum(axis=0))
    reach = scipy.special.stdtrit(count - 1, 0.5 + CONFIDENCE / 2) * deviation
    return Line(values, np.maximum(values - reach, 0.0), values + reach)


def configurations(rows: BenchmarkRows) -> FloatArray:
    """Return the columns that are equal in repeats of one measurement, ``[rows, 4]``."""
    columns = (rows.batch, rows.isl, rows.osl, rows.concurrency)
    return np.nan_to_num(np.column_stack(columns), nan=-1.0)


def linear_fit(
    rows: BenchmarkRows, max_batch_tokens: float, base: Profile | None = None
) -> LinearFit:
    """Return the fit of the linear profile (C1) to the rows of one arrangement.

    TBT is fitted to rows with at most ``CONTEXT`` tokens of prompt and of output, and with batches
    up to the peak of throughput. Prefill is fitted up to ``max_batch_tokens``, since longer prompts
    run in chunks. Without a measured prefill, ``base`` gives it. Raises SimulationError if no row
    has a TBT with a batch or a concurrency, or if the rows do not differ enough.
    """
    rows = rows.take(rows.whole)
    short = ~(np.fmax(rows.isl, rows.osl) > CONTEXT)
    decode = rows.take(np.isfinite(rows.tbt_s) & np.isfinite(rows.batch) & short)
    prefill_s, tokens, first = prefills(rows, max_batch_tokens)
    served = served_rows(rows)
    if not decode.rows:
        if not served.rows:
            raise SimulationError(
                "A linear profile needs rows with the time between tokens and a batch or a "
                "concurrency; there are none."
            )
        return _from_served(served)
    full = saturation(decode)
    notes: tuple[str, ...] = ()
    if full is not None:
        decode = decode.take(decode.batch <= full)
        notes = (
            f"Throughput rises up to a batch of {full:,.0f} and falls beyond it. That is the "
            "largest batch. Rows beyond it are excluded (measured).",
        )
    ones = np.ones(decode.rows)
    tbt = least_squares(np.column_stack([ones, decode.batch]), decode.tbt_s, configurations(decode))
    if not first.any():
        return _without_prefill(decode, tbt, max_batch_tokens, base, notes, full)
    line = least_squares(
        np.column_stack([np.ones(int(first.sum())), tokens[first]]),
        prefill_s[first],
        configurations(rows)[first],
    )
    return LinearFit(
        (*_parameters(tbt, ("alpha", "beta")), *_parameters(line, ("gamma", "delta"))),
        decodes=float(decode.batch.max()),
        prefill_tokens=float(tokens[first].max()),
        context=longest_context(decode),
        notes=notes,
        saturation=full,
    )


def prefills(
    rows: BenchmarkRows, max_batch_tokens: float
) -> tuple[FloatArray, FloatArray, BoolArray]:
    """Return the prefill seconds and tokens of each row, and a mask of rows usable for a fit."""
    seconds = np.where(
        np.isfinite(rows.prefill_s), rows.prefill_s,
        np.where(rows.concurrency <= 1, rows.ttft_s, np.nan),
    )  # fmt: skip
    tokens = np.where(np.isfinite(rows.tokens), rows.tokens, rows.isl)
    return seconds, tokens, np.isfinite(seconds) & (tokens <= max_batch_tokens)


def lacks_prefill(rows: BenchmarkRows, max_batch_tokens: float) -> bool:
    """Return whether rows have a TBT by batch but no prefill time, as those of llm-d's WVA."""
    decodes = np.isfinite(rows.tbt_s) & np.isfinite(rows.batch)
    return bool(decodes.any() and not prefills(rows, max_batch_tokens)[2].any())


def longest_context(decode: BenchmarkRows) -> float:
    """Return the largest mean context of a decoding sequence over the rows, in tokens.

    It is inf if a row lacks its lengths.
    """
    return float(np.nan_to_num(decode.context, nan=np.inf).max())


def saturation(decode: BenchmarkRows) -> float | None:
    """Return the batch with the peak tokens/s, or None if no fall beyond it was measured.

    It is the bound "beyond which performance degrades" of C1. The largest measured batch must have
    ``FALLS`` less tokens/s than the peak, since smaller differences are noise.
    """
    batches = np.unique(decode.batch)
    tokens_per_s = np.where(
        np.isfinite(decode.throughput), decode.throughput, decode.batch / decode.tbt_s
    )
    rates = np.array([np.median(tokens_per_s[decode.batch == b]) for b in batches])
    best = int(rates.argmax())
    fallen = best + 1 < batches.size and rates[-1] < (1.0 - FALLS) * rates[best]
    return float(batches[best]) if fallen and best >= 1 else None


def _without_prefill(
    decode: BenchmarkRows,
    tbt: Line,
    max_batch_tokens: float,
    base: Profile | None,
    notes: tuple[str, ...],
    saturation: float | None,
) -> LinearFit:
    """Return the fit with gamma and delta of the modelled profile, or with upper bounds for them.

    The bounds are gamma = alpha and delta = beta. A prompt token reads no cache of its own, so it
    takes no longer than a decoding sequence. ``base`` is the modelled profile; None: there is none.
    ``tbt`` is the line fitted to ``decode``. ``saturation`` is the batch of the peak
    throughput, if a fall was measured.
    """
    measured = _parameters(tbt, ("alpha", "beta"))
    if base is None:
        alpha, beta = measured
        gamma = Parameter("gamma", alpha.value, np.nan, np.nan, UNITS["gamma"])
        delta = Parameter("delta", beta.value, np.nan, np.nan, UNITS["delta"])
        note = (
            "No prefill was measured: gamma equals alpha and delta equals beta. A token of "
            "a prompt takes as long as a decoding sequence (assumed, an upper bound)."
        )
    else:
        gamma, delta = (
            Parameter(name, value, np.nan, np.nan, UNITS[name])
            for name, value in zip(
                ("gamma", "delta"), prefill_line(base, max_batch_tokens), strict=True
            )
        )
        note = (
            f"No prefill was measured: gamma and delta are those of the {base.kind} profile "
            "(modelled). Alpha and beta are of the rows (measured)."
        )
    return LinearFit(
        (*measured, gamma, delta),
        decodes=float(decode.batch.max()),
        prefill_tokens=np.inf,
        context=longest_context(decode),
        notes=(*notes, note),
        tied=True,
        saturation=saturation,
    )


def prefill_line(base: Profile, budget: float) -> tuple[float, float]:
    """Return gamma and delta in seconds for prefill iterations of ``base`` up to ``budget`` tokens.

    They minimize the squared relative errors.
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

    If any of them has at most ``CONTEXT`` tokens of prompt and of output, only such rows count.
    """
    served = rows.take(
        np.isfinite(rows.tbt_s) & np.isfinite(rows.concurrency) & np.isnan(rows.batch)
        & np.isfinite(rows.isl) & (rows.osl >= 1)
    )  # fmt: skip
    short = np.fmax(served.isl, served.osl) <= CONTEXT
    return served.take(short) if short.any() else served


UNITS = {"alpha": "s", "beta": "s per sequence", "gamma": "s", "delta": "s per token"}


def _parameters(line: Line, names: Sequence[str]) -> tuple[Parameter, ...]:
    """Return the coefficients of a line as parameters with ``names``."""
    return tuple(
        Parameter(name, float(v), float(low), float(high), UNITS[name])
        for name, v, low, high in zip(names, line.values, line.low, line.high, strict=True)
    )


def _from_served(rows: BenchmarkRows) -> LinearFit:
    """Return alpha, beta and delta fitted to the TBT of served rows, with gamma = alpha."""
    batch = rows.decoding
    tokens = batch * rows.isl / rows.osl
    design = np.column_stack([np.ones(rows.rows), batch, tokens])
    line = least_squares(design, rows.tbt_s, configurations(rows))
    alpha, beta, delta = _parameters(line, ("alpha", "beta", "delta"))
    gamma = Parameter("gamma", alpha.value, alpha.low, alpha.high, "s")
    note = (
        "Fitted to the TBT of served deployments, which mix decode and prefill. A prefill "
        "alone was not measured, so gamma equals alpha."
    )
    return LinearFit(
        (alpha, beta, gamma, delta), float(batch.max()), float(tokens.max()), longest_context(rows),
        notes=(note,),
    )  # fmt: skip
