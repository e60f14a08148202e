"""Online tuning: what a running service shows moves a linear profile, as a new version of it."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from planner.errors import CatalogueError, IngestError
from planner.estimates.rows import read_rows
from planner.models import ProfileVersion, User
from planner.selectors.profiles import KnownProfile, profile_get
from planner.services.access import check_may_plan
from planner.services.fits import parameter_documents
from planner.services.once import key_of
from planner.services.profiles import profile_keep
from simulation.performance.fitting.kalman import Observations, Tuned, tune
from simulation.performance.linear import LinearProfile
from simulation.performance.profile import check
from simulation.performance.specs import Provenance

FIELDS = ("at_s", "decodes", "prefill_tokens", "seconds")
MAX_OBSERVATIONS = 10_000  # in one request; the filter takes them one after the other
MAX_FILE_BYTES = 5_000_000
QUANTITY = "iteration time"


def profile_tune(
    *,
    user: User | None,
    name: str,
    observations: Sequence[Mapping[str, float]],
    keep_as: str = "",
    source: str = "",
    idempotency_key: str = "",
) -> ProfileVersion:
    """Tune a profile by mean iteration times and keep it as the next version.

    Each observation has ``at_s`` (when, seconds), ``decodes`` (sequences), ``prefill_tokens`` and
    ``seconds``. A built-in profile is kept under ``keep_as``. The filter goes on from where the
    last tuning of the name left it.
    """
    check_may_plan(user)
    key = key_of(idempotency_key, ["tune", name, list(observations), keep_as, source])
    if first := key.first(ProfileVersion.objects.filter(created_by=user)):
        return first
    known = profile_get(name)
    if not isinstance(known.profile, LinearProfile):
        raise CatalogueError(
            f"{name} is a {known.kind} profile; only linear ones are tuned by observations."
        )
    if not known.own and not keep_as:
        raise CatalogueError(f"{name} is built in; say under which name to keep it (keep_as).")
    found = _observations(observations)
    tuned = tune(known.profile, found, covariance=_covariance(known))
    measured, used = found.seconds, tuned.used
    ahead = check(
        QUANTITY,
        f"{measured.size:,} observations, each predicted before it was used",
        measured,
        measured / (1 + tuned.innovation),
    )
    base = f"{known.name}, version {known.version}" if known.own else f"built-in {known.name}"
    said = source.strip() or "observations of a running service"
    profile = replace(
        tuned.profile, checks=(ahead,), provenance=Provenance("measured", f"{said}; from {base}")
    )
    notes = [f"Tuned from {base} by {int(used.sum()):,} observations."]
    if left := int((~used).sum()):
        notes.append(
            f"{left} observations were left out: further off than the filter could believe."
        )
    return profile_keep(
        user=user,
        name=keep_as or name,
        profile=profile,
        parameters=parameter_documents(tuned.parameters),
        report={"notes": notes, "covariance": tuned.covariance.tolist(), "range": _range(found)},
        residuals=_residuals(found, tuned),
        key=key,
    )


def observations_of_file(data: bytes, file_name: str) -> list[dict[str, float]]:
    """Observations from a table with the columns of FIELDS; raises IngestError naming the line."""
    if len(data) > MAX_FILE_BYTES:
        raise IngestError(f"{file_name} is larger than {MAX_FILE_BYTES / 1e6:g} MB; split it.")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / Path(file_name).name
        path.write_bytes(data)
        rows = read_rows(path)
    found = []
    for number, row in enumerate(rows, 1):
        if isinstance(row, str):
            raise IngestError(row)
        try:
            found.append({field: float(row[field]) for field in FIELDS})
        except (KeyError, TypeError, ValueError):
            raise IngestError(
                f"{file_name}, row {number}: a number is needed in each of {', '.join(FIELDS)}."
            ) from None
    return found


def _observations(given: Sequence[Mapping[str, float]]) -> Observations:
    if not 0 < len(given) <= MAX_OBSERVATIONS:
        raise CatalogueError(
            f"{len(given)} observations were given; 1 to {MAX_OBSERVATIONS:,} can be used at once."
        )
    columns = [np.array([float(row[field]) for row in given]) for field in FIELDS]
    order = np.argsort(columns[0], kind="stable")
    return Observations(*(column[order] for column in columns))


def _covariance(known: KnownProfile) -> Any:
    held = known.report.get("covariance")
    return np.array(held) if held else None


def _range(found: Observations) -> str:
    parts = [
        f"{values.min():,.0f} to {values.max():,.0f} {what}"
        for values, what in (
            (found.decodes, "sequences decoding"),
            (found.prefill_tokens, "prompt tokens of an iteration"),
        )
    ]
    return ", ".join(parts)


def _residuals(found: Observations, tuned: Tuned) -> pl.DataFrame:
    """Each observation beside what was expected before it was used; columns of
    planner.selectors.profiles.profile_residuals."""
    count = found.seconds.size
    return pl.DataFrame(
        {
            "quantity": [QUANTITY] * count,
            "unit": ["ms"] * count,
            "label": [
                f"observation {i + 1}, {b:,.0f} decodes, {p:,.0f} prompt tokens"
                for i, (b, p) in enumerate(zip(found.decodes, found.prefill_tokens, strict=True))
            ],
            "measured": found.seconds * 1000,
            "predicted": found.seconds / (1 + tuned.innovation) * 1000,
            "error": 1 / (1 + tuned.innovation) - 1,
            "inside": [True] * count,
            "outlier": ~tuned.used,
        }
    )
