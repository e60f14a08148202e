"""Fit a profile of any kind to benchmark rows, and check its error.

Every fit has two kinds of check. One is on the rows of the fit. The other is cross-validated: a
configuration (all repeats of one batch, prompt, output and concurrency) is predicted by a fit
without it.
"""

from dataclasses import dataclass, replace

import numpy as np

from simulation.arrays import FloatArray
from simulation.errors import SimulationError
from simulation.performance.adjusted_profile import AdjustedProfile, adjust_profile
from simulation.performance.curves import scaled_by_phase
from simulation.performance.fitting.compare import (  # fmt: skip
    FITTED,
    PREFILL,
    SERVED_TBT,
    TBT,
    TTFT,
    Residuals,
    Waiting,
    checks_of,
    combined_provenance,
    compare_with,
    concatenate_residuals,
    prefill_seconds,
)
from simulation.performance.fitting.fit_linear import Parameter, configurations, linear_fit
from simulation.performance.fitting.fit_sweep import (
    is_sweep,
    prompt_alone,
    start_outside_prompt,
    sweep_fit,
)
from simulation.performance.linear import LinearProfile
from simulation.performance.profile import Profile
from simulation.performance.rows import BenchmarkRows
from simulation.performance.specs import PHASES, Phase, Provenance
from simulation.performance.table import table_curve

KINDS = ("linear", "table", "operator", "roofline")

LEFT_OUT = "configurations left out of the fit"
FOLDS = 40  # most folds of the cross-validation; with fewer configurations, one fold for each
STEPS = 30  # most steps of the fixed point in ``decode_factors``
LEAST = 0.05  # smallest factor of decode; a smaller one would come from prompts and not decodes
PROMPT = 1024.0  # tokens from which the factor of prefill applies if no prefill was measured
MAX_BATCH, MAX_BATCH_TOKENS = 256, 2048  # vLLM's API server on A100-class GPUs

Fit = tuple[Profile, tuple[Parameter, ...], tuple[str, ...]]  # its parameters, and notes


