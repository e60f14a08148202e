"""Fit a profile of any kind to benchmark rows, and say how far it can be trusted.

Every fit comes with two kinds of check: against the rows it was fitted to, and cross-validated,
where whole configurations (all repeats of one batch, prompt, output and concurrency) were left out
of the fit that predicts them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from simulation.arrays import FloatArray
from simulation.errors import SimulationError
from simulation.performance.adjusted import AdjustedProfile, adjusted
from simulation.performance.curves import DECODE, DENSE, GRID, Curve
from simulation.performance.curves import PREFILL as PREFILL_PART
from simulation.performance.fitting.compare import (
    FITTED,
    PREFILL,
    SERVED_TBT,
    TBT,
    TTFT,
    Residuals,
    checks_of,
    compare_with,
    joined,
    prefill_seconds,
)  # fmt: skip
from simulation.performance.fitting.fit_linear import (
    LinearFit,
    Parameter,
    configurations,
    linear_fit,
)
from simulation.performance.fitting.fit_sweep import is_sweep, prompt_alone, start_beside, sweep_fit
from simulation.performance.fitting.waiting import Waiting
from simulation.performance.linear import LinearProfile
from simulation.performance.profile import Check, Profile
from simulation.performance.rows import BenchmarkRows
from simulation.performance.specs import Provenance
from simulation.performance.table import TableProfile, table_profile

KINDS = ("linear", "table", "operator", "roofline")

LEFT_OUT = "configurations left out of the fit"
FOLDS = 40  # each configuration alone where there are no more, else this many groups of them
STEPS = 30  # of the fixed point between decodes and the prompts beside them
LEAST = 0.05  # a factor of decode below it is no measurement of decode
MAX_BATCH, MAX_BATCH_TOKENS = 256, 2048  # vLLM's API server on A100-class GPUs


@dataclass(frozen=True, slots=True, eq=False)
class FittedProfile:
    """A profile and what its rows say about it; ``residuals`` are of the rows it was fitted to.

    ``parameters``: with 95% intervals for linear profiles; for operator and roofline ones factors,
    with the range that holds 95% of the rows; none for tables.
    """

    profile: Profile
    parameters: tuple[Parameter, ...]
    checks: tuple[Check, ...]
    residuals: Residuals
    notes: tuple[str, ...]


Fitter = Callable[[BenchmarkRows], tuple[Profile, tuple[Parameter, ...], tuple[str, ...]]]


def fit(
    kind: str,
    rows: BenchmarkRows,
    *,
    kv_capacity_tokens: int,
    provenance: Provenance,
    max_batch: int | None = None,
    max_batch_tokens: int | None = None,
    base: Profile | None = None,
    waiting: Waiting | None = None,
    cross_validate: bool = True,
) -> FittedProfile:
    """Fit the rows of one arrangement.

    ``base`` is the uncalibrated profile that an operator or roofline fit scales, to which a linear
    fit of a sweep (``is_sweep``) is tied, and whose prefill one of rows without any takes. With
    ``waiting`` TTFT under load is used and compared too. Limits that are not given are those of the
    rows for a table, those of ``base``, else vLLM's defaults.
    """
    if kind not in KINDS:
        raise SimulationError(f"There is no profile kind {kind!r}; use one of {', '.join(KINDS)}.")
    arrangements = list(rows.arrangements())
    if len(arrangements) != 1:
        names = ", ".join(f"{m} on {tp} x {g}" for (m, g, tp), _ in arrangements)
        raise SimulationError(
            f"A profile is of one arrangement, these rows are of {names}; choose one."
        )
    (model, gpu, tp), _ = arrangements[0]

    def by_line(part: BenchmarkRows) -> tuple[Profile, tuple[Parameter, ...], tuple[str, ...]]:
        budget = max_batch_tokens or MAX_BATCH_TOKENS
        of, spread, start_s = provenance, 0.0, 0.0
        if is_sweep(part):
            if base is None:
                raise SimulationError(
                    "All rows were served with one proportion of isl to osl, which cannot tell "
                    "decodes from prompts, and there is no modelled profile to tie them to; "
                    "measure a second proportion, or use a model with its shape and a GPU with "
                    "its peaks."
                )
            line = sweep_fit(part, base, budget, waiting)
            of = tied_to(base, provenance)
            spread, start_s = base.spread, start_beside(prompt_alone(part, waiting), waiting, base)
        else:
            line = linear_fit(part, budget, base)
            if line.tied:
                of, spread = without_prefill(base, provenance), 0.0 if base is None else base.spread
        most = MAX_BATCH if line.saturation is None else int(line.saturation)
        limits = max_batch or most, budget, kv_capacity_tokens
        profile = linear_profile(line, (model, gpu, tp), *limits, of, spread=spread)
        profile = replace(profile, start_s=start_s)
        return profile, line.parameters, line.notes

    def by_table(part: BenchmarkRows) -> tuple[Profile, tuple[Parameter, ...], tuple[str, ...]]:
        profile: TableProfile = table_profile(
            part,
            kv_capacity_tokens=kv_capacity_tokens,
            provenance=provenance,
            max_batch=max_batch,
            max_batch_tokens=max_batch_tokens,
        )
        return profile, (), profile.notes

    def by_factor(part: BenchmarkRows) -> tuple[Profile, tuple[Parameter, ...], tuple[str, ...]]:
        if base is None:
            raise SimulationError(
                f"A fit of kind {kind} scales an uncalibrated profile; give that profile as base."
            )
        return calibrated(kind, base, part, kv_capacity_tokens, provenance, waiting)

    fitter = {"linear": by_line, "table": by_table}.get(kind, by_factor)
    profile, parameters, notes = fitter(rows)
    comparison = compare_with(profile, rows, FITTED, waiting)
    checks = comparison.checks
    if cross_validate:
        left_out = cross_validated(fitter, rows, waiting)
        if left_out is not None:
            checks += checks_of(left_out, LEFT_OUT)
    with_checks: Profile = replace(profile, checks=checks)  # type: ignore[type-var]
    return FittedProfile(with_checks, parameters, checks, comparison.residuals, notes)


def linear_profile(
    line: LinearFit,
    arrangement: tuple[str, str, int],
    max_batch: int,
    max_batch_tokens: int,
    kv_capacity_tokens: int,
    provenance: Provenance,
    checks: tuple[Check, ...] = (),
    spread: float = 0.0,
) -> LinearProfile:
    """The profile of fitted parameters."""
    model, gpu, tp = arrangement
    alpha, beta, gamma, delta = line.seconds
    return LinearProfile(
        model=model,
        gpu=gpu,
        tp=tp,
        alpha_s=alpha,
        beta_s=beta,
        gamma_s=gamma,
        delta_s=delta,
        max_batch=max_batch,
        max_batch_tokens=max_batch_tokens,
        kv_capacity_tokens=kv_capacity_tokens,
        provenance=provenance,
        checks=checks,
        fitted_decodes=line.decodes,
        fitted_prefill_tokens=line.prefill_tokens,
        fitted_context=line.context,
        spread=spread,
    )


def tied_to(base: Profile, measured: Provenance) -> Provenance:
    """Of a fit in which measurements decide some parameters and ``base`` the rest."""
    return Provenance(
        "modelled",
        f"ITL: {measured.source}. Prefill: TTFT of the same, in the proportions of a {base.kind} "
        "profile (modelled)",
    )


def without_prefill(base: Profile | None, measured: Provenance) -> Provenance:
    """Of a fit to rows that no prefill is in."""
    rest = (
        "assumed, no more than a decode takes" if base is None else f"{base.kind} profile, modelled"
    )
    kind = "assumed" if base is None else "modelled"
    return Provenance(kind, f"ITL: {measured.source}. Prefill: {rest}")


def cross_validated(
    fitter: Fitter, rows: BenchmarkRows, waiting: Waiting | None = None
) -> Residuals | None:
    """Residuals of every configuration under the fit that did not see it; None when no fit is left
    to make. Rows are indexed as in ``rows``."""
    _, group = np.unique(configurations(rows), axis=0, return_inverse=True)
    fold = group.ravel() % FOLDS
    parts = []
    for i in np.unique(fold):
        test = np.flatnonzero(fold == i)
        try:
            profile, _, _ = fitter(rows.take(fold != i))
        except SimulationError:
            continue  # what is left cannot be fitted: the configuration carries the fit
        residuals = compare_with(profile, rows.take(test), LEFT_OUT, waiting).residuals
        parts.append(replace(residuals, row=test[residuals.row]))
    return joined(parts) if parts else None


def calibrated(
    kind: str,
    base: Profile,
    rows: BenchmarkRows,
    kv_capacity_tokens: int,
    provenance: Provenance,
    waiting: Waiting | None = None,
) -> tuple[AdjustedProfile, tuple[Parameter, ...], tuple[str, ...]]:
    """``base`` with its prefill and its decode each times the median of measured over predicted;
    a phase that was not measured takes the other's factor.

    Without a prefill time, that of a prompt follows from TTFT at the lowest load. The time between
    tokens of a served row holds the prompts of others: the factor of decode is the one with which
    it comes out beside them.
    """
    residuals = compare_with(base, rows, FITTED).residuals
    factors: dict[str, FloatArray] = {}
    start_s = base.start_s
    notes: tuple[str, ...] = (
        f"Its shape is that of the {base.kind} profile ({base.provenance.kind}); the rows decide "
        "one factor per phase (measured).",
    )
    for phase, quantities in (("prefill", (PREFILL, TTFT)), ("decode", (TBT, SERVED_TBT))):
        which = np.isin(residuals.quantity, quantities)
        if which.any():
            factors[phase] = residuals.measured_s[which] / residuals.predicted_s[which]
            start_s = 0.0 if phase == "prefill" else start_s
    if "prefill" not in factors and waiting is not None:
        prompt = prompt_alone(rows, waiting)
        if prompt is not None:
            modelled = prefill_seconds(base, np.ones(prompt.isl.size), prompt.isl)
            factors["prefill"] = prompt.seconds / modelled
            start_s = start_beside(prompt, waiting, base)
            notes += (
                f"The factor of prefill is of TTFT at {prompt.load:,.3g} in flight, without what "
                "the closed loop of estimates takes for waiting (modelled).",
            )
    if not factors:
        raise SimulationError(
            "No row can be compared with the profile: each needs a prefill time, or the time "
            "between tokens at a batch or concurrency, with isl and osl."
        )
    notes += tuple(
        f"No {phase} was measured; it takes the factor of the other phase."
        for phase in ("prefill", "decode")
        if phase not in factors
    )
    some = next(iter(factors.values()))
    decode, prefill = factors.get("decode", some), factors.get("prefill", some)
    which = np.isin(residuals.quantity, (TBT, SERVED_TBT))
    batches = residuals.size[which] if which.any() else np.ones(1)
    tokens = residuals.size[~which] if (~which).any() else np.full(1, 1024.0)
    ends = float(batches.max()), float(tokens.max())
    pre = float(np.median(prefill))
    if "prefill" in factors and (residuals.quantity == SERVED_TBT).any():
        decode = beside_prompts(base, rows, pre, decode, ends)
    curve = by_phase(base.curve, float(np.median(decode)), pre, *ends)
    parameters = tuple(
        Parameter(f"{name} factor", middle, low, high, "")
        for name, f in (("decode", decode), ("prefill", prefill))
        for low, middle, high in [_spread_of(f)]
    )
    profile = adjusted(
        base,
        kv_capacity_tokens=kv_capacity_tokens,
        provenance=provenance,
        kind=kind,
        curve=curve,
        start_s=start_s,
        checks=(),
    )
    return profile, parameters, notes


def _spread_of(factors: FloatArray) -> tuple[float, float, float]:
    """The middle of the rows' factors, and the ends that hold 95% of them, unknown of one row."""
    if factors.size < 2:
        return np.nan, float(factors[0]), np.nan
    low, middle, high = np.quantile(factors, (0.025, 0.5, 0.975)).tolist()
    return low, middle, high


