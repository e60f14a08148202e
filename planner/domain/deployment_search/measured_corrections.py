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

    ``users`` are the requests in flight of each.
    """
    deployments, roles = [], []  # ``roles``: decode and prefill of each deployment, in turn
    for candidate, in_flight in zip(rated, users, strict=True):
        decode = candidate.candidate.decode
        apart, engine = candidate.candidate.prefill is not None, decode.engines[0]
        prefill = candidate.candidate.prefill or decode
        deployed_decode = deployment_of(
            shape, decode.gpu, decode.where, engine, disaggregated=apart
        )
        roles += [
            deployed_decode,
            deployment_of(shape, prefill.gpu, prefill.where, engine, disaggregated=apart),
        ]
        deployments.append(
            replace(
                deployed_decode, prefill=prefill.where if apart else None, isl=float(query.isl),
                osl=float(query.osl), concurrency=max(in_flight, 1.0),
            )
        )  # fmt: skip
    factors = speed_corrections(roles, measurements.times)
    return [
        Correction(change, factors[2 * i].decode, factors[2 * i + 1].prefill)
        for i, change in enumerate(changes(measurements, deployments, fit))
    ]
