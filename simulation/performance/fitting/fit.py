"""Fit a profile of any kind to benchmark rows, and check its error.

Every fit has two kinds of check. One is on the rows of the fit. The other is cross-validated: a
configuration (all repeats of one batch, prompt, output and concurrency) is predicted by a fit
without it.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from simulation.arrays import FloatArray
from simulation.errors import SimulationError
from simulation.performance.adjusted_profile import AdjustedProfile, adjusted
from simulation.performance.curves import DECODE, DENSE, GRID, Curve, seconds_of_part
from simulation.performance.curves import PREFILL as PREFILL_PART
from simulation.performance.fitting.compare import (  # fmt: skip
    FITTED,
    PREFILL,
    SERVED_TBT,
    TBT,
    TTFT,
    Residuals,
    checks_of,
    compare_with,
    concatenate_residuals,
    prefill_seconds,
)
from simulation.performance.fitting.first_token_wait import Waiting
from simulation.performance.fitting.fit_linear import (
    LinearFit,
    Parameter,
    configurations,
    linear_fit,
)
from simulation.performance.fitting.fit_sweep import is_sweep, prompt_alone, start_beside, sweep_fit
from simulation.performance.fitting.phases import together
from simulation.performance.linear import LinearProfile
from simulation.performance.profile import Check, Profile
from simulation.performance.rows import BenchmarkRows
from simulation.performance.specs import PHASES, Phase, Provenance
from simulation.performance.table import table_profile

KINDS = ("linear", "table", "operator", "roofline")

LEFT_OUT = "configurations left out of the fit"
FOLDS = 40  # most folds of the cross-validation; with fewer configurations, one fold for each
STEPS = 30  # most steps of the fixed point in ``beside_prompts``
LEAST = 0.05  # smallest factor of decode; a smaller one would come from prompts and not decodes
MAX_BATCH, MAX_BATCH_TOKENS = 256, 2048  # vLLM's API server on A100-class GPUs


@dataclass(frozen=True, slots=True, eq=False)
class FittedProfile:
    """A fitted profile with its errors, and the residuals of the rows of the fit.

    ``parameters`` of a linear profile have 95% confidence intervals. Those of an operator or
    roofline profile are factors with the range of 95% of the rows. A table has none.
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
    """Fit a profile of ``kind`` to the rows of one arrangement.

    ``base`` is an uncalibrated profile. An operator or roofline fit scales it. A linear fit uses
    its prefill if the rows have none, and its proportions if the rows are a sweep (``is_sweep``).
    With ``waiting``, TTFT under load is used and compared too.

    The default limits of a table come from the rows, those of an operator or roofline profile from
    ``base``. The largest batch of a linear profile comes from the rows if throughput falls, else
    from vLLM's defaults. Raises SimulationError for an unknown kind, several arrangements, a
    missing ``base``, or rows that cannot be fitted.
    """
    if kind not in KINDS:
        raise SimulationError(f"There is no profile kind {kind!r}. Use one of {', '.join(KINDS)}.")
    arrangements = list(rows.arrangements())
    if len(arrangements) != 1:
        names = ", ".join(f"{m} on {tp} x {g}" for (m, g, tp), _ in arrangements)
        raise SimulationError(
            f"A profile is of one arrangement, these rows are of {names}. Choose one."
        )
    (model, gpu, tp), _ = arrangements[0]

    def by_line(part: BenchmarkRows) -> tuple[Profile, tuple[Parameter, ...], tuple[str, ...]]:
        """Return the linear profile of the rows."""
        budget = max_batch_tokens or MAX_BATCH_TOKENS
        pair: tuple[Phase, Phase] | None = None
        spread, start_s = 0.0, 0.0
        if is_sweep(part):
            if base is None:
                raise SimulationError(
                    "All rows were served with one proportion of isl to osl. They cannot separate "
                    "decodes from prompts without a modelled profile. "
                    "Measure a second proportion, or use a model with its shape and a GPU with "
                    "its peaks."
                )
            line = sweep_fit(part, base, budget, waiting)
            pair = (Phase(tied_to(base, provenance)), Phase(provenance))
            spread, start_s = base.spread, start_beside(prompt_alone(part, waiting), waiting, base)
        else:
            line = linear_fit(part, budget, base)
            if line.tied:
                pair = (Phase(unmeasured(base)), Phase(provenance))
                spread = 0.0 if base is None else base.spread
        default_max_batch = MAX_BATCH if line.saturation is None else int(line.saturation)
        limits = max_batch or default_max_batch, budget, kv_capacity_tokens
        source = together(pair) if pair else provenance
        profile = linear_profile(line, (model, gpu, tp), *limits, source, spread=spread)
        profile = replace(profile, start_s=start_s, phases=pair)
        return profile, line.parameters, line.notes

    def by_table(part: BenchmarkRows) -> tuple[Profile, tuple[Parameter, ...], tuple[str, ...]]:
        """Return the table profile of the rows."""
        profile = table_profile(
            part,
            kv_capacity_tokens=kv_capacity_tokens,
            provenance=provenance,
            max_batch=max_batch,
            max_batch_tokens=max_batch_tokens,
        )
        return profile, (), profile.notes

    def by_factor(part: BenchmarkRows) -> tuple[Profile, tuple[Parameter, ...], tuple[str, ...]]:
        """Return the base profile scaled to the rows."""
        if base is None:
            raise SimulationError(
                f"A fit of kind {kind} scales an uncalibrated profile. Give that profile as base."
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
    spread: float = 0.0,
) -> LinearProfile:
    """Return the profile with the parameters ``line``, and the range of sizes it was fitted to."""
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
        fitted_decodes=line.decodes,
        fitted_prefill_tokens=line.prefill_tokens,
        fitted_context=line.context,
        spread=spread,
    )


