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
        said = f"{rows} of this deployment" if self.rows else "measured rows of others like it"
        return f"moved by {said}: decode times {self.decode:.2f}, prefill times {self.prefill:.2f}"


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


def moves(given: Sequence[Deployment], own: Times) -> list[Move]:
    """What the rows make of each: of its decode by the time between tokens at the load that was
    measured, of its prefill by TTFT with nobody else in flight."""
    names = traits_of(given).labels["deployment"]
    loads = {str(name): _measured(own, str(name)) for name in np.unique(names)}
    at = [loads[str(name)] for name in names]
    busy = [
        _under(one, users, isl, osl) for one, (_, users, isl, osl) in zip(given, at, strict=True)
    ]
    tbt = own.tbt.at(traits_of(busy))
    ttft = own.ttft.at(traits_of([replace(one, concurrency=1.0) for one in busy]))
    prompts = own.ttft.rows.labels["deployment"]
    counts = {name: max(int(same.sum()), int((prompts == name).sum()))
              for name, (same, *_) in loads.items()}  # fmt: skip
    decode, prefill = np.exp(tbt.shift), np.exp(ttft.shift)
    return [
        Move(float(decode[i]), float(prefill[i]), users, isl, float(tbt.after[i]),
             counts[str(names[i])], same)
        for i, (same, users, isl, _) in enumerate(at)
    ]  # fmt: skip


def _under(one: Deployment, users: float, isl: float, osl: float) -> Deployment:
    """At another load; requests longer than its model takes are as long as it takes."""
    fit = min(1.0, one.shape.max_context / (isl + osl))
    return replace(
        one, isl=max(1.0, fit * isl), osl=max(1.0, fit * osl), concurrency=max(users, 1.0)
    )


def _measured(own: Times, name: str) -> tuple[BoolArray, float, float, float]:
    """Which rows of TBT are of a deployment, and the load that they (or else all) were under:
    requests in flight, input and output tokens, geometric means."""
    same = np.asarray(own.tbt.rows.labels["deployment"] == name)
    load = own.tbt.rows.load[same] if same.any() else own.tbt.rows.load
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
    own: Times | None,
) -> GraphProfile:
    """``profile`` with its decode and prefill each times what the rows say."""
    if own is None:
        return profile
    given = deployed(
        shape, gpu, where, engine, apart=section.role != "mixed", version=section.engine_version
    )
    (move,) = moves([given], own)
    if move.nothing:
        return profile
    return replace(
        profile,
        curve=move.curve(profile.curve),
        start_s=move.prefill * profile.start_s,
        spread=min(profile.spread, move.spread),
        checks=_checks(own.tbt, move.same) or profile.checks,
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
