"""Computed profiles moved by measurements of one's own, as estimates are."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from planner.scenario.known import Known
from planner.scenario.schema import Profile
from simulation.arrays import BoolArray, FloatArray
from simulation.performance.compiled_graph import GraphProfile
from simulation.performance.estimate.arranging import Deployment
from simulation.performance.estimate.own import Learnt, Times, family, traits_of
from simulation.performance.fitting.fit import by_phase
from simulation.performance.profile import Check, check
from simulation.performance.specs import Arrangement, GpuSpec, ModelShape, Provenance

LEFT_OUT = "measured rows of this deployment, each left out of the calibration"
USERS, ISL, OSL = 32.0, 1024.0, 256.0  # of a deployment of which nothing was measured


def engine_of(section: Profile, shape: ModelShape, gpu: GpuSpec, known: Known) -> str | None:
    """The engine that the section names, else the one that the model was measured with on this GPU
    type; None where neither says."""
    if section.engine or known.own is None:
        return section.engine
    rows = known.own.tbt.rows
    same = (rows.labels["model"] == family(shape)) & (rows.labels["gpu"] == gpu.name)
    return str(rows.labels["engine"][same][0]) if same.any() else None


def measured_speed(
    profile: GraphProfile,
    section: Profile,
    engine: str | None,
    shape: ModelShape,
    gpu: GpuSpec,
    where: Arrangement,
    own: Times | None,
) -> GraphProfile:
    """``profile`` with its decode and prefill each times what the rows say: decode by the time
    between tokens at the load that was measured, prefill by TTFT with nobody else in flight."""
    if own is None or engine is None:
        return profile
    given = Deployment(
        shape, gpu, where, ISL, OSL, USERS, engine,
        prefill=None if section.role == "mixed" else where, version=section.engine_version,
    )  # fmt: skip
    same = _same(own.tbt, given)
    load = own.tbt.rows.load[same] if same.any() else own.tbt.rows.load
    users, isl, osl = np.exp(load.mean(axis=0))[:3] if load.size else (USERS, ISL, OSL)
    given = replace(given, isl=isl, osl=osl, concurrency=max(users, 1.0))
    tbt = own.tbt.at(traits_of([given]))
    ttft = own.ttft.at(traits_of([replace(given, concurrency=1.0)]))
    decode, prefill = float(np.exp(tbt.shift[0])), float(np.exp(ttft.shift[0]))
    rows = int(max(same.sum(), _same(own.ttft, given).sum()))
    if abs(decode - 1.0) + abs(prefill - 1.0) < 1e-9:
        return profile
    said = f"{rows} measured rows of this deployment" if rows else "measured rows of others like it"
    return replace(
        profile,
        curve=by_phase(profile.curve, decode, prefill, max(float(users), 1.0), float(isl)),
        spread=min(profile.spread, float(tbt.after[0])),
        checks=_checks(own.tbt, same) or profile.checks,
        provenance=Provenance(
            profile.provenance.kind,
            f"{profile.provenance.source}; moved by {said}: decode times {decode:.2f}, prefill "
            f"times {prefill:.2f}",
        ),
    )


def _same(learnt: Learnt, given: Deployment) -> BoolArray:
    """Which rows are of the deployment, whatever its load."""
    name = traits_of([given]).labels["deployment"][0]
    return np.asarray(learnt.rows.labels["deployment"] == name)


def _checks(learnt: Learnt, same: BoolArray) -> tuple[Check, ...]:
    """What its own rows say of each other."""
    if same.sum() < 2:
        return ()
    measured: FloatArray = np.exp(learnt.off[same])
    return (check("TBT while serving", LEFT_OUT, measured, np.exp(learnt.left_out()[same])),)
