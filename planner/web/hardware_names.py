"""List the names that the hardware forms offer: models, GPUs, profiles, kernel files."""

from planner.domain.formats import proper_name
from planner.models import Calibration
from planner.selectors.hardware import gpus_list, models_list
from planner.selectors.measured_corrections import calibrations_list
from planner.selectors.profiles import profiles_list


def profile_choices() -> list[tuple[str, str]]:
    """Return all profiles as choices ("NAME|VERSION", label); built-in ones have no version."""
    choices = []
    for profile in profiles_list():
        if profile.own:
            label = f"{profile.name}, version {profile.version}"
        else:
            engine = proper_name(profile.engine or "")
            facts = filter(None, ("built in", profile.kind, profile.precision, engine))
            label = f"{profile.model} on {profile.tp} x {profile.gpu} ({', '.join(facts)})"
        choices.append((f"{profile.name}|{profile.version or ''}", label))
    return choices


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
