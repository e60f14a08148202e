"""Read profiles: built-in ones and those fitted here, with their checks."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import polars as pl
from django.db.models import Count, OuterRef, Subquery

from planner.errors import NotFound
from planner.inputs import catalogue
from planner.inputs.catalogue.measured_profiles import contradictions
from planner.inputs.catalogue.rule_based_profiles import ModelledProfile, modelled_profiles
from planner.models import Calibration, Profile, ProfileVersion, Run, Scenario
from planner.selectors.hardware_rows import profile_of
from planner.selectors.lookup import matches
from planner.selectors.scenarios import latest_comparisons
from planner.storage import row_arrays
from simulation.performance import profile as core
from simulation.performance.fitting.compare import PhaseBasis, phases, stated_check_of
from simulation.performance.fitting.fit_linear import UNITS
from simulation.performance.linear import LinearProfile
from simulation.performance.profile import Check
from simulation.performance.specs import Provenance

RESIDUALS = "residuals"
MAX_NAMES = 20
MODELLED_LIMITS = "Limits of batch and tokens are assumed: vLLM's defaults."


@dataclass(frozen=True, slots=True)
class KnownProfile:
    """One version of a profile in the form that pages, API and command line show."""

    name: str
    profile: core.Profile
    version: int | None = None  # None: built in
    versions: int = 0  # number of stored versions
    row: ProfileVersion | None = None  # None: built in
    parameters: Mapping[str, Any] = field(default_factory=dict)
    report: Mapping[str, Any] = field(default_factory=dict)

    @property
    def own(self) -> bool:
        return self.row is not None

    @property
    def model(self) -> str:
        return self.profile.model

    @property
    def gpu(self) -> str:
        return self.profile.gpu

    @property
    def tp(self) -> int:
        return self.profile.tp

    @property
    def kind(self) -> str:
        return self.profile.kind

    @property
    def engine(self) -> str:
        """Return the engine on which the profile was measured; "" if unknown."""
        if self.calibration is not None:
            return str(self.calibration.report.get("engine", {}).get("engine", ""))
        return catalogue.engine_of(self.profile.provenance)

    @property
    def precision(self) -> str:
        """Return the precision of the weights; "" if the profile does not have it."""
        return self.profile.precision if isinstance(self.profile, ModelledProfile) else ""

    @property
    def checks(self) -> tuple[Check, ...]:
        return self.profile.checks

    @property
    def created_at(self) -> datetime | None:
        return self.row.created_at if self.row else None

    @property
    def calibration(self) -> Calibration | None:
        return self.row.calibration if self.row else None

    @property
    def stated_check(self) -> Check | None:
        """Return the check that states the profile's error in plans, or None.

        A profile computed by rule has a check without rows, which only has its expected error.
        """
        return stated_check_of(self.profile)

    @property
    def phases(self) -> tuple[PhaseBasis, ...]:
        """Return the kind, error and range of prefill and of decode."""
        return phases(self.profile)


@dataclass(frozen=True, slots=True)
class PlanProfile:
    """A profile that the newest comparison of a scenario computed, and that no list has."""

    run: int
    model: str
    arrangement: str
    error: float | None  # mean, as a share
    basis: str
    provenance: Provenance


def built_in_name(model: str, gpu: str, tp: int) -> str:
    """Return the name of a built-in profile, MODEL:GPU:tpN; names of users have no colon."""
    return f"{model}:{gpu}:tp{tp}"


def profiles_list(search: str = "") -> list[KnownProfile]:
    """Return own profiles in their newest version, then the built-in ones.

    Built-in profiles that were measured, or derived from measurements, come first. Profiles of the
    newest models, computed by rule, come last.
    """
    # The newest version of each own profile.
    versions = ProfileVersion.objects.filter(profile=OuterRef("profile")).order_by("-version")
    rows = ProfileVersion.objects.filter(version=Subquery(versions.values("version")[:1]))
    rows = rows.select_related("profile", "calibration", "created_by").order_by("profile__name")
    version_counts = Profile.objects.annotate(count=Count("versions")).values_list("pk", "count")
    counts = dict(version_counts)
    profiles = [
        *[_profile_version(row, counts[row.profile_id]) for row in rows],
        *_built_in_profiles(),
        *_modelled_profiles(),
    ]
    return [
        profile
        for profile in profiles
        if matches(search, profile.name, profile.model, profile.gpu, profile.kind)
    ]


def plan_profiles(listed: Sequence[KnownProfile]) -> list[PlanProfile]:
    """Return the profiles of the newest comparisons that are not among the ``listed`` ones.

    Each comes once, from the newest comparison that states its source.
    """
    seen = {(profile.model, profile.gpu, profile.tp, profile.kind) for profile in listed}
    run_ids = [newest.pk for newest in latest_comparisons(Scenario.objects.all()).values()]
    newest_first = Run.objects.filter(pk__in=run_ids).order_by("-pk")
    profiles = []
    for run_id, errors, assumptions in newest_first.values_list(
        "pk", "result__profile_error", "result__assumptions"
    ):
        sources = {
            row["what"]: Provenance(row["provenance"], row["source"]) for row in assumptions or ()
        }
        for row in errors or ():
            key = row["model"], row["gpu"], row["tp"], row["kind"]
            arrangement = f"{row['tp']} x {row['gpu']}"
            source = sources.get(f"Speed of {row['model']} on {arrangement}")
            if source is not None and key not in seen:
                seen.add(key)
                profiles.append(
                    PlanProfile(
                        run_id, row["model"], arrangement, row["error"], row["basis"], source
                    )
                )
    return profiles


def profile_get(name: str, version: int | None = None) -> KnownProfile:
    """Return the profile called ``name`` in a version (None: the newest); raise NotFound."""
    row = Profile.objects.filter(name=name.replace("\0", "?")).first()
    if row is None:
        for profile in (*_built_in_profiles(), *_modelled_profiles()):
            if profile.name == name and version is None:
                return profile
        names = ", ".join(known.name for known in profiles_list()[:MAX_NAMES])
        raise NotFound(f"There is no profile {name!r}. Some profiles: {names}.")
    versions = row.versions.select_related("profile", "calibration", "created_by")
    if version is not None:
        versions = versions.filter(version=version)
    stored_version = versions.first()  # the newest first
    if stored_version is None:
        numbers = ", ".join(map(str, row.versions.values_list("version", flat=True)))
        raise NotFound(f"Profile {name} has no version {version}; it has {numbers or 'none'}.")
    return _profile_version(stored_version, row.versions.count())


def profile_versions(name: str) -> list[ProfileVersion]:
    """Return the versions of a profile, newest first; empty for a built-in one."""
    rows = ProfileVersion.objects.filter(profile__name=name).defer("curve")
    return list(rows.select_related("created_by", "calibration"))


def profile_residuals(profile: KnownProfile) -> pl.DataFrame:
    """Return measured and predicted values, one row per measurement.

    ``error`` is (predicted - measured) / measured. The table is empty if the measured rows are not
    stored here.
    """
    if profile.row is not None and RESIDUALS in row_arrays.tables_list(profile.row.store):
        return row_arrays.table_read(profile.row.store, RESIDUALS)
    return pl.DataFrame(
        schema={
            "quantity": pl.String,
            "unit": pl.String,
            "label": pl.String,
            "measured": pl.Float64,
            "predicted": pl.Float64,
            "error": pl.Float64,
            "outlier": pl.Boolean,
        }
    )


def _profile_version(row: ProfileVersion, versions: int) -> KnownProfile:
    """Return a stored version; ``versions`` is the number of versions of its profile."""
    return KnownProfile(
        name=row.profile.name,
        profile=profile_of(row),
        version=row.version,
        versions=versions,
        row=row,
        parameters=row.parameters,
        report=row.report,
    )


def _built_in_profiles() -> list[KnownProfile]:
    """Return the catalogue's measured profiles, with notes on contradicting measurements."""
    intervals, profiles = catalogue.intervals(), catalogue.profiles()
    contradicting = contradictions(profiles)
    return [
        KnownProfile(
            name=built_in_name(model, gpu, tp),
            profile=profile,
            parameters=_parameters(profile, intervals[model, gpu, tp]),
            report={"notes": _notes(contradicting.get((model, gpu, tp)))},
        )
        for (model, gpu, tp), profile in profiles.items()
    ]


