"""Names behind the fields of the hardware forms: models, GPUs, profiles, kernel files."""

from __future__ import annotations

from typing import Any

from planner.models import Calibration
from planner.selectors.calibrations import calibrations_list
from planner.selectors.hardware import gpus_list, models_list
from planner.selectors.profiles import profiles_list


def profile_choices() -> list[tuple[str, str]]:
    return [
        (
            f"{one.name}|{one.version or ''}",
            f"{one.name}, version {one.version}" if one.own else f"{one.model} on {one.tp} × "
            f"{one.gpu} (built in, {one.kind})",
        )
        for one in profiles_list()
    ]  # fmt: skip


def kernel_choices() -> list[tuple[str, str]]:
    """Uploaded files of measured kernels."""
    rows = calibrations_list().filter(kind=Calibration.Kind.KERNELS)
    return [(str(row.pk), f"{row.name} ({', '.join(row.report['gpus'])})") for row in rows]


def choice_names() -> dict[str, Any]:
    return {
        "model_names": [entry.name for entry in models_list()],
        "gpu_names": [entry.name for entry in gpus_list()],
        "profile_names": [one.name for one in profiles_list() if one.own],
    }
