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

from simulation.arrays import FloatArray
from simulation.performance.fitting.compare import SERVED_TBT, Waiting, compare_with
from simulation.performance.fitting.fit_linear import (
    CONFIDENCE,
    UNITS,
    LinearFit,
    Parameter,
    configurations,
    least_squares,
    line_through,
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
    """Return whether all rows with TBT are served rows with nearly the same isl / osl.

    Then prompts and decodes of an iteration grow together, and their times cannot be separated.
    """
    served = served_rows(rows)
    if rows.has_numbers_in("tbt_s", "batch").any() or not served.rows:
        return False
    ratio = served.isl / served.osl
    return bool(ratio.max() < APART * ratio.min())


@dataclass(frozen=True, slots=True, eq=False)
class Prompt:
    """The time of a prompt that hardly waits, by row at the lowest load, ``[n]``."""

    isl: FloatArray
    seconds: FloatArray  # TTFT without the modelled waiting
    high: FloatArray  # upper bound: TTFT
    load: float  # requests in flight


def prompt_alone(rows: BenchmarkRows, waiting: Waiting | None) -> Prompt | None:
    """Return the time of a prompt alone from TTFT at the lowest load.

    None if that load exceeds ``LIGHT`` or no row has a TTFT. With at most one request in flight
    nothing waits. Above, at most half of TTFT counts as waiting, because the waiting is modelled
    and not measured.
    """
    complete = rows.has_numbers_in("ttft_s", "concurrency", "isl")
    load = float(np.min(rows.concurrency, where=complete, initial=np.inf))
    if load > LIGHT:
        return None
    part = rows.take(complete & (rows.concurrency <= max(NEAR * load, 1.0)))
    seconds = part.ttft_s
    if load > 1 and waiting is not None:
        before_s = waiting.before_s(np.nan_to_num(part.tbt_s), part.concurrency)
        one_prompt_s = (part.ttft_s - before_s) / waiting.prompts(part.concurrency)
        seconds = np.maximum(one_prompt_s, part.ttft_s / 2)
    return Prompt(part.isl, seconds, part.ttft_s, load)


def start_outside_prompt(prompt: Prompt | None, waiting: Waiting | None, base: Profile) -> float:
    """Return the seconds before a request's first iteration that its prompt time excludes.

    They are 0 if the prompt time is the TTFT of a lone request, which includes them. If waiting was
    subtracted from TTFT, they are ``start_s`` of ``waiting``. Without a TTFT they are ``start_s``
    of ``base``.
    """
    if prompt is None:
        return base.start_s
    return waiting.start_s if waiting is not None and prompt.load > 1 else 0.0


def sweep_fit(
    rows: BenchmarkRows, base: Profile, budget: float, waiting: Waiting | None = None
) -> LinearFit:
    """Return the linear fit (C1) to a sweep (``is_sweep``), with the modelled profile ``base``.

    The rows give alpha, and the slope of TBT over sequences. ``base`` gives the proportion of gamma
    to delta, and TTFT their size. The intervals of alpha and of the slope come from the jackknife.
    ``budget`` is the most prompt tokens of an iteration.
    """
    served = served_rows(rows)
    batch = served.decoding
    fitted = least_squares(line_through(batch), served.tbt_s, configurations(served))
    alpha, slope = fitted.values.tolist()
    # Prompt tokens of an iteration per decoding sequence: TBT grows by beta + delta times these.
    prompts_per_decode = float(np.median(served.isl / served.osl))
    prompt = prompt_alone(rows, waiting)
    prefill = _scaled_prefill(served, prompt, base, budget)
    notes = _sweep_notes(prefill, prompt, base)
    gamma, delta = _limited_prefill(prefill, alpha, slope / prompts_per_decode, notes)
    beta = max(slope - delta * prompts_per_decode, 0.0)
    # 95% intervals. Beta is the rest of the slope, so its lowest value has the highest delta.
    low_delta, high_delta = prefill.low * prefill.delta, prefill.high * prefill.delta
    low_beta = max(float(fitted.low[1]) - high_delta * prompts_per_decode, 0.0)
    high_beta = max(float(fitted.high[1]) - low_delta * prompts_per_decode, beta)
    low_gamma, high_gamma = prefill.low * prefill.gamma, prefill.high * prefill.gamma
    low = float(fitted.low[0]), low_beta, min(low_gamma, gamma), min(low_delta, delta)
    high = float(fitted.high[0]), high_beta, max(high_gamma, gamma), max(high_delta, delta)
    # Name, value, low, high and unit of each parameter
    parameters = zip(UNITS, (alpha, beta, gamma, delta), low, high, UNITS.values(), strict=True)
    most_tokens = float((batch * served.isl / served.osl).max())
    return LinearFit(
        tuple(Parameter(*fields) for fields in parameters),
        decodes=float(batch.max()),
        prefill_tokens=max(most_tokens, min(prefill.isl, budget)),
        context=longest_context(rows),
        notes=tuple(notes),
        tied=True,
    )


@dataclass(frozen=True, slots=True)
class _ScaledPrefill:
    """Gamma and delta of a modelled profile in seconds, and the measured factor on both."""

    gamma: float
    delta: float
    isl: float  # tokens of the measured prompt
    iterations: float  # of that prompt
    factor: float
    low: float  # 95% interval of the factor
    high: float
    source: str  # the rows that give the factor, as the begin of a sentence

    @property
    def prompt_s(self) -> float:
        """Return the seconds of the measured prompt."""
        return self.factor * (self.iterations * self.gamma + self.isl * self.delta)


def _sweep_notes(prefill: _ScaledPrefill, prompt: Prompt | None, base: Profile) -> list[str]:
    """Return sentences on what the rows and the modelled profile ``base`` decide."""
    notes = [
        "The rows have one proportion of isl to osl, in which the time between tokens cannot tell "
        f"decodes (β) from the prompts among them (δ). {prefill.source} "
        f"(measured) decides them together with a {base.kind} profile of {base.model} on "
        f"{base.tp} x {base.gpu} (modelled): γ and δ are its own, times {prefill.factor:.2f}."
    ]
    if prompt is not None and prompt.load > 1:
        share = float(np.median(1 - prompt.seconds / prompt.high))
        notes.append(
            f"No row has a single request in flight: {share:.0%} of TTFT at the lowest load was "
            "taken for waiting, by the closed loop of estimates (modelled)."
        )
    return notes


def _scaled_prefill(
    served: BenchmarkRows, prompt: Prompt | None, base: Profile, budget: float
) -> _ScaledPrefill:
    """Return the prefill of ``base``, and the factor on it from ``prompt`` or else from TBT.

    The factor is measured over modelled seconds. Its interval goes from the lowest factor of TTFT
    without the modelled waiting to the highest of TTFT, both widened by the error of ``base``.
    ``budget`` is the most prompt tokens of an iteration.
    """
    gamma, delta = prefill_line(base, budget)
    if prompt is None:
        low_factors = high_factors = compare_with(base, served).of(SERVED_TBT).factors
        source = f"No row has TTFT at up to {LIGHT:g} in flight: the time between tokens"
    else:
        modelled = np.ceil(prompt.isl / budget) * gamma + prompt.isl * delta
        low_factors, high_factors = prompt.seconds / modelled, prompt.high / modelled
        source = f"TTFT at {prompt.load:,.3g} in flight"
    isl = float(np.median(served.isl if prompt is None else prompt.isl))
    deviations = scipy.special.ndtri(0.5 + CONFIDENCE / 2)
    margin = float(np.exp(deviations * base.spread))
    return _ScaledPrefill(
        gamma=gamma,
        delta=delta,
        isl=isl,
        iterations=float(np.ceil(isl / budget)),
        factor=float(np.median(low_factors)),
        low=float(low_factors.min()) / margin,
        high=float(high_factors.max()) * margin,
        source=source,
    )


def _limited_prefill(
    prefill: _ScaledPrefill, alpha: float, largest_delta: float, notes: list[str]
) -> tuple[float, float]:
    """Return gamma and delta of ``prefill``, limited by the measured time of mixed iterations.

    Gamma is at most ``alpha``. Delta is at most ``largest_delta``, at which beta is 0. If one of
    them is limited, the other takes the rest of the measured prompt's time, ``prefill.prompt_s``.
    Each limit that applies adds a sentence to ``notes``.
    """
    gamma, delta = prefill.factor * prefill.gamma, prefill.factor * prefill.delta
    if gamma > alpha:
        notes.append(
            f"γ is that of an iteration among decodes, {alpha * 1e3:.3g} ms, and not the "
            f"{gamma * 1e3:.3g} ms of that profile; the rest of a prompt's time is in δ."
        )
        gamma, delta = alpha, (prefill.prompt_s - prefill.iterations * alpha) / prefill.isl
    if delta > largest_delta:
        in_delta_s = largest_delta * prefill.isl
        gamma = min((prefill.prompt_s - in_delta_s) / prefill.iterations, alpha)
        unexplained_s = prefill.prompt_s - prefill.iterations * gamma - in_delta_s
        ignored = f"; {unexplained_s * 1e3:.3g} ms of a prompt are in no iteration and ignored."
        notes.append(
            f"δ is {largest_delta * 1e3:.3g} ms per token, all that the time between tokens grows "
            f"by, and not the {delta * 1e3:.3g} ms of that profile"
            f"{ignored if unexplained_s > 0 else '.'}"
        )
        delta = largest_delta
    return gamma, delta
