"""Correct computed profiles by the stored measurements, in the same way as estimates."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from planner.inputs.catalogue.serving import ENGINE
from planner.inputs.scenario.schema import Profile
from planner.inputs.scenario.user_facts import UserFacts
from simulation.arrays import BoolArray, FloatArray
from simulation.performance.compiled_graph import GraphProfile
from simulation.performance.curves import Curve, scaled_by_phase
from simulation.performance.estimate.defaults import Deployment
from simulation.performance.estimate.measured_corrections import (
    Times,
    layer_sizes_key,
    traits_of,
)
from simulation.performance.profile import check
from simulation.performance.specs import Arrangement, GpuSpec, ModelShape, Provenance

LEFT_OUT = "measured rows of this deployment, each predicted from the others"
USERS, ISL, OSL = 32.0, 1024.0, 256.0  # load of a deployment for which nothing states one


def engine_of(section: Profile, shape: ModelShape, gpu: GpuSpec, user_facts: UserFacts) -> str:
    """Return a section's engine, else that of measurements of the model on the GPU, else ENGINE."""
    if section.engine or user_facts.own is None:
        return section.engine or ENGINE
    labels = user_facts.own.tbt.rows.labels
    is_same = (labels["model"] == layer_sizes_key(shape)) & (labels["gpu"] == gpu.name)
    return str(labels["engine"][is_same][0]) if is_same.any() else ENGINE


class DeploymentLoad(NamedTuple):
    """The TBT rows of a deployment, and the geometric means of their load."""

    own_rows: BoolArray  # mask of them among all rows
    users: float  # requests in flight
    isl: float
    osl: float

    @classmethod
    def of(cls, times: Times, name: str) -> DeploymentLoad:
        """Return the rows labelled ``name``, and their load (if there are none, of all rows)."""
        own_rows = np.asarray(times.tbt.rows.labels["deployment"] == name)
        all_loads = times.tbt.rows.load  # logarithms: users, isl, osl, ... [rows, 3 or more]
        log_loads = all_loads[own_rows] if own_rows.any() else all_loads
        if not log_loads.size:
            return cls(own_rows, USERS, ISL, OSL)
        users, isl, osl = np.exp(log_loads.mean(axis=0))[:3].tolist()  # geometric means
        return cls(own_rows, users, isl, osl)

    def applied_to(self, deployment: Deployment) -> Deployment:
        """Return a deployment with this load, in at most its model's context.

        The load may be that of other models, with longer contexts than this model allows.
        """
        scale = min(1.0, deployment.shape.max_context / (self.isl + self.osl))
        isl, osl = max(1.0, scale * self.isl), max(1.0, scale * self.osl)
        return replace(deployment, isl=isl, osl=osl, concurrency=max(1.0, self.users))


@dataclass(frozen=True, slots=True, eq=False)
class SpeedCorrection:
    """How the user's measured rows correct the speed of one deployment."""

    decode: float  # factor on decode time
    prefill: float  # factor on prefill time
    load: DeploymentLoad  # of its rows, else of all rows
    spread: float  # standard deviation of the remaining log error, as stated
    residual: float  # log error that remains of a row at this load
    rows: int  # number of rows of the same deployment

    @property
    def is_negligible(self) -> bool:
        return abs(self.decode - 1.0) + abs(self.prefill - 1.0) < 1e-9

    def curve(self, before: Curve) -> Curve:
        """Return the corrected times; each factor holds at the load that was measured."""
        users = max(self.load.users, 1.0)
        return scaled_by_phase(before, self.decode, self.prefill, users, self.load.isl)

    @property
    def words(self) -> str:
        """Return a phrase on the rows and the factors, for the source of a profile."""
        rows = "measured rows of similar deployments"
        if self.rows:
            rows = f"{self.rows} measured {'row' if self.rows == 1 else 'rows'} of this deployment"
        return f"corrected by {rows}: decode x{self.decode:.2f}, prefill x{self.prefill:.2f}"


def deployment_of(
    shape: ModelShape,
    gpu: GpuSpec,
    arrangement: Arrangement,
    engine: str,
    *,
    disaggregated: bool,
    version: str = "",
) -> Deployment:
    """Return an instance's deployment at nominal load, to compare with measured rows."""
    return Deployment(
        shape, gpu, arrangement, ISL, OSL, USERS, engine,
        prefill=arrangement if disaggregated else None, version=version,
    )  # fmt: skip


def speed_corrections(deployments: Sequence[Deployment], times: Times) -> list[SpeedCorrection]:
    """Return the correction of each deployment: of decode by TBT, of prefill by TTFT.

    TBT is corrected at the load that was measured, TTFT with a single request in flight.
    """
    names = [str(name) for name in traits_of(deployments).labels["deployment"]]
    load_by_name = {name: DeploymentLoad.of(times, name) for name in sorted(set(names))}
    at_load = [
        load_by_name[name].applied_to(deployment)
        for deployment, name in zip(deployments, names, strict=True)
    ]
    tbt = times.tbt.at(traits_of(at_load))
    # With one request in flight, TTFT has no time in the queue.
    alone = [replace(deployment, concurrency=1.0) for deployment in at_load]
    ttft = times.ttft.at(traits_of(alone))
    ttft_names = times.ttft.rows.labels["deployment"]
    corrections = []
    for i, name in enumerate(names):  # shifts are added to the logarithms of estimates
        load = load_by_name[name]
        corrections.append(
            SpeedCorrection(
                decode=float(np.exp(tbt.shift[i])),
                prefill=float(np.exp(ttft.shift[i])),
                load=load,
                spread=float(tbt.stated[i]),
                residual=float(tbt.residual[i]),
                rows=max(int(load.own_rows.sum()), int((ttft_names == name).sum())),
            )
        )
    return corrections


def measured_speed(
    profile: GraphProfile, deployed: Deployment, times: Times | None
) -> GraphProfile:
    """Return ``profile`` corrected by the ``times`` of similar deployments (None: not at all)."""
    if times is None:
        return profile
    (correction,) = speed_corrections([deployed], times)
    if correction.is_negligible:
        return profile
    checks, own_rows = profile.checks, correction.load.own_rows
    if own_rows.sum() >= 2:  # each row is predicted from the others
        measured: FloatArray = np.exp(times.tbt.log_errors[own_rows])
        predicted = np.exp(times.tbt.leave_one_out_errors()[own_rows])
        checks = (check("TBT while serving", LEFT_OUT, measured, predicted),)
    # Rows of TBT alone tell nothing about prefill, so the profile's spread then stays.
    measured_spread = correction.spread if times.ttft.rows.load.size else profile.spread
    source = f"{profile.provenance.source}; {correction.words}"
    return replace(
        profile,
        curve=correction.curve(profile.curve),
        start_s=correction.prefill * profile.start_s,
        spread=max(min(profile.spread, measured_spread), correction.residual),
        checks=checks,
        provenance=Provenance(profile.provenance.kind, source),
    )
