"""Kind, error and range by phase: rows of one phase say nothing about the other."""

from dataclasses import replace

import numpy as np
import pytest

from planner.inputs.catalogue.estimate_calibration import efficiencies
from simulation.performance.fitting.compare import PHASE_OF, combined_provenance, phases, phases_of
from simulation.performance.fitting.fit import Fitter
from simulation.performance.linear import LinearProfile
from simulation.performance.profile import Check, iteration_s
from simulation.performance.roofline import roofline_profile
from simulation.performance.rows import benchmark_rows
from simulation.performance.specs import (
    KINDS,
    Arrangement,
    EngineSettings,
    GpuSpec,
    ModelShape,
    Phase,
    Provenance,
)

MEASURED, MODELLED = Provenance("measured", "rows"), Provenance("modelled", "peaks")
GPU = GpuSpec("g", 8e10, 75, 700, 400, MODELLED, 3e12, {"bf16": 9e14}, 700, 4e11, 5e10, 8, "hopper")
SHAPE = ModelShape("m", 8, 1024, 32000, 16, 4, 64, 4096, 8192)
BATCHES = np.tile([1.0, 4.0, 16.0, 64.0], 5)


def base():
    return roofline_profile(
        SHAPE, GPU, Arrangement(), efficiencies(), EngineSettings(256, 2048, 10**6, 1e-4),
    )  # fmt: skip


def rows(**times):
    ones = np.ones(BATCHES.size)
    numbers = {"tp": ones, "batch": BATCHES, "isl": 512 * ones, "osl": 64 * ones}
    names = {"model": ["m"] * BATCHES.size, "gpu": ["g"] * BATCHES.size}
    return benchmark_rows(names, numbers | times)


def test_rows_of_decodes_leave_a_roofline_prefill_as_modelled():
    before = base()
    tbt = 1.6 * iteration_s(before, BATCHES, BATCHES * 544, 0, 0)
    result = Fitter("roofline", base=before, kv_capacity_tokens=10**6, provenance=MEASURED).fit(
        rows(tbt_s=tbt)
    )
    values = {parameter.name: parameter.value for parameter in result.parameters}
    assert values["decode factor"] == pytest.approx(1.6, rel=0.02)
    assert values["prefill factor"] == 1.0
    lone = (0.0, 0.0, 2048.0, 2048.0 * 1024)
    after = iteration_s(result.profile, *lone)
    assert float(after) == pytest.approx(float(iteration_s(before, *lone)), rel=1e-9)
    prefill, decode = phases(result.profile)
    assert (prefill.kind, prefill.most) == ("modelled", None)
    assert prefill.error.mape == before.spread
    assert (decode.kind, decode.most) == ("measured", 64)
    assert decode.error.mape < 0.05
    assert result.profile.provenance.kind == "modelled"


def test_rows_of_prefills_leave_the_decodes_as_modelled():
    before = base()
    tokens = BATCHES * 512
    prefill_s = 1.3 * iteration_s(before, 0, 0, tokens, tokens * 256)
    result = Fitter("roofline", base=before, kv_capacity_tokens=10**6, provenance=MEASURED).fit(
        rows(prefill_s=prefill_s)
    )
    values = {parameter.name: parameter.value for parameter in result.parameters}
    assert values["decode factor"] == 1.0 and values["prefill factor"] > 1.2
    assert [phase.kind for phase in phases(result.profile)] == ["measured", "modelled"]


def test_checks_count_for_their_phase_and_the_rest_for_both():
    def checked(quantity, error):
        return Check(quantity, "rows", 50, error, error, error, 0.0)

    profile = LinearProfile(
        "m", "g", 1, 1e-2, 1e-4, 1e-2, 1e-5, 64, 2048, 10**6, MEASURED,
        checks=(checked("TBT", 0.02), checked("prefill time", 0.2)),
        fitted_decodes=32, fitted_prefill_tokens=1024,
    )  # fmt: skip
    prefill, decode = phases(profile)
    assert (prefill.error.mape, decode.error.mape) == (0.2, 0.02)
    assert (prefill.most, decode.most) == (1024, 32)
    both = phases(replace(profile, checks=(checked("iteration time", 0.1),)))
    assert [phase.error.mape for phase in both] == [0.1, 0.1]
    assert set(PHASE_OF.values()) == {"prefill", "decode"}


def test_a_profile_without_phases_has_one_origin():
    assert phases_of(base()) == (Phase(base().provenance), Phase(base().provenance))
    assert combined_provenance((Phase(MEASURED), Phase(MEASURED))) == MEASURED


@pytest.mark.parametrize("one", KINDS)
@pytest.mark.parametrize("other", KINDS)
def test_the_whole_is_as_certain_as_its_least_certain_phase(one, other):
    kind = combined_provenance((Phase(Provenance(one, "a")), Phase(Provenance(other, "b")))).kind
    assert KINDS.index(kind) == max(KINDS.index(one), KINDS.index(other))
