"""List the names that the hardware forms offer: models, GPUs, profiles, kernel files."""

from planner.domain.formats import proper_name
from planner.models import Calibration
from planner.selectors.hardware import gpus_list, models_list
from planner.selectors.measured_corrections import calibrations_list
from planner.selectors.profiles import KnownProfile, profiles_list


def profile_choices() -> list[tuple[str, str]]:
    """Return all profiles as choices ("NAME|VERSION", label); built-in ones have no version."""
    return [
        (f"{profile.name}|{profile.version or ''}", _profile_label(profile))
        for profile in profiles_list()
    ]


def _profile_label(profile: KnownProfile) -> str:
    """Return the name and version of a user's profile, or what a built-in one is for."""
    if profile.own:
        return f"{profile.name}, version {profile.version}"
    engine = proper_name(profile.engine or "")
    parts = filter(None, ("built in", profile.kind, profile.precision, engine))
    return f"{profile.model} on {profile.tp} x {profile.gpu} ({', '.join(parts)})"


def kernel_choices() -> list[tuple[str, str]]:
    """Return the uploaded files of measured kernels as choices (id, label)."""
    rows = calibrations_list().filter(kind=Calibration.Kind.KERNELS)
    return [(str(row.pk), f"{row.name} ({', '.join(row.report['gpus'])})") for row in rows]


def choice_names() -> dict[str, list[str]]:
    """Return the names of models, GPU types and own profiles, by name of the page's list."""
    return {
        "model_names": [entry.name for entry in models_list()],
        "gpu_names": [entry.name for entry in gpus_list()],
        "profile_names": [profile.name for profile in profiles_list() if profile.own],
    }