def tied_to(base: Profile, measured: Provenance) -> Provenance:
    """Return the provenance of a prefill that has measured TTFT, in the proportions of ``base``."""
    return Provenance(
        "modelled",
        f"TTFT of {measured.source}, in the proportions of a {base.kind} profile (modelled)",
    )


def unmeasured(base: Profile | None) -> Provenance:
    """Return the provenance of a phase without rows: ``base``, or an assumption without it."""
    if base is None:
        return Provenance("assumed", "assumed, no more than a decode takes")
    return Provenance("modelled", f"{base.kind} profile, modelled")


def cross_validated(
    fitter: Fitter, rows: BenchmarkRows, waiting: Waiting | None = None
) -> Residuals | None:
    """Return the residuals of each configuration under a fit to the others.

    Configurations are left out in FOLDS groups. ``row`` is an index into ``rows``. None if no group
    can be left out of the fit. ``waiting`` predicts TTFT under load, if given.
    """
    _, group = np.unique(configurations(rows), axis=0, return_inverse=True)
    fold = group.ravel() % FOLDS
    parts = []
    for i in np.unique(fold):
        test = np.flatnonzero(fold == i)
        try:
            profile, _, _ = fitter(rows.take(fold != i))
        except SimulationError:
            continue  # no fit is possible without this fold
        residuals = compare_with(profile, rows.take(test), LEFT_OUT, waiting).residuals
        parts.append(replace(residuals, row=test[residuals.row]))
    return concatenate_residuals(parts) if parts else None


