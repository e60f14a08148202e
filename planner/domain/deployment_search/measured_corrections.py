"""Correct the found deployments by the user's own measurements."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from planner.domain.deployment_search.query import DeploymentQuery
from planner.inputs.catalogue.estimate_calibration import EstimateFit
from planner.inputs.estimates.measured_corrections import Change, MeasuredCorrections, changes
from planner.inputs.scenario.measured_corrections import deployment_of, speed_corrections
from simulation.performance.specs import ModelShape
from simulation.search.values import RatedCandidate


@dataclass(frozen=True, slots=True)
class Correction:
    """How the user's measurements change the estimate of one deployment."""

    change: Change  # of the TTFT and TBT estimates at its load, with their errors
    decode: float  # factor on decode times in the search
    prefill: float  # factor on prefill times in the search


def corrections_of(
    rated: Sequence[RatedCandidate],
    users: Sequence[float],
    query: DeploymentQuery,
    shape: ModelShape,
    measurements: MeasuredCorrections,
    fit: EstimateFit,
) -> list[Correction]:
    """Return how the user's measurements change the estimates of the ``rated`` deployments.

    ``users`` are the mean requests in flight of each deployment.
    """
    deployments, decode_roles, prefill_roles = [], [], []
    for row, in_flight in zip(rated, users, strict=True):
        decode = row.candidate.decode
        disaggregated, engine = row.candidate.prefill is not None, decode.engines[0]
        prefill = row.candidate.prefill or decode
        decode_role = deployment_of(
            shape, decode.gpu, decode.where, engine, disaggregated=disaggregated
        )
        prefill_role = deployment_of(
            shape, prefill.gpu, prefill.where, engine, disaggregated=disaggregated
        )
        decode_roles.append(decode_role)
        prefill_roles.append(prefill_role)
        deployments.append(
            replace(
                decode_role, prefill=prefill.where if disaggregated else None,
                isl=float(query.isl), osl=float(query.osl), concurrency=max(in_flight, 1.0),
            )
        )  # fmt: skip
    # One call for both roles, since each call compares with all measured rows.
    factors = speed_corrections([*decode_roles, *prefill_roles], measurements.times)
    decode_factors, prefill_factors = factors[: len(rated)], factors[len(rated) :]
    return [
        Correction(change, decode_factor.decode, prefill_factor.prefill)
        for change, decode_factor, prefill_factor in zip(
            changes(measurements, deployments, fit), decode_factors, prefill_factors, strict=True
        )
    ]
