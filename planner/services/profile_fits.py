"""Fit profiles to measured rows, and compare them with other rows."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace

import numpy as np
import polars as pl

from planner.errors import CatalogueError, PlannerError
from planner.inputs.catalogue.estimate_calibration import estimate_fit
from planner.inputs.profiles.report import parameter_documents, range_of, residual_table
from planner.inputs.profiles.spec import COMPUTED, KINDS, ProfileSpec, computed_profile
from planner.inputs.profiles.tuning import (
    observations_of,
    observed_range,
    tuned_profile,
    tuning_table,
)
from planner.models import Calibration, ProfileVersion, User
from planner.selectors.hardware import gpu_get, model_get, model_in_precision
from planner.selectors.hardware_rows import rows_of
from planner.selectors.measured_corrections import KERNEL_FILE, calibration_table
from planner.selectors.profiles import profile_get
from planner.services.access import check_may_plan
from planner.services.calibrations import read_kernel_file
from planner.services.idempotency import request_key
from planner.services.profiles import FitRecord, profile_save
from planner.storage import row_arrays
from simulation.errors import SimulationError
from simulation.performance import profile as core
from simulation.performance.fitting.compare import Waiting, checks_of, compare_with
from simulation.performance.fitting.fit import MAX_BATCH_TOKENS, Fitter
from simulation.performance.fitting.fit_linear import lacks_prefill
from simulation.performance.fitting.fit_sweep import is_sweep
from simulation.performance.fitting.kalman import Observations, TunedProfile
from simulation.performance.kernel_tables import KernelRows, Kernels, kernels
from simulation.performance.linear import LinearProfile
from simulation.performance.memory import kv_capacity_tokens
from simulation.performance.rows import BenchmarkRows
from simulation.performance.specs import Provenance

ENGINE = "vllm"  # most benchmarks ran on it, and few files state another
# Our name for other names of a precision. Weights decide, not activations.
PRECISIONS = {"fp16": "bf16", "float16": "bf16", "bfloat16": "bf16", "w4a16": "int4",
              "w8a8": "int8", "w8a16": "int8"}  # fmt: skip


def profile_compute(
    *, user: User | None, spec: ProfileSpec, idempotency_key: str = ""
) -> ProfileVersion:
    """Store an operator or roofline profile, without benchmark rows; ``user`` may be None."""
    check_may_plan(user)
    key = request_key(idempotency_key, ["compute", asdict(spec)])
    if earlier := key.earlier_row(ProfileVersion.objects.filter(created_by=user)):
        return earlier
    spec = spec.by_catalogue()
    profile = compute_profile(spec)
    kernel_files = [row.name for row in kernel_calibrations(spec.kernels)]
    return profile_save(
        user=user,
        name=spec.name,
        profile=profile,
        fit_record=FitRecord(
            {"notes": [f"Kernels were measured in {name}." for name in kernel_files]}
        ),
        arrangement=spec.arrangement,
        key=key,
    )


def profile_fit(
    *, user: User | None, calibration: Calibration, spec: ProfileSpec, idempotency_key: str = ""
) -> ProfileVersion:
    """Fit a profile to benchmark rows; store it with its errors as the next version of its name.

    ``spec`` selects the rows of ``calibration``. A COMPUTED kind is computed first, as the
    base of the fit. The same ``idempotency_key`` of the same user returns the first result.
    Raises CatalogueError for wrong input.
    """
    check_may_plan(user)
    key = request_key(idempotency_key, ["fit", calibration.pk, asdict(spec)])
    if earlier := key.earlier_row(ProfileVersion.objects.filter(created_by=user)):
        return earlier
    if spec.kind not in KINDS:
        raise CatalogueError(
            f"There is no profile kind {spec.kind!r}. Choose from {', '.join(KINDS)}."
        )
    spec = spec.by_catalogue()
    computed = compute_profile(spec) if spec.kind in COMPUTED else None
    # Rows have names of their file, which the fit needs as those of the catalogue.
    rows = arrangement_rows(calibration, spec.rows_model, spec.rows_gpu, spec.tp)
    rows = _with_catalogue_names(_in_precision(rows, spec.precision, calibration.name), spec)
    fitter = Fitter(
        spec.kind,
        kv_capacity_tokens=computed.kv_capacity_tokens if computed else _kv_capacity(spec),
        base=computed or _base_of_linear(spec, rows),
        waiting=queueing_parameters(),
        provenance=Provenance("measured", calibration.source),
        max_batch=spec.max_batch,
        max_batch_tokens=spec.max_batch_tokens,
    )
    fitted = fitter.fit(rows)
    return profile_save(
        user=user,
        name=spec.name,
        profile=fitted.profile,
        fit_record=FitRecord(
            {"rows": rows.rows, "notes": list(fitted.notes), "range": range_of(rows)},
            parameter_documents(fitted.parameters),
            residual_table(fitted.residuals, rows),
            calibration,
        ),
        arrangement=spec.arrangement,
        key=key,
    )


def _base_of_linear(spec: ProfileSpec, rows: BenchmarkRows) -> core.Profile | None:
    """Return the computed profile from which the fit of a linear profile starts.

    It supplies what ``rows`` lack: iteration times in a sweep over concurrency, or prefill times.
    None if they lack neither, or if prefill times are missing and cannot be computed.
    """
    computed_spec = replace(spec, kind="operator" if spec.kernels else "roofline")
    if is_sweep(rows):
        return compute_profile(computed_spec)
    if not lacks_prefill(rows, spec.max_batch_tokens or MAX_BATCH_TOKENS):
        return None
    try:
        return compute_profile(computed_spec)
    except (PlannerError, SimulationError):
        return None  # unknown shape or peaks: fit() reports the missing rows


def compute_profile(spec: ProfileSpec) -> core.Profile:
    """Return a profile computed from measured kernels (kind operator) or published peak rates."""
    gpu = gpu_get(spec.gpu).spec
    tables = kernel_tables(gpu.name, spec.kernels) if spec.kind == "operator" else None
    return computed_profile(spec, model_get(spec.model).spec, gpu, tables)


def kernel_calibrations(files: Sequence[int]) -> list[Calibration]:
    """Return the kernel files with the ids ``files``; raise CatalogueError for a wrong id."""
    rows = Calibration.objects.in_bulk(list(files))
    for number in files:
        if number not in rows or rows[number].kind != Calibration.Kind.KERNELS:
            raise CatalogueError(
                f"Calibration {number} holds no measured kernels. Upload such a file and name it."
            )
    return [rows[number] for number in files]


def kernel_tables(gpu: str, files: Sequence[int]) -> Kernels | None:
    """Return the kernels measured on GPU type ``gpu`` in the uploads ``files``; None without files.

    Raises CatalogueError if the files hold kernels of other GPU types alone.
    """
    calibrations = kernel_calibrations(files)
    if not calibrations:
        return None
    rows: list[KernelRows] = []
    for row in calibrations:
        path = row_arrays.local_path(row.store) / KERNEL_FILE
        rows += read_kernel_file(path, row.file_name, row.format, gpu).by_gpu.get(gpu, [])
    if not rows:
        measured = sorted({name for row in calibrations for name in row.report.get("gpus", [])})
        raise CatalogueError(
            f"These files hold no kernels measured on {gpu}; they are of {', '.join(measured)}."
        )
    return kernels(gpu, "; ".join(row.source for row in calibrations), rows)


def queueing_parameters() -> Waiting:
    """Return by how much requests wait before prefill, as fitted for vLLM (see ``Waiting``)."""
    calibration = estimate_fit().calibration
    return Waiting(calibration.of("start", ENGINE), calibration.of("order", ENGINE))


def profile_compare(
    *,
    profile_name: str,
    version: int | None,
    calibration: Calibration,
    rows_model: str,
    rows_gpu: str,
) -> tuple[tuple[core.Check, ...], pl.DataFrame]:
    """Compare a stored profile with the rows of one model and GPU type in a file.

    ``version`` None: the newest. ``rows_model`` and ``rows_gpu`` are their names in the file.
    Returns the errors by quantity, and a table with the errors of each row.
    """
    stored = profile_get(profile_name, version)
    rows = arrangement_rows(calibration, rows_model, rows_gpu, stored.tp)
    residuals = compare_with(stored.profile, rows, queueing_parameters())
    checks = checks_of(residuals, f"{rows.rows:,} rows of {calibration.name}")
    if not checks:
        raise PlannerError(
            f"No row can be compared with {profile_name}. A row needs times, and a batch or a "
            "concurrency with isl and osl."
        )
    return checks, residual_table(residuals, rows)


def arrangement_rows(calibration: Calibration, model: str, gpu: str, tp: int) -> BenchmarkRows:
    """Return the rows of one model, GPU type and ``tp`` (GPUs per replica) in a file.

    Rows without tp match every tp. Raises CatalogueError if there are none.
    """
    if calibration.kind != Calibration.Kind.BENCHMARK:
        raise CatalogueError(f"{calibration.name} holds no benchmark rows. Upload such a file.")
    rows = rows_of(calibration_table(calibration))
    matching = (rows.model == model) & (rows.gpu == gpu)
    matching &= np.isnan(rows.tp) | (rows.tp == tp)
    if not matching.any():
        raise CatalogueError(
            f"{calibration.name} has no rows of {model or 'no model'} on {tp} x "
            f"{gpu or 'no GPU'}. Choose one of the arrangements it has."
        )
    return rows.take(matching)


def _in_precision(rows: BenchmarkRows, precision: str, name: str) -> BenchmarkRows:
    """Return the rows in ``precision``; all rows if the file states at most one precision.

    ``name`` is the name of the file. Raises CatalogueError if it has other precisions only.
    """
    stated = [text.lower() for text in rows.precision.tolist()]
    row_precisions = np.array([PRECISIONS.get(text, text) for text in stated])
    precisions = [text for text in np.unique(row_precisions).tolist() if text]
    if len(precisions) < 2:
        return rows
    if precision not in precisions:
        raise CatalogueError(
            f"{name} has rows in {', '.join(precisions)} and none in {precision}. Choose one of "
            "them as the precision."
        )
    return rows.take(row_precisions == precision)


def _kv_capacity(spec: ProfileSpec) -> int:
    """Return the tokens that a replica's KV cache holds: as stated, else what its memory allows."""
    if spec.kv_capacity_tokens:
        return spec.kv_capacity_tokens
    model, gpu = model_in_precision(spec.model, spec.precision), gpu_get(spec.gpu).spec
    try:
        return kv_capacity_tokens(model, gpu, spec.tp)
    except SimulationError as problem:
        raise CatalogueError(
            f"{problem} Or give the KV capacity in tokens, if it was served so."
        ) from None