def calibrated(
    kind: str,
    base: Profile,
    rows: BenchmarkRows,
    kv_capacity_tokens: int,
    provenance: Provenance,
    waiting: Waiting | None = None,
) -> tuple[AdjustedProfile, tuple[Parameter, ...], tuple[str, ...]]:
    """Return ``base`` with prefill and decode scaled by their medians of measured over predicted.

    A phase without measurements stays as modelled. If no prefill time was measured and ``waiting``
    is given, TTFT at the lowest load gives the time of a prompt. The TBT of a served row includes
    prompts of other users. The factor of decode is fitted with these prompts included
    (``beside_prompts``).

    Returns the profile, its factors and notes. Raises SimulationError if no row can be compared.
    """
    residuals = compare_with(base, rows, FITTED).residuals
    factors: dict[str, FloatArray] = {}
    start_s = base.start_s
    notes: tuple[str, ...] = (
        f"Its shape is that of the {base.kind} profile ({base.provenance.kind}); the rows decide "
        "one factor per phase (measured).",
    )
    for phase, quantities in (("prefill", (PREFILL, TTFT)), ("decode", (TBT, SERVED_TBT))):
        selected = np.isin(residuals.quantity, quantities)
        if selected.any():
            factors[phase] = residuals.measured_s[selected] / residuals.predicted_s[selected]
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
            "No row can be compared with the profile. Each needs a prefill time, or the time "
            "between tokens at a batch or concurrency, with isl and osl."
        )
    notes += tuple(
        f"No {phase} was measured; it stays as modelled."
        for phase in PHASES
        if phase not in factors
    )
    decode, prefill = factors.get("decode", np.ones(1)), factors.get("prefill", np.ones(1))
    selected = np.isin(residuals.quantity, (TBT, SERVED_TBT))
    batches = residuals.size[selected] if selected.any() else np.ones(1)
    tokens = residuals.size[~selected] if (~selected).any() else np.full(1, 1024.0)
    largest = float(batches.max()), float(tokens.max())
    prefill_factor = float(np.median(prefill))
    if (residuals.quantity == SERVED_TBT).any():
        decode = beside_prompts(base, rows, prefill_factor, decode, largest)
    curve = by_phase(base.curve, float(np.median(decode)), prefill_factor, *largest)
    parameters = tuple(
        Parameter(f"{name} factor", middle, low, high, "")
        for name, factor_samples in (("decode", decode), ("prefill", prefill))
        for low, middle, high in [_spread_of(factor_samples)]
    )
    measured = dict(zip(PHASES, (Phase(provenance, size) for size in largest[::-1]), strict=True))
    of_prefill, of_decode = (
        measured[phase] if phase in factors else Phase(unmeasured(base)) for phase in PHASES
    )
    profile = adjusted(
        base,
        kv_capacity_tokens=kv_capacity_tokens,
        provenance=together((of_prefill, of_decode)),
        phases=(of_prefill, of_decode),
        kind=kind,
        curve=curve,
        start_s=start_s,
        checks=(),
    )
    return profile, parameters, notes


def _spread_of(factors: FloatArray) -> tuple[float, float, float]:
    """Return the 2.5%, 50% and 97.5% quantiles of the factors.

    With one factor, the outer quantiles are NaN.
    """
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
    """Return the factors of decode, one per comparison of TBT, given the factor of prefill.

    Predictions include the prompts among the decodes, so the factor is found by a fixed point. It
    ends when a step changes the factor by less than a thousandth, or after STEPS steps.
    """
    factor = float(np.median(decode))
    ratio = decode / factor
    for _ in range(STEPS):
        curve = by_phase(base.curve, factor, prefill, *ends)
        residuals = compare_with(adjusted(base, curve=curve), rows, FITTED).residuals
        selected = np.isin(residuals.quantity, (TBT, SERVED_TBT))
        ratio = residuals.measured_s[selected] / residuals.predicted_s[selected]
        step = float(np.clip(np.median(ratio), 0.5, 2.0))
        factor = max(factor * step, LEAST)
        if abs(step - 1.0) < 1e-3:
            break
    return factor * ratio


def by_phase(curve: Curve, decode: float, prefill: float, decodes: float, tokens: float) -> Curve:
    """Return a curve with its parts scaled by the factors ``decode`` and ``prefill``.

    Both phases share the dense part. Its factor is that of decode up to ``decodes`` tokens and that
    of prefill from ``tokens`` on. Between them it is interpolated over the log of the tokens.
    """
    if curve.kind != GRID:
        raise SimulationError("Only an operator or roofline profile can be calibrated by phase.")
    values = curve.values.copy()
    values[1] *= min(decode, prefill)  # the seconds by which decode and prefill overlap
    for header_index, factor in ((DECODE, decode), (PREFILL_PART, prefill)):
        seconds_of_part(values, header_index)[:] *= factor
    table = seconds_of_part(values, DENSE)
    first = int(values[DENSE])
    knots = np.log(np.maximum(values[first : first + len(table)], 1.0))
    ends = np.log([decodes, max(tokens, 2 * decodes)])
    share = np.interp(knots, ends, [0.0, 1.0])
    table *= (decode ** (1 - share) * prefill**share)[:, None]
    return Curve(values)
