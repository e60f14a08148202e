"""Fit the linear profile to a sweep: one prompt and output length over a range of loads.

Benchmarks with vLLM and GuideLLM are mostly such sweeps. Every iteration decodes b sequences and
prefills b isl / osl tokens. The proportion is constant, so TBT = alpha + s b has the slope
s = beta + delta isl / osl. It does not separate beta from delta. TTFT at the lowest load gives the
time of one prompt. It does not separate gamma from delta.

A modelled profile of the same model and GPU fills the gap. Gamma and delta keep its proportion. One
factor scales both, from TTFT at a load with hardly any waiting, else from TBT as a whole. Beta is
the rest of the slope.
"""

from dataclasses import dataclass

import numpy as np
import scipy

from simulation.arrays import FloatArray, IntArray
from simulation.performance.fitting.compare import SERVED_TBT, compare_with
from simulation.performance.fitting.first_token_wait import Waiting
from simulation.performance.fitting.fit_linear import (
    CONFIDENCE,
    UNITS,
    LinearFit,
    Parameter,
    configurations,
    least_squares,
    longest_context,
    prefill_line,
    served_rows,
)
from simulation.performance.profile import Profile
from simulation.performance.rows import BenchmarkRows

APART = 1.25  # ratio of the largest to the smallest isl / osl; below it rows are one sweep
LIGHT = 2.0  # requests in flight; above them too much of TTFT is waiting
NEAR = 1.05  # times the lowest load; such rows are repeats of it


def is_sweep(rows: BenchmarkRows) -> bool:
    """Return whether all rows with TBT are served ones with nearly the same isl / osl.

    Then load and lengths vary together, and prefill cannot be told from decode.
    """
    if (np.isfinite(rows.tbt_s) & np.isfinite(rows.batch)).any():
        return False
    served = served_rows(rows)
    if not served.rows:
        return False
    ratio = served.isl / served.osl
    return bool(ratio.max() < APART * ratio.min())


@dataclass(frozen=True, slots=True, eq=False)
class Prompt:
    """The time of a prompt that hardly waits, from the rows at the lowest load, ``[n]`` each."""

    isl: FloatArray
    seconds: FloatArray  # TTFT without the modelled waiting
    high: FloatArray  # TTFT
    load: float  # requests in flight
    rows: IntArray  # of the benchmark rows


def prompt_alone(rows: BenchmarkRows, waiting: Waiting | None) -> Prompt | None:
    """Return the time of a prompt alone from TTFT at the lowest load.

    None if that load exceeds ``LIGHT``. With at most one request in flight nothing waits. Above, at
    most half of TTFT counts as waiting, because the waiting is modelled and not measured.
    """
    complete = np.isfinite(rows.ttft_s) & np.isfinite(rows.concurrency) & np.isfinite(rows.isl)
    if not complete.any():
        return None
    load = float(rows.concurrency[complete].min())
    if load > LIGHT:
        return None
    lowest = np.flatnonzero(complete & (rows.concurrency <= max(NEAR * load, 1.0)))
    part = rows.take(lowest)
    ttft = part.ttft_s
    seconds = ttft
    if load > 1 and waiting is not None:
        before = waiting.before_s(np.nan_to_num(part.tbt_s), part.concurrency)
        seconds = np.maximum((ttft - before) / waiting.prompts(part.concurrency), ttft / 2)
    return Prompt(part.isl, seconds, ttft, load, lowest)


def start_beside(prompt: Prompt | None, waiting: Waiting | None, base: Profile) -> float:
    """Return the seconds before a request's first iteration that its prompt time excludes.

    They are 0 if the prompt time is the TTFT of a lone request, which includes them. They are those
    of ``waiting`` if they were subtracted from TTFT with its waiting, and those of ``base`` without
    a TTFT.
    """
    if prompt is None:
        return base.start_s
    return waiting.start_s if waiting is not None and prompt.load > 1 else 0.0