def _with_catalogue_names(rows: BenchmarkRows, spec: ProfileSpec) -> BenchmarkRows:
    """Return the rows with the model, GPU type and number of GPUs of ``spec``."""
    return replace(
        rows,
        model=np.full(rows.rows, spec.model),
        gpu=np.full(rows.rows, spec.gpu),
        tp=np.full(rows.rows, float(spec.arrangement.gpus)),
    )


def profile_tune(
    *,
    user: User | None,
    name: str,
    observations: Sequence[Mapping[str, float]],
    keep_as: str = "",
    source: str = "",
    idempotency_key: str = "",
) -> ProfileVersion:
    """Tune a profile by observed iteration times, and store it as the next version of its name.

    An observation is an iteration: when it ran (``at_s``), its sequences in decode (``decodes``),
    its ``prefill_tokens`` and its duration (``seconds``). A built-in profile is stored under the
    name ``keep_as``. A Kalman filter continues from the last tuning of the profile ``name``.
    """
    check_may_plan(user)
    key = request_key(idempotency_key, ["tune", name, list(observations), keep_as, source])
    if earlier := key.earlier_row(ProfileVersion.objects.filter(created_by=user)):
        return earlier
    stored = profile_get(name)
    if not isinstance(stored.profile, LinearProfile):
        raise CatalogueError(
            f"{name} is a {stored.kind} profile; only linear ones are tuned by observations."
        )
    if not stored.own and not keep_as:
        raise CatalogueError(f"{name} is built in. Say under which name to keep it (keep_as).")
    base_words = (
        f"{stored.name}, version {stored.version}" if stored.own else f"built-in {stored.name}"
    )
    covariance = stored.report.get("covariance")
    observed = observations_of(observations)
    tuned = tuned_profile(
        stored.profile,
        observed,
        np.array(covariance) if covariance else None,
        f"{source.strip() or 'observations of a running service'}; from {base_words}",
    )
    return profile_save(
        user=user,
        name=keep_as or name,
        profile=tuned.profile,
        fit_record=_tuning_record(tuned, observed, base_words),
        key=key,
    )


def _tuning_record(tuned: TunedProfile, observed: Observations, base_words: str) -> FitRecord:
    """Return the record of a tuning by ``observed`` iterations, from the profile ``base_words``."""
    notes = [f"Tuned from {base_words} by {int(tuned.used.sum()):,} observations."]
    if skipped := int((~tuned.used).sum()):
        notes.append(f"{skipped} observations were ignored as outliers of the filter.")
    covariance, bounds = tuned.covariance.tolist(), observed_range(observed)
    report = {"notes": notes, "covariance": covariance, "range": bounds}
    return FitRecord(report, parameter_documents(tuned.parameters), tuning_table(observed, tuned))
