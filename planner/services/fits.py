"""From measured rows to profiles: fitted, compared with further rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import polars as pl

from planner import catalogue
from planner.catalogue.estimating import estimate_fit
from planner.errors import CatalogueError, PlannerError
from planner.models import Calibration, ProfileVersion, User
from planner.selectors.calibrations import calibration_rows
from planner.selectors.hardware import gpu_get, model_get, model_in
from planner.selectors.profiles import profile_get
from planner.services.access import check_may_plan
from planner.services.computed import COMPUTED, computed_profile, kernel_calibrations
from planner.services.once import key_of
from planner.services.profiles import profile_keep
from simulation.errors import SimulationError
from simulation.performance import profile as core
from simulation.performance.fitting.compare import Comparison, Residuals, compare_with
from simulation.performance.fitting.fit import fit
from simulation.performance.fitting.fit_linear import Parameter
from simulation.performance.fitting.fit_sweep import Waiting, is_sweep
from simulation.performance.linear import kv_capacity_tokens
from simulation.performance.rows import BenchmarkRows
from simulation.performance.specs import Arrangement, Provenance

KINDS = ("linear", "table", "operator", "roofline")
ENGINE = "vllm"
MILLI = ("s", "s per sequence", "s per token")  # units that are read better in thousandths


@dataclass(frozen=True, slots=True)
class Wanted:
    """What to fit: which rows of a file, as what, and under which name. Without rows an operator
    profile is the sum of its kernels, a roofline one what published peaks give.

    ``rows_model`` and ``rows_gpu`` choose rows by what the file calls them ("" where it does not
    say); ``model`` and ``gpu`` are what the profile is of. Limits that are None follow from the
    rows, vLLM's defaults and the memory that the weights leave.
    """

    name: str
    kind: str
    model: str
    gpu: str
    tp: int
    rows_model: str = ""
    rows_gpu: str = ""
    precision: str = "bf16"
    kv_precision: str = "bf16"
    pp: int = 1
    attention_dp: int = 1
    moe_tp: int = 1
    moe_ep: int = 1
    kernels: tuple[int, ...] = ()  # uploaded files of measured kernels, of an operator profile
    max_batch: int | None = None
    max_batch_tokens: int | None = None
    kv_capacity_tokens: int | None = None

    @property
    def arrangement(self) -> Arrangement:
        return Arrangement(
            tp=self.tp,
            pp=self.pp,
            attention_dp=self.attention_dp,
            moe_tp=self.moe_tp,
            moe_ep=self.moe_ep,
            weights=self.precision,
            kv_cache=self.kv_precision,
        )


def profile_compute(
    *, user: User | None, wanted: Wanted, idempotency_key: str = ""
) -> ProfileVersion:
    """Keep an operator or roofline profile that no benchmark row was fitted to."""
    check_may_plan(user)
    key = key_of(idempotency_key, ["compute", asdict(wanted)])
    if first := key.first(ProfileVersion.objects.filter(created_by=user)):
        return first
    wanted = by_catalogue(wanted)
    profile = computed(wanted)
    return profile_keep(
        user=user,
        name=wanted.name,
        profile=profile,
        report={"notes": [f"Kernels were measured in {n}." for n in _kernel_names(wanted)]},
        arrangement=wanted.arrangement,
        key=key,
    )


def profile_fit(
    *,
    user: User | None,
    calibration: Calibration,
    wanted: Wanted,
    idempotency_key: str = "",
) -> ProfileVersion:
    """Fit the rows and keep the outcome as the next version of its name, with its errors."""
    check_may_plan(user)
    key = key_of(idempotency_key, ["fit", calibration.pk, asdict(wanted)])
    if first := key.first(ProfileVersion.objects.filter(created_by=user)):
        return first
    if wanted.kind not in KINDS:
        raise CatalogueError(
            f"There is no profile kind {wanted.kind!r}; choose from {', '.join(KINDS)}."
        )
    wanted = by_catalogue(wanted)
    base = computed(wanted) if wanted.kind in COMPUTED else None
    rows = arrangement_rows(calibration, wanted.rows_model, wanted.rows_gpu, wanted.tp)
    rows = _renamed(rows, wanted)
    capacity = base.kv_capacity_tokens if base else _capacity(wanted)
    if wanted.kind == "linear" and is_sweep(rows):
        base = computed(replace(wanted, kind="operator" if wanted.kernels else "roofline"))
    found = fit(
        wanted.kind,
        rows,
        kv_capacity_tokens=capacity,
        base=base,
        waiting=waiting(),
        provenance=Provenance("measured", calibration.source),
        max_batch=wanted.max_batch,
        max_batch_tokens=wanted.max_batch_tokens,
    )
    return profile_keep(
        user=user,
        name=wanted.name,
        profile=found.profile,
        parameters=parameter_documents(found.parameters),
        report={"rows": rows.rows, "notes": list(found.notes), "range": range_words(rows)},
        residuals=residual_table(found.residuals, rows),
        calibration=calibration,
        arrangement=wanted.arrangement,
        key=key,
    )


def computed(wanted: Wanted) -> core.Profile:
    """The profile that kernels or published peaks give, before any row is looked at."""
    return computed_profile(
        wanted.kind,
        model_get(wanted.model).spec,
        gpu_get(wanted.gpu).spec,
        wanted.arrangement,
        wanted.kernels,
        max_batch=wanted.max_batch,
        max_batch_tokens=wanted.max_batch_tokens,
        kv_capacity_tokens=wanted.kv_capacity_tokens,
    )


def by_catalogue(wanted: Wanted) -> Wanted:
    """With the catalogue's names for model and GPU where a benchmark's own were given."""
    return replace(
        wanted,
        model=_called(catalogue.model_name, wanted.model),
        gpu=_called(catalogue.gpu_name, wanted.gpu),
    )


def _called(find: Callable[[str], str], name: str) -> str:
    try:
        return find(name)
    except CatalogueError:
        return name


def waiting() -> Waiting:
    """How requests wait at vLLM, whose benchmarks these mostly are."""
    calibration = estimate_fit().calibration
    return Waiting(calibration.of("start", ENGINE), calibration.of("order", ENGINE))


def _kernel_names(wanted: Wanted) -> list[str]:
    return [row.name for row in kernel_calibrations(wanted.kernels)]


def profile_compare(
    *,
    profile_name: str,
    version: int | None,
    calibration: Calibration,
    rows_model: str,
    rows_gpu: str,
) -> tuple[Comparison, pl.DataFrame]:
    """What a profile says of rows that it was not fitted to; nothing is kept."""
    known = profile_get(profile_name, version)
    rows = arrangement_rows(calibration, rows_model, rows_gpu, known.tp)
    against = f"{rows.rows:,} rows of {calibration.name}"
    compared = compare_with(known.profile, rows, against, waiting())
    if not compared.checks:
        raise PlannerError(
            f"None of these rows can be compared with {profile_name}: they need a batch, or a "
            "concurrency with isl and osl, beside their times."
        )
    return compared, residual_table(compared.residuals, rows)


def arrangement_rows(calibration: Calibration, model: str, gpu: str, tp: int) -> BenchmarkRows:
    """The rows of one arrangement of a file; those that do not say their tp are of any."""
    if calibration.kind != Calibration.Kind.BENCHMARK:
        raise CatalogueError(f"{calibration.name} holds no benchmark rows; upload such a file.")
    rows = calibration_rows(calibration)
    same = (rows.model == model) & (rows.gpu == gpu)
    same &= np.isnan(rows.tp) | (rows.tp == tp)
    if not same.any():
        raise CatalogueError(
            f"{calibration.name} has no rows of {model or 'no model'} on {tp} x "
            f"{gpu or 'no GPU'}; choose one of the arrangements it has."
        )
    return rows.take(same)


def residual_table(residuals: Residuals, rows: BenchmarkRows) -> pl.DataFrame:
    """Columns of planner.selectors.profiles.profile_residuals."""
    return pl.DataFrame(
        {
            "quantity": residuals.quantity.tolist(),
            "unit": ["ms"] * residuals.row.size,
            "label": [_label(rows, int(i)) for i in residuals.row],
            "measured": residuals.measured_s * 1000,
            "predicted": residuals.predicted_s * 1000,
            "error": residuals.error,
            "inside": residuals.inside,
            "outlier": residuals.outlier,
        }
    )


def parameter_documents(parameters: Iterable[Parameter]) -> dict[str, dict[str, Any]]:
    """Value and 95% interval by name, in units that people read."""
    found = {}
    for p in parameters:
        scale, unit = (1000, f"m{p.unit}") if p.unit in MILLI else (1, p.unit)
        known = np.isfinite(p.low) and np.isfinite(p.high)
        found[p.name] = {
            "value": p.value * scale,
            "low": p.low * scale if known else None,
            "high": p.high * scale if known else None,
            "unit": unit,
        }
    return found


def range_words(rows: BenchmarkRows) -> str:
    """What the rows cover, in words."""
    parts = []
    for values, what in (
        (rows.batch, "sequences in a batch"),
        (rows.concurrency, "requests in flight"),
        (rows.isl, "input tokens"),
        (rows.osl, "output tokens"),
    ):
        known = values[np.isfinite(values)]
        if known.size:
            low, high = known.min(), known.max()
            span = f"{low:,.0f}" if low == high else f"{low:,.0f} to {high:,.0f}"
            parts.append(f"{span} {what}")
    return ", ".join(parts)


def _capacity(wanted: Wanted) -> int:
    if wanted.kv_capacity_tokens:
        return wanted.kv_capacity_tokens
    model, gpu = model_in(wanted.model, wanted.precision), gpu_get(wanted.gpu).spec
    try:
        return kv_capacity_tokens(model, gpu, wanted.tp)
    except SimulationError as problem:
        raise CatalogueError(
            f"{problem} Or give the KV capacity in tokens, if it was served so."
        ) from None


def _renamed(rows: BenchmarkRows, wanted: Wanted) -> BenchmarkRows:
    """The rows under the catalogue's names; files have their own."""
    return replace(
        rows,
        model=np.full(rows.rows, wanted.model),
        gpu=np.full(rows.rows, wanted.gpu),
        tp=np.full(rows.rows, float(wanted.arrangement.gpus)),
    )


def _label(rows: BenchmarkRows, i: int) -> str:
    """What a row is, for people who look for it in their file."""
    parts = [f"row {i + 1}"]
    for values, what in (
        (rows.batch, "batch"),
        (rows.concurrency, "concurrency"),
        (rows.isl, "isl"),
        (rows.osl, "osl"),
    ):
        if np.isfinite(values[i]):
            parts.append(f"{what} {values[i]:,.0f}")
    return ", ".join(parts)