def beside_prompts(
    base: Profile,
    rows: BenchmarkRows,
    prefill: float,
    decode: FloatArray,
    ends: tuple[float, float],
) -> FloatArray:
    """Factors of decode, one per comparison of TBT, when prompts among decodes take ``prefill``
    times what ``base`` says: a fixed point, reached where a step changes less than a thousandth."""
    factor = float(np.median(decode))
    ratio = decode / factor
    for _ in range(STEPS):
        curve = by_phase(base.curve, factor, prefill, *ends)
        residuals = compare_with(adjusted(base, curve=curve), rows, FITTED).residuals
        which = np.isin(residuals.quantity, (TBT, SERVED_TBT))
        ratio = residuals.measured_s[which] / residuals.predicted_s[which]
        step = float(np.clip(np.median(ratio), 0.5, 2.0))
        factor = max(factor * step, LEAST)
        if abs(step - 1.0) < 1e-3:
            break
    return factor * ratio


def by_phase(curve: Curve, decode: float, prefill: float, decodes: float, tokens: float) -> Curve:
    """A curve with its decode and prefill parts each times a factor. The dense part, which both
    share, takes the one of decode up to ``decodes`` tokens, that of prefill from ``tokens`` on, and
    goes from one to the other with the logarithm of the tokens between."""
    if curve.kind != GRID:
        raise SimulationError("Only an operator or roofline profile can be calibrated by phase.")
    values = curve.values.copy()
    values[1] *= min(decode, prefill)
    for place, factor in ((DECODE, decode), (PREFILL_PART, prefill)):
        first, n, m = (int(v) for v in values[place : place + 3])
        values[first + n + m : first + n + m + n * m] *= factor
    first, n, m = (int(v) for v in values[DENSE : DENSE + 3])
    knots = np.log(np.maximum(values[first : first + n], 1.0))
    ends = np.log([decodes, max(tokens, 2 * decodes)])
    share = np.interp(knots, ends, [0.0, 1.0])
    table = values[first + n + m : first + n + m + n * m].reshape(n, m)
    table *= (decode ** (1 - share) * prefill**share)[:, None]
    return Curve(values)
