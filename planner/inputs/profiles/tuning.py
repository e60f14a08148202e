"""Read observations of a running service, and tune a profile with them."""

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl

from planner.errors import CatalogueError, IngestError
from planner.inputs.estimates.deployment_rows import read_rows
from planner.inputs.ingest.source import short_name
from planner.inputs.profiles.report import measured_and_predicted, range_words
from simulation.arrays import FloatArray
from simulation.performance.fitting.compare import (
    DECODE_ITERATION,
    PHASE_OF,
    PREFILL_ITERATION,
    combined_provenance,
    phases_of,
)
from simulation.performance.fitting.kalman import Observations, TunedProfile, tune
from simulation.performance.linear import LinearProfile
from simulation.performance.profile import Check, check
from simulation.performance.specs import PHASES, Phase, Provenance

FIELDS = ("at_s", "decodes", "prefill_tokens", "seconds")
MAX_OBSERVATIONS = 10_000  # in one request; the filter processes them one by one
MAX_FILE_BYTES = 5_000_000
MIXED_ITERATION = "iteration time"


def tuned_profile(
    profile: LinearProfile, observations: Observations, covariance: FloatArray | None, source: str
) -> TunedProfile:
    """Return ``profile`` tuned to observations of iterations by a Kalman filter, with its errors.

    Each observation is predicted before the filter uses it, so the errors are out of sample. A
    phase (prefill or decode) without observations keeps its times, provenance and checks.
    ``covariance`` is that of the last tuning, or None. ``source`` states who observed.
    """
    tuned = tune(profile, observations, covariance=covariance)
    decodes, tokens = observations.decodes, observations.prefill_tokens
    measured = Provenance("measured", source)
    prefill, decode = phases_of(profile)
    unobserved = set(PHASES)
    if tokens.any():
        prefill = Phase(measured, float(tokens.max()))
        unobserved.remove("prefill")
    if decodes.any():
        decode = Phase(measured, float(decodes.max()))
        unobserved.remove("decode")
    # The checks of a phase that was not observed still hold, since it did not change.
    unchanged_checks = [old for old in profile.checks if PHASE_OF.get(old.quantity) in unobserved]
    with_errors = replace(
        tuned.profile,
        fitted_decodes=max(profile.fitted_decodes, float(decodes.max())),
        fitted_prefill_tokens=max(profile.fitted_prefill_tokens, float(tokens.max())),
        checks=(*_checks(observations, tuned.innovation), *unchanged_checks),
        provenance=combined_provenance((prefill, decode)),
        phases=(prefill, decode),
    )
    return replace(tuned, profile=with_errors)


def _checks(observations: Observations, innovation: FloatArray) -> Iterator[Check]:
    """Yield the errors of the predicted times: of decodes, of prefills, and of mixed iterations.

    ``innovation`` ``[observations]`` are the relative errors of the predictions.
    """
    is_decode, is_prefill = observations.decodes > 0, observations.prefill_tokens > 0
    for quantity, mask in (
        (DECODE_ITERATION, ~is_prefill),
        (PREFILL_ITERATION, ~is_decode),
        (MIXED_ITERATION, is_prefill & is_decode),
    ):
        if mask.any():
            seconds = observations.seconds[mask]
            against = f"{seconds.size:,} observations, each predicted before it was used"
            yield check(quantity, against, seconds, seconds / (1 + innovation[mask]))


def observations_of(rows: Sequence[Mapping[str, float]]) -> Observations:
    """Return 1 to MAX_OBSERVATIONS observations by time, or raise CatalogueError."""
    if not 0 < len(rows) <= MAX_OBSERVATIONS:
        raise CatalogueError(
            f"{len(rows)} observations were given; 1 to {MAX_OBSERVATIONS:,} can be used at once."
        )
    by_time = sorted(rows, key=lambda row: float(row[FIELDS[0]]))
    return Observations(*(np.array([float(row[field]) for row in by_time]) for field in FIELDS))


def observations_of_file(data: bytes, file_name: str) -> list[dict[str, float]]:
    """Read observations from a table with FIELDS; raise IngestError for the first bad row."""
    if len(data) > MAX_FILE_BYTES:
        raise IngestError(f"{file_name} is larger than {MAX_FILE_BYTES / 1e6:g} MB. Split it.")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / short_name(file_name)
        path.write_bytes(data)
        rows = read_rows(path)
    observations = []
    for number, row in enumerate(rows, 1):
        if isinstance(row, str):
            raise IngestError(row)
        try:
            observations.append({field: float(row[field]) for field in FIELDS})
        except (KeyError, TypeError, ValueError):
            raise IngestError(
                f"{file_name}, row {number}: a number is needed in each of {', '.join(FIELDS)}."
            ) from None
    return observations


def observed_range(observed: Observations) -> str:
    """Return the range of the observations in words."""
    return range_words(
        (
            (observed.decodes, "sequences decoding"),
            (observed.prefill_tokens, "prompt tokens of an iteration"),
        )
    )


def tuning_table(observed: Observations, tuned: TunedProfile) -> pl.DataFrame:
    """Return each observation with the prediction made before it was used."""
    loads = zip(observed.decodes, observed.prefill_tokens, strict=True)
    return measured_and_predicted(
        MIXED_ITERATION,
        [
            f"observation {i}, {decodes:,.0f} decodes, {prompt:,.0f} prompt tokens"
            for i, (decodes, prompt) in enumerate(loads, 1)
        ],
        observed.seconds,
        observed.seconds / (1 + tuned.innovation),
        outlier=~tuned.used,
    )
