"""Store profiles: each fit becomes a new version, and versions never change."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import polars as pl
from django.db import IntegrityError, transaction

from planner.errors import CatalogueError, NotReady
from planner.models import Calibration, Profile, ProfileVersion, Run, User
from planner.selectors.hardware_rows import phase_facts, profile_columns
from planner.selectors.profiles import RESIDUALS
from planner.services.access import check_may_plan, check_may_remove
from planner.services.audit import record
from planner.services.hardware import check_name, scenarios_with_profile
from planner.services.idempotency import Key
from planner.storage import row_arrays
from simulation.performance import profile as core
from simulation.performance.specs import Arrangement

PROFILES = "profiles"
TRIES = 5  # another process may take the next version's number first


@dataclass(frozen=True, slots=True, eq=False)
class FitRecord:
    """How a profile was fitted or computed, for storage with it."""

    report: Mapping[str, Any]
    parameters: Mapping[str, Any] = field(default_factory=dict)
    residuals: pl.DataFrame | None = None  # errors of each row that it was fitted to
    calibration: Calibration | None = None  # the rows that it was fitted to


def profile_save(
    *,
    user: User | None,
    name: str,
    profile: core.Profile,
    fit_record: FitRecord,
    arrangement: Arrangement | None = None,
    key: Key | None = None,
) -> ProfileVersion:
    """Store ``profile`` as the next version under ``name``; the first version creates the name.

    ``arrangement`` None: tensor parallelism alone. A repeated request with the same idempotency
    ``key`` returns the version that the first one stored. Raises CatalogueError if the name belongs
    to another model, GPU type or number of GPUs.
    """
    check_may_plan(user)
    key = key or Key()
    row = _named_row(user, check_name("profile", name, {}), profile, arrangement)
    for _ in range(TRIES):  # again if another process took the number of the version
        version = _next_version(user, row, profile, fit_record, key)
        try:
            with transaction.atomic():
                version.save()
        except IntegrityError:  # that, or the same request came twice at once
            if earlier := key.earlier_row(ProfileVersion.objects.filter(created_by=user)):
                return earlier
            continue
        if fit_record.residuals is not None and not fit_record.residuals.is_empty():
            version.store = f"{PROFILES}/{version.pk}"
            row_arrays.tables_write(version.store, {RESIDUALS: fit_record.residuals})
            row_arrays.keep(version.store)
            version.save(update_fields=["store"])
        record("profile.kept", version.profile, by=user, version=version.version)
        return version
    raise NotReady(f"Profile {row.name} is being changed by others at this moment. Try again.")


def _named_row(
    user: User | None, name: str, profile: core.Profile, arrangement: Arrangement | None
) -> Profile:
    """Return the row of the profile ``name``; create it for ``profile`` if the name is new.

    Raises CatalogueError if the name belongs to another model, GPU type or number of GPUs.
    """
    row, _ = Profile.objects.get_or_create(
        name=name,
        defaults={
            "model": profile.model,
            "gpu": profile.gpu,
            "tp": profile.tp,
            "arrangement": asdict(arrangement) if arrangement else {"tp": profile.tp},
            "owner": user,
        },
    )
    if (row.model, row.gpu, row.tp) != (profile.model, profile.gpu, profile.tp):
        raise CatalogueError(
            f"Profile {name} is of {row.model} on {row.tp} x {row.gpu}, this one of "
            f"{profile.model} on {profile.tp} x {profile.gpu}. Keep it under another name."
        )
    return row


def _next_version(
    user: User | None, row: Profile, profile: core.Profile, fit_record: FitRecord, key: Key
) -> ProfileVersion:
    """Return ``profile`` as the next version of the stored profile ``row``, without saving it."""
    newest = row.versions.values_list("version", flat=True).first() or 0
    return ProfileVersion(
        profile=row,
        version=newest + 1,
        parameters=dict(fit_record.parameters),
        report={
            **fit_record.report,
            "spread": profile.spread,
            "start_s": profile.start_s,
            "phases": phase_facts(profile),
        },
        calibration=fit_record.calibration,
        created_by=user,
        **key.columns(),
        **profile_columns(profile),
    )


def profile_delete(*, profile: Profile, user: User) -> None:
    """Remove a profile with all versions; raise NotReady if a scenario or active run uses it."""
    check_may_remove(user, profile.owner_id, "this profile")
    if scenarios := scenarios_with_profile(name=profile.name):
        raise NotReady(
            f"Profile {profile.name} is used by scenario {', '.join(scenarios[:5])}. Change or "
            "remove that first."
        )
    active_runs = Run.objects.filter(state__in=Run.ACTIVE_STATES)
    if any(profile.name in (run.resolved.get("profiles") or {}) for run in active_runs):
        raise NotReady(
            f"Profile {profile.name} is in a run that is going. Wait for it or cancel it."
        )
    stores = [version.store for version in profile.versions.all()]
    record("profile.removed", profile, by=user)
    profile.delete()
    for store in stores:
        row_arrays.remove(store)
