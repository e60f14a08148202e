"""Computed profiles moved by measurements of one's own, as estimates are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from planner.catalogue.serving import ENGINE
from planner.scenario.known import Known
from planner.scenario.schema import Profile
from simulation.arrays import BoolArray, FloatArray
from simulation.performance.compiled_graph import GraphProfile
from simulation.performance.curves import Curve
from simulation.performance.estimate.arranging import Deployment
from simulation.performance.estimate.own import Learnt, Times, family, traits_of
from simulation.performance.fitting.fit import by_phase
from simulation.performance.profile import Check, check
from simulation.performance.specs import Arrangement, GpuSpec, ModelShape, Provenance

LEFT_OUT = "measured rows of this deployment, each left out of the calibration"
USERS, ISL, OSL = 32.0, 1024.0, 256.0  # of a deployment of which nothing was measured


def engine_of(section: Profile, shape: ModelShape, gpu: GpuSpec, known: Known) -> str:
    """The engine that the section names, else the one that the model was measured with on this GPU
    type, else the one that estimates take."""
    if section.engine or known.own is None:
        return section.engine or ENGINE
    rows = known.own.tbt.rows
    same = (rows.labels["model"] == family(shape)) & (rows.labels["gpu"] == gpu.name)
    return str(rows.labels["engine"][same][0]) if same.any() else ENGINE


@dataclass(frozen=True, slots=True, eq=False)
class Move:
    """By what measured rows move the speed of one deployment."""

    decode: float  # factor on the time of what decodes
    prefill: float  # and of what prefills
    users: float  # in flight where it was measured; of its rows, else of all
    isl: float
    spread: float  # standard deviation of what is left, a logarithm
    rows: int  # of the same deployment
    same: BoolArray  # which of the rows of TBT those are

    @property
    def nothing(self) -> bool:
        return abs(self.decode - 1.0) + abs(self.prefill - 1.0) < 1e-9

    def curve(self, before: Curve) -> Curve:
        return by_phase(before, self.decode, self.prefill, max(self.users, 1.0), self.isl)

    @property
    def words(self) -> str:
        rows = f"{self.rows} measured row{'' if self.rows == 1 else 's'}"
        rows_of = f"{rows} of this deployment" if self.rows else "measured rows of others like it"
        return (
            f"moved by {rows_of}: decode times {self.decode:.2f}, prefill times {self.prefill:.2f}"
        )


def deployed(
    shape: ModelShape,
    gpu: GpuSpec,
    where: Arrangement,
    engine: str,
    *,
    apart: bool,
    version: str = "",
) -> Deployment:
    """As rows are compared with it; ``apart``: prefill and decode on instances of their own."""
    return Deployment(
        shape, gpu, where, ISL, OSL, USERS, engine, prefill=where if apart else None,
        version=version,
    )  # fmt: skip


def moves(deployments: Sequence[Deployment], times: Times) -> list[Move]:
    """What the rows make of each: of its decode by the time between tokens at the load that was
    measured, of its prefill by TTFT with nobody else in flight."""
    names = traits_of(deployments).labels["deployment"]
    loads = {str(name): _measured(times, str(name)) for name in np.unique(names)}
    loads_of = [loads[str(name)] for name in names]
    busy = [
        _under(deployment, users, isl, osl)
        for deployment, (_, users, isl, osl) in zip(deployments, loads_of, strict=True)
    ]
    tbt = times.tbt.at(traits_of(busy))
    ttft = times.ttft.at(traits_of([replace(deployment, concurrency=1.0) for deployment in busy]))
    prompts = times.ttft.rows.labels["deployment"]
    counts = {name: max(int(same.sum()), int((prompts == name).sum()))
              for name, (same, *_) in loads.items()}  # fmt: skip
    decode, prefill = np.exp(tbt.shift), np.exp(ttft.shift)
    return [
        Move(float(decode[i]), float(prefill[i]), users, isl, float(tbt.after[i]),
             counts[str(names[i])], same)
        for i, (same, users, isl, _) in enumerate(loads_of)
    ]  # fmt: skip


def _under(deployment: Deployment, users: float, isl: float, osl: float) -> Deployment:
    """At another load; requests longer than its model takes are as long as it takes."""
    fit = min(1.0, deployment.shape.max_context / (isl + osl))
    return replace(
        deployment, isl=max(1.0, fit * isl), osl=max(1.0, fit * osl), concurrency=max(users, 1.0)
    )


def _measured(times: Times, name: str) -> tuple[BoolArray, float, float, float]:
    """Which rows of TBT are of a deployment, and the load that they (or else all) were under:
    requests in flight, input and output tokens, geometric means."""
    same = np.asarray(times.tbt.rows.labels["deployment"] == name)
    load = times.tbt.rows.load[same] if same.any() else times.tbt.rows.load
    if not load.size:
        return same, USERS, ISL, OSL
    users, isl, osl = (float(value) for value in np.exp(load.mean(axis=0))[:3])
    return same, users, isl, osl


def measured_speed(
    profile: GraphProfile,
    section: Profile,
    engine: str,
    shape: ModelShape,
    gpu: GpuSpec,
    where: Arrangement,
    times: Times | None,
) -> GraphProfile:
    """``profile`` with its decode and prefill each times what the rows say."""
    if times is None:
        return profile
    as_deployed = deployed(
        shape, gpu, where, engine, apart=section.role != "mixed", version=section.engine_version
    )
    (move,) = moves([as_deployed], times)
    if move.nothing:
        return profile
    return replace(
        profile,
        curve=move.curve(profile.curve),
        start_s=move.prefill * profile.start_s,
        spread=min(profile.spread, move.spread),
        checks=_checks(times.tbt, move.same) or profile.checks,
        provenance=Provenance(
            profile.provenance.kind, f"{profile.provenance.source}; {move.words}"
        ),
    )


def _checks(learnt: Learnt, same: BoolArray) -> tuple[Check, ...]:
    """What its own rows say of each other."""
    if same.sum() < 2:
        return ()
    measured: FloatArray = np.exp(learnt.off[same])
    return (check("TBT while serving", LEFT_OUT, measured, np.exp(learnt.left_out()[same])),)