@dataclass(frozen=True, slots=True, eq=False)
class FittedProfile:
    """A fitted profile with its errors, and the residuals of the rows of the fit.

    ``parameters`` of a linear profile have 95% confidence intervals. Those of an operator or
    roofline profile are factors with the range of 95% of the rows. A table has none.
    """

    profile: Profile
    parameters: tuple[Parameter, ...]
    residuals: Residuals
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Fitter:
    """Settings with which a profile is fitted to the rows of one arrangement.

    By default, the limits ``max_batch`` and ``max_batch_tokens`` of a table come from the rows, and
    those of an operator or roofline profile from ``base``. The largest batch of a linear profile
    comes from the rows if throughput falls beyond it, else from vLLM's defaults.
    """

    kind: str  # one of KINDS
    kv_capacity_tokens: int
    provenance: Provenance
    max_batch: int | None = None
    max_batch_tokens: int | None = None
    # An uncalibrated profile. An operator or roofline fit scales it. A linear fit uses its prefill
    # if the rows have none, and its proportions if the rows are a sweep (``is_sweep``).
    base: Profile | None = None
    waiting: Waiting | None = None  # if given, TTFT under load is used and compared too

    def fit(self, rows: BenchmarkRows, cross_validate: bool = True) -> FittedProfile:
        """Return a profile that is fitted to the rows, with its errors.

        Raises SimulationError for an unknown kind, several arrangements, a missing ``base``, or
        rows that cannot be fitted.
        """
        if self.kind not in KINDS:
            raise SimulationError(
                f"There is no profile kind {self.kind!r}. Use one of {', '.join(KINDS)}."
            )
        profile, parameters, notes = self._fit(rows)
        residuals = compare_with(profile, rows, self.waiting)
        checks = checks_of(residuals, FITTED)
        if cross_validate:
            left_out = self.cross_validated(rows)
            if left_out is not None:
                checks += checks_of(left_out, LEFT_OUT)
        with_checks: Profile = replace(profile, checks=checks)  # type: ignore[type-var]
        return FittedProfile(with_checks, parameters, residuals, notes)

    def _fit(self, rows: BenchmarkRows) -> Fit:
        """Return the profile of the rows, its parameters and notes."""
        if self.kind == "linear":
            return self.linear(rows)
        if self.kind == "table":
            return self.table(rows)
        if self.base is None:
            raise SimulationError(
                f"A fit of kind {self.kind} scales an uncalibrated profile. "
                "Give that profile as base."
            )
        rows.single_arrangement()  # raises if there are several
        return self.calibrate(rows, self.base)

    def linear(self, rows: BenchmarkRows) -> Fit:
        """Return the linear profile of the rows (methods.md C1), its parameters and notes.

        Without a measured prefill, or for a sweep, prefill comes from ``base``. A sweep has one
        prompt and output length at several loads.
        """
        arrangement, base = rows.single_arrangement(), self.base
        budget = self.max_batch_tokens or MAX_BATCH_TOKENS
        phases: tuple[Phase, Phase] | None = None
        spread, start_s = 0.0, 0.0
        if is_sweep(rows):
            if base is None:
                raise SimulationError(
                    "All rows were served with one proportion of isl to osl. They cannot separate "
                    "decodes from prompts without a modelled profile. "
                    "Measure a second proportion, or use a model with its shape and a GPU with "
                    "its peaks."
                )
            fitted = sweep_fit(rows, base, budget, self.waiting)
            # TTFT gives the size of gamma and delta, ``base`` their proportion.
            tied = f"TTFT of {self.provenance.source}, in the proportions of a {base.kind} profile"
            prefill_origin = Provenance("modelled", f"{tied} (modelled)")
            phases = Phase(prefill_origin), Phase(self.provenance)
            spread = base.spread
            prompt = prompt_alone(rows, self.waiting)
            start_s = start_outside_prompt(prompt, self.waiting, base)
        else:
            fitted = linear_fit(rows, budget, base)
            if fitted.tied:
                phases = Phase(provenance_without_rows(base)), Phase(self.provenance)
                spread = 0.0 if base is None else base.spread
        profile = LinearProfile(
            *arrangement,
            *fitted.seconds,
            max_batch=self.max_batch or int(fitted.saturation or MAX_BATCH),
            max_batch_tokens=budget,
            kv_capacity_tokens=self.kv_capacity_tokens,
            provenance=combined_provenance(phases) if phases else self.provenance,
            fitted_decodes=fitted.decodes,
            fitted_prefill_tokens=fitted.prefill_tokens,
            fitted_context=fitted.context,
            spread=spread,
            start_s=start_s,
            phases=phases,
        )
        return profile, fitted.parameters, fitted.notes

    def table(self, rows: BenchmarkRows) -> Fit:
        """Return the table profile of the rows, and notes.

        Default limits are the largest measured batch and the longest single prompt.
        """
        model, gpu, tp = rows.single_arrangement()
        used_rows = rows.take(rows.ran_as_one_batch)
        longest_prompt = np.nanmax(used_rows.isl[used_rows.batch == 1], initial=0.0)
        note = (
            f"{rows.rows - used_rows.rows} of {rows.rows} rows excluded: their batch took over 1.5 "
            "times its prefill and decode, so it exceeded the memory."
        )
        profile = AdjustedProfile(
            kind="table",
            model=model,
            gpu=gpu,
            tp=tp,
            curve=table_curve(rows),
            max_batch=self.max_batch or int(np.nanmax(used_rows.batch)),
            max_batch_tokens=self.max_batch_tokens or max(1, int(longest_prompt)),
            kv_capacity_tokens=self.kv_capacity_tokens,
            provenance=self.provenance,
        )
        return profile, (), (note,) if used_rows.rows < rows.rows else ()

    def calibrate(self, rows: BenchmarkRows, base: Profile) -> Fit:
        """Return ``base`` with prefill and decode scaled by their medians of measured / predicted.

        A phase without measurements stays as modelled. If no prefill time was measured and
        ``self.waiting`` is given, TTFT at the lowest load, less the waiting, stands for the prefill
        time. Raises SimulationError if no row can be compared.
        """
        residuals = compare_with(base, rows)
        of_decode = residuals.take(np.isin(residuals.quantity, (TBT, SERVED_TBT)))
        of_prefill = residuals.take(np.isin(residuals.quantity, (PREFILL, TTFT)))
        tbt_ratios = of_decode.factors
        prefill_ratios, start_s, prefill_notes = self._prefill_factors(
            rows, base, of_prefill.factors
        )
        measured = {"prefill": prefill_ratios.size > 0, "decode": tbt_ratios.size > 0}
        if not any(measured.values()):
            raise SimulationError(
                "No row can be compared with the profile. Each needs a prefill time, or the time "
                "between tokens at a batch or concurrency, with isl and osl."
            )
        unmeasured_phases = [phase for phase in PHASES if not measured[phase]]
        notes = (
            f"Its shape is that of the {base.kind} profile ({base.provenance.kind}); the rows "
            "decide one factor per phase (measured).",
            *prefill_notes,
            *(f"No {phase} was measured; it stays as modelled." for phase in unmeasured_phases),
        )
        prefill_ratios = prefill_ratios if prefill_ratios.size else np.ones(1)
        tbt_ratios = tbt_ratios if tbt_ratios.size else np.ones(1)
        prefill_factor = float(np.median(prefill_ratios))
        # Largest measured size of decode (sequences) and of prefill (tokens)
        sequences = float(of_decode.size.max()) if of_decode.size.any() else 1.0
        tokens = float(of_prefill.size.max()) if of_prefill.size.any() else PROMPT
        largest = sequences, tokens
        if (residuals.quantity == SERVED_TBT).any():
            tbt_ratios = decode_factors(base, rows, prefill_factor, tbt_ratios, largest)
        decode_factor = float(np.median(tbt_ratios))
        sizes, modelled = {"prefill": tokens, "decode": sequences}, provenance_without_rows(base)
        phases = tuple(
            Phase(self.provenance, sizes[phase]) if measured[phase] else Phase(modelled)
            for phase in PHASES
        )
        profile = adjust_profile(
            base,
            kv_capacity_tokens=self.kv_capacity_tokens,
            provenance=combined_provenance(phases),
            phases=phases,
            kind=self.kind,
            curve=scaled_by_phase(base.curve, decode_factor, prefill_factor, *largest),
            start_s=start_s,
            checks=(),
        )
        parameters = _factor("decode factor", tbt_ratios), _factor("prefill factor", prefill_ratios)
        return profile, parameters, notes

    def _prefill_factors(
        self, rows: BenchmarkRows, base: Profile, measured: FloatArray
    ) -> tuple[FloatArray, float, tuple[str, ...]]:
        """Return the factors on prefill times, the seconds from arrival to prefill, and notes.

        ``measured`` are the factors of measured prefill times and of TTFT of lone requests. If it
        is empty, TTFT at the lowest load is used. No factors are returned without such a TTFT.
        """
        if measured.size:
            return measured, 0.0, ()  # a measured prefill time or TTFT includes the start
        prompt = None if self.waiting is None else prompt_alone(rows, self.waiting)
        if prompt is None:
            return measured, base.start_s, ()
        ones = np.ones(prompt.isl.size)
        factors = prompt.seconds / prefill_seconds(base, ones, prompt.isl)
        note = (
            f"The factor of prefill is of TTFT at {prompt.load:,.3g} in flight, without "
            "what the closed loop of estimates takes for waiting (modelled)."
        )
        return factors, start_outside_prompt(prompt, self.waiting, base), (note,)

    def cross_validated(self, rows: BenchmarkRows) -> Residuals | None:
        """Return the residuals of each row, predicted by a fit without its configuration.

        A configuration is all repeats of one measurement. They are left out in FOLDS groups. A
        group that the fit needs has no residuals; None if it needs all of them.
        """
        _, group = np.unique(configurations(rows), axis=0, return_inverse=True)
        fold = group.ravel() % FOLDS
        parts = []
        for left_out in np.unique(fold):
            test = np.flatnonzero(fold == left_out)
            try:
                profile, _, _ = self._fit(rows.take(fold != left_out))
            except SimulationError:
                continue  # no fit is possible without this fold
            residuals = compare_with(profile, rows.take(test), self.waiting)
            parts.append(replace(residuals, row=test[residuals.row]))
        return concatenate_residuals(parts) if parts else None