def _modelled_profiles() -> list[KnownProfile]:
    """Return the catalogue's modelled profiles, with a note on their precision and limits."""
    return [
        KnownProfile(
            name=built_in_name(profile.model, profile.gpu, profile.tp),
            profile=profile,
            report={"notes": [f"Weights in {profile.precision}, as released.", MODELLED_LIMITS]},
        )
        for profile in modelled_profiles()
    ]


def _parameters(
    profile: LinearProfile, intervals: Mapping[str, tuple[float, float]]
) -> dict[str, Any]:
    """Return the parameters of a profile with their 95% ``intervals``, in ms, by name."""
    parameters = {}
    for name in ("alpha", "beta", "gamma", "delta"):
        low, high = intervals.get(name, (None, None))
        parameters[name] = {
            "value": getattr(profile, f"{name}_s") * 1000,
            "low": None if low is None else low * 1000,
            "high": None if high is None else high * 1000,
            "unit": f"m{UNITS[name]}",  # such as "ms per token"
        }
    return parameters


def _notes(contradiction: str | None) -> list[str]:
    """Return the notes of a measured profile: a contradicting measurement, and its limits."""
    notes = [f"{contradiction[0].upper()}{contradiction[1:]}."] if contradiction else []
    limits = catalogue.limits_source()
    return [*notes, f"Limits of batch and tokens are {limits.kind}: {limits.source}."]
