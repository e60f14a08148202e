"""Convert rows of the database to and from GPU types, models, profiles and benchmark rows."""

import io
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from typing import Any, TypeVar

import numpy as np
import polars as pl

from planner.domain.serialise import from_json
from planner.models import OwnGpu, OwnModel, ProfileVersion
from simulation.performance.adjusted_profile import AdjustedProfile
from simulation.performance.curves import LINEAR, NO_LIMIT, Curve
from simulation.performance.fitting.compare import phases_of
from simulation.performance.linear import LinearProfile
from simulation.performance.profile import Check, Profile
from simulation.performance.rows import BenchmarkRows
from simulation.performance.specs import GpuSpec, ModelSpec, Phase, Provenance

Facts = dict[str, Any]
Spec = TypeVar("Spec", GpuSpec, ModelSpec)
COLUMN_FIELDS = ("name", "provenance")  # fields that have their own columns
OLD_LINEAR_SIZE = 7  # size of a linear curve stored before curves had a context limit


def spec_facts(spec: GpuSpec | ModelSpec) -> Facts:
    """Return a GPU type or model as the facts that a row stores, JSON-ready."""
    facts = {name: value for name, value in asdict(spec).items() if name not in COLUMN_FIELDS}
    if isinstance(spec, GpuSpec):
        facts["peak_flops"] = dict(spec.peak_flops)  # JSON takes no other mapping
    return facts


def spec_of(kind: type[Spec], name: str, facts: Facts, provenance: Provenance) -> Spec:
    """Return a GPU type or model from the ``facts`` of a row.

    Facts of other releases are accepted: unknown keys are ignored, missing ones get defaults.
    """
    return from_json(kind, {**facts, "name": name, "provenance": asdict(provenance)})


def gpu_of(row: OwnGpu) -> GpuSpec:
    """Return the GPU type that a row stores."""
    return spec_of(GpuSpec, row.name, row.facts, Provenance(row.kind, row.source))


def model_of(row: OwnModel) -> ModelSpec:
    """Return the model that a row stores."""
    return spec_of(ModelSpec, row.name, row.facts, Provenance(row.kind, row.source))


def profile_columns(profile: Profile) -> Facts:
    """Return a profile as the column values of a ProfileVersion row."""
    out = io.BytesIO()
    np.savez_compressed(out, values=profile.curve.values)
    return {
        "kind": profile.kind,
        "limits": {
            "max_batch": int(profile.max_batch),
            "max_batch_tokens": int(profile.max_batch_tokens),
            "kv_capacity_tokens": int(profile.kv_capacity_tokens),
        },
        "curve": out.getvalue(),
        "checks": [asdict(check) for check in profile.checks],
        "provenance": profile.provenance.kind,
        "source": profile.provenance.source[:500],
    }


def phase_facts(profile: Profile) -> list[Facts]:
    """Return the prefill and decode phases of a profile as JSON; an infinite limit is null."""
    return [
        {**asdict(phase.provenance), "most": phase.most if np.isfinite(phase.most) else None}
        for phase in phases_of(profile)
    ]


def _phases(facts: Sequence[Mapping[str, Any]]) -> tuple[Phase, Phase] | None:
    """Return the (prefill, decode) phases that ``phase_facts`` stored; None for ()."""
    if not facts:
        return None
    phases = []
    for fact in facts:
        limit = np.inf if fact["most"] is None else float(fact["most"])
        phases.append(Phase(Provenance(fact["kind"], fact["source"]), limit))
    prefill, decode = phases
    return prefill, decode


def profile_of(version: ProfileVersion) -> Profile:
    """Return the profile in a stored version.

    A linear profile is a LinearProfile, which gives access to its parameters.
    """
    row = version.profile
    # Arrays of earlier releases lack the limit of contexts.
    with np.load(io.BytesIO(bytes(version.curve)), allow_pickle=False) as arrays:
        values = arrays["values"]
    if values[0] == LINEAR and values.size == OLD_LINEAR_SIZE:
        values = np.append(values, NO_LIMIT)
    curve = Curve(values)
    common: Facts = {
        "model": row.model,
        "gpu": row.gpu,
        "tp": row.tp,
        **version.limits,
        "provenance": Provenance(version.provenance, version.source),
        "checks": tuple(Check(**check) for check in version.checks),
        "spread": float(version.report.get("spread") or 0.0),
        "start_s": float(version.report.get("start_s") or 0.0),
        "phases": _phases(version.report.get("phases") or ()),
    }
    if curve.kind == LINEAR and version.kind == ProfileVersion.Kind.LINEAR:
        _, alpha, beta, gamma, delta, decodes, tokens, context = map(float, curve.values)
        return LinearProfile(
            alpha_s=alpha,
            beta_s=beta,
            gamma_s=gamma,
            delta_s=delta,
            fitted_decodes=decodes,
            fitted_prefill_tokens=tokens,
            fitted_context=context,
            **common,
        )
    return AdjustedProfile(kind=version.kind, curve=curve, **common)


def rows_table(rows: BenchmarkRows) -> pl.DataFrame:
    """Return benchmark rows as the table that a calibration stores; NaN becomes null."""
    columns = {field.name: getattr(rows, field.name) for field in fields(rows)}
    return pl.DataFrame(columns).with_columns(pl.col(pl.Float64).fill_nan(None))


def rows_of(table: pl.DataFrame) -> BenchmarkRows:
    """Return the benchmark rows in a calibration's table; null numbers become NaN.

    A table of an earlier release may lack a number column, which then becomes NaN.
    """
    names = [field.name for field in fields(BenchmarkRows)]
    table = table.with_columns(
        pl.lit(None, pl.Float64).alias(name) for name in names if name not in table.columns
    )
    columns: Facts = {}
    for name in names:
        column = table[name]
        if column.dtype == pl.String:
            columns[name] = np.asarray(column.to_list(), np.str_)
        else:
            columns[name] = column.fill_null(np.nan).to_numpy()
    return BenchmarkRows(**columns)
