"""Correct the found deployments by the user's own measurements."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from planner.domain.deployment_search.query import DeploymentQuery
from planner.inputs.catalogue.estimate_calibration import EstimateFit
from planner.inputs.estimates.measured_corrections import Change, MeasuredCorrections, changes
from planner.inputs.scenario.measured_corrections import deployment_of, speed_corrections
from simulation.performance.estimate.defaults import Deployment
from simulation.performance.specs import ModelShape
from simulation.search.values import Candidate, Instance, RatedCandidate


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
    # By deployment: as a whole, and its replicas as decode and as prefill.
    deployments, decode_roles, prefill_roles = [], [], []
    for row, in_flight in zip(rated, users, strict=True):
        decode, prefill = row.candidate.decode, row.candidate.prefill
        decode_role = _role(shape, row.candidate, decode)
        decode_roles.append(decode_role)
        prefill_roles.append(_role(shape, row.candidate, prefill or decode))
        deployment = replace(
            decode_role,
            prefill=prefill.where if prefill else None,
            isl=float(query.isl),
            osl=float(query.osl),
            concurrency=max(in_flight, 1.0),
        )
        deployments.append(deployment)
    # One call for both roles, since each call compares with all measured rows.
    factors = speed_corrections([*decode_roles, *prefill_roles], measurements.times)
    decodes, prefills = factors[: len(rated)], factors[len(rated) :]
    error_changes = changes(measurements, deployments, fit)
    return [
        Correction(change, decode.decode, prefill.prefill)
        for change, decode, prefill in zip(error_changes, decodes, prefills, strict=True)
    ]


def _role(shape: ModelShape, candidate: Candidate, replica: Instance) -> Deployment:
    """Return one role of a candidate as a deployment to measure: that of a ``replica`` of it."""
    engine, disaggregated = candidate.decode.engines[0], candidate.prefill is not None
    return deployment_of(shape, replica.gpu, replica.where, engine, disaggregated=disaggregated)
