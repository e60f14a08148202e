"""Tune a linear profile online by observations of a running service, as a new version."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from planner.errors import CatalogueError
from planner.inputs.profiles.report import parameter_documents
from planner.inputs.profiles.tuning import (
    observations_of,
    observed_range,
    tuned_profile,
    tuning_table,
)
from planner.models import ProfileVersion, User
from planner.selectors.profiles import profile_get
from planner.services.access import check_may_plan
from planner.services.idempotency import request_key
from planner.services.profiles import profile_save
from simulation.performance.linear import LinearProfile


def profile_tune(
    *,
    user: User | None,
    name: str,
    observations: Sequence[Mapping[str, float]],
    keep_as: str = "",
    source: str = "",
    idempotency_key: str = "",
) -> ProfileVersion:
    """Tune a profile by mean iteration times, and store it as the next version.

    Each observation has ``at_s`` (when, seconds), ``decodes`` (sequences), ``prefill_tokens`` and
    ``seconds``. A built-in profile is stored under ``keep_as``. The filter continues from the last
    tuning of the name.
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
    base = f"{stored.name}, version {stored.version}" if stored.own else f"built-in {stored.name}"
    covariance = stored.report.get("covariance")
    observed = observations_of(observations)
    tuned = tuned_profile(
        stored.profile,
        observed,
        np.array(covariance) if covariance else None,
        f"{source.strip() or 'observations of a running service'}; from {base}",
    )
    notes = [f"Tuned from {base} by {int(tuned.used.sum()):,} observations."]
    if skipped := int((~tuned.used).sum()):
        notes.append(f"{skipped} observations were ignored as outliers of the filter.")
    return profile_save(
        user=user,
        name=keep_as or name,
        profile=tuned.profile,
        parameters=parameter_documents(tuned.parameters),
        report={
            "notes": notes,
            "covariance": tuned.covariance.tolist(),
            "range": observed_range(observed),
        },
        residuals=tuning_table(observed, tuned),
        key=key,
    )