def provenance_without_rows(base: Profile | None) -> Provenance:
    """Return the provenance of a phase without rows: that of ``base``, or else an assumption."""
    if base is None:
        return Provenance("assumed", "assumed, no more than a decode takes")
    return Provenance("modelled", f"{base.kind} profile, modelled")


def _factor(name: str, factors: FloatArray) -> Parameter:
    """Return the median of the factors and their 2.5% and 97.5% quantiles; NaN for one factor."""
    if factors.size < 2:
        return Parameter(name, float(factors[0]), np.nan, np.nan, "")
    low, middle, high = np.quantile(factors, (0.025, 0.5, 0.975)).tolist()
    return Parameter(name, middle, low, high, "")


def decode_factors(
    base: Profile,
    rows: BenchmarkRows,
    prefill: float,
    decode: FloatArray,
    largest: tuple[float, float],
) -> FloatArray:
    """Return the factors of decode, one per comparison of TBT, given the factor of prefill.

    The TBT of a served row includes prompts of other users. So the prediction depends on both
    factors, and that of decode is found by fixed-point iteration from the first factors ``decode``.
    Each step multiplies the factor by the median ratio of measured to predicted TBT. It ends when
    that changes the factor by less than a thousandth, or after STEPS steps. ``largest`` are the
    most sequences and prompt tokens measured, for ``scaled_by_phase``.
    """
    factor = float(np.median(decode))
    ratio = decode / factor
    for _ in range(STEPS):
        curve = scaled_by_phase(base.curve, factor, prefill, *largest)
        residuals = compare_with(adjust_profile(base, curve=curve), rows)
        ratio = residuals.take(np.isin(residuals.quantity, (TBT, SERVED_TBT))).factors
        step = float(np.clip(np.median(ratio), 0.5, 2.0))
        factor = max(factor * step, LEAST)
        if abs(step - 1.0) < 1e-3:
            break
    return factor * ratio