def sweep_fit(
    rows: BenchmarkRows, base: Profile, budget: float, waiting: Waiting | None = None
) -> LinearFit:
    """Return the linear fit (C1) to a sweep (``is_sweep``), with the modelled profile ``base``.

    Rows give alpha, and by how much time grows per sequence. ``base`` gives the proportion of gamma
    to delta, and TTFT their size. The intervals of alpha and of the growth come from the jackknife.
    The interval of the prompt time goes from TTFT without the modelled waiting to TTFT, and is
    widened by the error of ``base``.
    """
    served = served_rows(rows)
    prompt = prompt_alone(rows, waiting)
    batch = served.decoding
    line = least_squares(
        np.column_stack([np.ones(served.rows), batch]), served.tbt_s, configurations(served)
    )
    alpha, slope = line.values.tolist()
    ratio = float(np.median(served.isl / served.osl))

    gamma, delta = prefill_line(base, budget)
    isl = float(np.median(served.isl if prompt is None else prompt.isl))
    chunks = float(np.ceil(isl / budget))
    if prompt is None:
        residuals = compare_with(base, served, "").residuals.of(SERVED_TBT)
        low_factor = high_factor = residuals.measured_s / residuals.predicted_s
        what = f"No row has TTFT at up to {LIGHT:g} in flight: the time between tokens"
    else:
        modelled = np.ceil(prompt.isl / budget) * gamma + prompt.isl * delta
        low_factor, high_factor = prompt.seconds / modelled, prompt.high / modelled
        what = f"TTFT at {prompt.load:,.3g} in flight"
    factor = float(np.median(low_factor))
    deviations = scipy.special.ndtri(0.5 + CONFIDENCE / 2)
    margin = float(np.exp(deviations * base.spread))
    low, high = float(low_factor.min()) / margin, float(high_factor.max()) * margin
    prompt_alone_s = factor * (chunks * gamma + isl * delta)

    notes = [
        "The rows have one proportion of isl to osl, in which the time between tokens cannot tell "
        f"decodes (β) from the prompts among them (δ). {what} "
        f"(measured) decides them together with a {base.kind} profile of {base.model} on "
        f"{base.tp} x {base.gpu} (modelled): γ and δ are its own, times {factor:.2f}."
    ]
    if prompt is not None and prompt.load > 1:
        share = float(np.median(1 - prompt.seconds / prompt.high))
        notes.append(
            f"No row has a single request in flight: {share:.0%} of TTFT at the lowest load was "
            "taken for waiting, by the closed loop of estimates (modelled)."
        )
    gamma_fit, delta_fit = factor * gamma, factor * delta
    if gamma_fit > alpha:  # a larger gamma would exceed the measured time of mixed iterations
        gamma_fit, delta_fit = alpha, (prompt_alone_s - chunks * alpha) / isl
        notes.append(
            f"γ is that of an iteration among decodes, {alpha * 1e3:.3g} ms, and not the "
            f"{factor * gamma * 1e3:.3g} ms of that profile; the rest of a prompt's time is in δ."
        )
    largest_delta = slope / ratio  # the delta that leaves nothing for beta
    if delta_fit > largest_delta:
        gamma_fit = min((prompt_alone_s - largest_delta * isl) / chunks, alpha)
        unexplained_s = prompt_alone_s - chunks * gamma_fit - largest_delta * isl
        notes.append(
            f"δ is {largest_delta * 1e3:.3g} ms per token, all that the time between tokens grows "
            f"by, and not the {delta_fit * 1e3:.3g} ms of that profile"
            + (f"; {unexplained_s * 1e3:.3g} ms of a prompt are in no iteration and ignored."
               if unexplained_s > 0 else ".")
        )  # fmt: skip
        delta_fit = largest_delta
    beta = max(slope - delta_fit * ratio, 0.0)
    ends = float(line.low[1]) - high * delta * ratio, float(line.high[1]) - low * delta * ratio
    parameters = (
        Parameter("alpha", alpha, float(line.low[0]), float(line.high[0]), UNITS["alpha"]),
        Parameter("beta", beta, max(ends[0], 0.0), max(ends[1], beta), UNITS["beta"]),
        Parameter("gamma", gamma_fit, min(low * gamma, gamma_fit), max(high * gamma, gamma_fit),
                  UNITS["gamma"]),
        Parameter("delta", delta_fit, min(low * delta, delta_fit), max(high * delta, delta_fit),
                  UNITS["delta"]),
    )  # fmt: skip
    largest = max(float((batch * served.isl / served.osl).max()), min(isl, budget))
    return LinearFit(
        parameters, float(batch.max()), largest, longest_context(rows), tuple(notes), tied=True
    )
