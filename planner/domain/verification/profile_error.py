"""Measure the effect of profile errors on a plan, by planning again with changed speeds."""

from dataclasses import dataclass, replace

import numpy as np

from planner.domain.planning.inputs import Load
from planner.domain.planning.planning import plan_load
from planner.domain.progress import Progress, part
from planner.domain.sizing.closed_form import size_factors
from planner.domain.study import Study
from planner.errors import Infeasible, ScenarioError, SolverFailed
from planner.inputs.scenario.build import Hardware
from planner.optimizer.problem import ScalingPlan
from simulation.arrays import IntArray
from simulation.performance.adjusted_profile import scale_profile_times
from simulation.performance.fitting.compare import stated_check_of
from simulation.performance.profile import Profile

UNCHECKED = "not checked against measurements"
LARGEST_SUBTRACTED_ERROR = 0.5  # larger errors divide the times of a faster profile


@dataclass(frozen=True, slots=True)
class StatedError:
    """Error of a profile as a fraction, and the basis on which it was found."""

    value: float
    basis: str


def stated_error(profile: Profile) -> StatedError | None:
    """Return the error that a profile states, with its basis; None if no error is known.

    It is usually the largest mean absolute error among the quantities that were checked. See
    ``stated_check`` for the error that is expected instead if the checks are few or none.
    """
    check = stated_check_of(profile)
    if check is None:
        return None
    return StatedError(check.mape, f"{check.quantity}, {check.against}")


StatedErrors = dict[tuple[int, int], StatedError | None]  # by model and GPU column


@dataclass(frozen=True, slots=True)
class ProfileError:
    """The error of a profile, and its effect on the peak number of replicas over all regions.

    The peak is given for the plan as it is, and with all profiles slower or faster by their errors.
    """

    model: str
    gpu: str
    tp: int
    arrangement: str
    kind: str
    error: float | None
    basis: str
    replicas: int
    replicas_if_slower: int | None
    replicas_if_faster: int | None
    note: str


def profile_errors(
    study: Study, load: Load, plan: ScalingPlan, progress: Progress
) -> tuple[ProfileError, ...]:
    """Return the error of every profile, and the peak replicas if all profiles are off by theirs.

    ``plan`` is the plan of ``load``. The peaks are None if no error is known, or if no plan is
    feasible; ``note`` then says why.
    """
    hardware = study.hardware
    errors = _stated_errors(hardware)
    slower, why_slower = _peaks_at_error(study, load, errors, +1, part(progress, 0.0, 0.5))
    faster, why_faster = _peaks_at_error(study, load, errors, -1, part(progress, 0.5, 1.0))
    unchanged = _peaks(plan)
    rows = []
    for key, profile in hardware.profiles.items():  # key: (model, GPU column)
        error = errors[key]
        row = ProfileError(
            model=profile.model,
            gpu=profile.gpu,
            tp=profile.tp,
            arrangement=hardware.arrangement(*key),
            kind=profile.kind,
            error=error.value if error else None,
            basis=error.basis if error else UNCHECKED,
            replicas=int(unchanged[key]),
            replicas_if_slower=int(slower[key]) if error and slower is not None else None,
            replicas_if_faster=int(faster[key]) if error and faster is not None else None,
            note=why_slower or why_faster,
        )
        rows.append(row)
    return tuple(rows)


def hardware_at_errors(hardware: Hardware) -> tuple[Hardware, ...]:
    """Return the hardware with slower and with faster profiles; () if no error is known."""
    errors = _stated_errors(hardware)
    if not any(errors.values()):
        return ()
    return _at_error(hardware, errors, +1), _at_error(hardware, errors, -1)


def _stated_errors(hardware: Hardware) -> StatedErrors:
    """Return the error of each profile, by model and GPU column."""
    profiles = hardware.profiles.items()
    return {model_column: stated_error(profile) for model_column, profile in profiles}


def _at_error(hardware: Hardware, errors: StatedErrors, sign: int) -> Hardware:
    """Return ``hardware`` with all profiles slower (``sign`` +1) or faster (-1) by their errors."""
    profiles = dict(hardware.profiles)
    for model_column, error in errors.items():
        if error is not None:
            profiles[model_column] = slower_or_faster(profiles[model_column], error.value, sign)
    return replace(hardware, profiles=profiles)


def _peaks_at_error(
    study: Study,
    load: Load,
    errors: StatedErrors,
    sign: int,
    progress: Progress,
) -> tuple[IntArray | None, str]:
    """Plan with all profiles slower (``sign`` +1) or faster (-1) by their errors.

    Return (peaks, reason): the peak replicas ``[model, GPU column]``, or None and why there is no
    plan. If no error is known, return (None, "").
    """
    if not any(errors.values()):
        return None, ""
    hardware = _at_error(study.hardware, errors, sign)  # with the changed profiles
    changed = "slower" if sign > 0 else "faster"
    try:
        factors = size_factors(  # changed capacity over the present one
            study.hardware, hardware, study.sizes, study.traffic.lengths, study.traffic.shared
        )
        inputs = replace(study.plan_input, hardware=hardware, sizes=study.sizes.scaled(factors))
        plan = plan_load(inputs, load, progress)
    except (Infeasible, ScenarioError, SolverFailed) as problem:
        return None, f"With profiles {changed} by their error, no plan is feasible: {problem}"
    return _peaks(plan), ""


def slower_or_faster(profile: Profile, error: float, sign: int) -> Profile:
    """Return ``profile`` with all times longer (``sign`` +1) or shorter (-1) by share ``error``."""
    if sign > 0:
        factor = 1.0 + error
    elif error < LARGEST_SUBTRACTED_ERROR:
        factor = 1.0 - error
    else:  # 1 - error would reach 0
        factor = 1.0 / (1.0 + error)
    return scale_profile_times(profile, factor)


def _peaks(plan: ScalingPlan) -> IntArray:
    """Return the most replicas at any time over all regions, ``[model, GPU column]``."""
    return np.asarray(plan.target.sum(axis=2).max(axis=0))
