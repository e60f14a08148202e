"""Fit a profile of any kind to benchmark rows, and say how far it can be trusted.

Every fit comes with two kinds of check: against the rows it was fitted to, and cross-validated,
where whole configurations (all repeats of one batch, prompt, output and concurrency) were left out
of the fit that predicts them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from simulation.errors import SimulationError
from simulation.performance.compare import (
    FITTED,
    PREFILL,
    SERVED_TBT,
    TBT,
    TTFT,
    Residuals,
    checks_of,
    compare_with,
    joined,
)  # fmt: skip
from simulation.performance.curves import DECODE, DENSE, GRID, Curve
from simulation.performance.curves import PREFILL as PREFILL_PART
from simulation.performance.fit_linear import LinearFit, Parameter, configurations, linear_fit
from simulation.performance.linear import LinearProfile
from simulation.performance.profile import Check, Profile
from simulation.performance.rows import BenchmarkRows
from simulation.performance.specs import Provenance
from simulation.performance.table import TableProfile, table_profile

FloatArray = npt.NDArray[np.float64]

KINDS = ("linear", "table", "operator", "roofline")

LEFT_OUT = "configurations left out of the fit"
FOLDS = 40  # each configuration alone where there are no more, else this many groups of them
MAX_BATCH, MAX_BATCH_TOKENS = 256, 2048  # vLLM's API server on A100-class GPUs


@dataclass(frozen=True, slots=True)
class CalibratedProfile:
    """An operator or roofline profile with one measured factor for each phase."""

    model: str
    gpu: str
    tp: int
    max_batch: int
    max_batch_tokens: int
    kv_capacity_tokens: int
    provenance: Provenance
    kind: str
    curve: Curve
    checks: tuple[Check, ...] = ()


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
    cross_validate: bool = True,
) -> FittedProfile:
    """Fit the rows of one arrangement.

    ``base`` is the uncalibrated profile that an operator or roofline fit scales. Limits that are
    not given are those of the rows for a table, those of ``base``, else vLLM's defaults.
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
        found = linear_fit(part, budget)
        profile = linear_profile(
            found, (model, gpu, tp), max_batch or MAX_BATCH, budget, kv_capacity_tokens, provenance
        )
        return profile, found.parameters, found.notes

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
        return calibrated(kind, base, part, kv_capacity_tokens, provenance)

    fitter = {"linear": by_line, "table": by_table}.get(kind, by_factor)
    profile, parameters, notes = fitter(rows)
    own = compare_with(profile, rows, FITTED)
    checks = own.checks
    if cross_validate:
        left_out = cross_validated(fitter, rows)
        if left_out is not None:
            checks += checks_of(left_out, LEFT_OUT)
    with_checks: Profile = replace(profile, checks=checks)  # type: ignore[type-var]
    return FittedProfile(with_checks, parameters, checks, own.residuals, notes)


def linear_profile(
    found: LinearFit,
    arrangement: tuple[str, str, int],
    max_batch: int,
    max_batch_tokens: int,
    kv_capacity_tokens: int,
    provenance: Provenance,
    checks: tuple[Check, ...] = (),
) -> LinearProfile:
    """The profile of fitted parameters."""
    model, gpu, tp = arrangement
    alpha, beta, gamma, delta = found.seconds
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
        fitted_decodes=found.decodes,
        fitted_prefill_tokens=found.prefill_tokens,
    )


def cross_validated(fitter: Fitter, rows: BenchmarkRows) -> Residuals | None:
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
        found = compare_with(profile, rows.take(test), LEFT_OUT).residuals
        parts.append(replace(found, row=test[found.row]))
    return joined(parts) if parts else None


def calibrated(
    kind: str,
    base: Profile,
    rows: BenchmarkRows,
    kv_capacity_tokens: int,
    provenance: Provenance,
) -> tuple[CalibratedProfile, tuple[Parameter, ...], tuple[str, ...]]:
    """``base`` with its prefill and its decode each times the median of measured over predicted;
    a phase that was not measured takes the other's factor."""
    found = compare_with(base, rows, FITTED).residuals
    factors: dict[str, FloatArray] = {}
    for phase, quantities in (("prefill", (PREFILL, TTFT)), ("decode", (TBT, SERVED_TBT))):
        which = np.isin(found.quantity, quantities)
        if which.any():
            factors[phase] = found.measured_s[which] / found.predicted_s[which]
    if not factors:
        raise SimulationError(
            "No row can be compared with the profile: each needs a prefill time, or the time "
            "between tokens at a batch or concurrency, with isl and osl."
        )
    notes = tuple(
        f"No {phase} was measured; it takes the factor of the other phase."
        for phase in ("prefill", "decode")
        if phase not in factors
    )
    some = next(iter(factors.values()))
    decode, prefill = factors.get("decode", some), factors.get("prefill", some)
    which = np.isin(found.quantity, (TBT, SERVED_TBT))
    batches = found.size[which] if which.any() else np.ones(1)
    tokens = found.size[~which] if (~which).any() else np.full(1, 1024.0)
    curve = by_phase(
        base.curve,
        float(np.median(decode)), float(np.median(prefill)), float(batches.max()),
        float(tokens.max()),
    )  # fmt: skip
    parameters = tuple(
        Parameter(f"{name} factor", middle, low, high, "")
        for name, f in (("decode", decode), ("prefill", prefill))
        for low, middle, high in [np.quantile(f, (0.025, 0.5, 0.975)).tolist()]
    )
    profile = CalibratedProfile(
        model=base.model, gpu=base.gpu, tp=base.tp, max_batch=base.max_batch,
        max_batch_tokens=base.max_batch_tokens, kv_capacity_tokens=kv_capacity_tokens,
        provenance=provenance, kind=kind, curve=curve,
    )  # fmt: skip
    return profile, parameters, notes


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
