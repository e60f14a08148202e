"""A profile tuned by observations: what was seen is measured, what was not stays as it was."""

import numpy as np
import pytest

from planner.inputs.profiles.tuning import observations_of, tuned_profile
from simulation.performance.fitting.compare import phases, stated_check_of
from simulation.performance.linear import LinearProfile
from simulation.performance.profile import Check
from simulation.performance.specs import Phase, Provenance

MODELLED, MEASURED = Provenance("modelled", "roofline"), Provenance("measured", "rows")
PREFILL = Check("prefill time", "kernels", 40, 0.1, 0.1, 0.3, 0.0)
BEFORE = LinearProfile(
    "m", "g", 1, 8e-3, 2e-4, 1e-2, 5e-5, 64, 2048, 10**6, MODELLED, spread=0.198,
    phases=(Phase(MODELLED), Phase(MEASURED)), checks=(PREFILL,),
)  # fmt: skip


def observed(decodes, tokens, slower=1.2):
    rows = []
    for i, (b, p) in enumerate(zip(decodes, tokens, strict=True)):
        seconds = max(8e-3 * (b > 0), 1e-2 * (p > 0)) + 2e-4 * b + 5e-5 * p
        rows.append({"at_s": 60.0 * i, "decodes": b, "prefill_tokens": p,
                     "seconds": slower * seconds})  # fmt: skip
    return observations_of(rows)


def test_decodes_alone_change_neither_times_nor_kind_nor_error_of_prefill():
    batches = np.tile([1.0, 8.0, 32.0, 64.0], 50)
    tuned = tuned_profile(BEFORE, observed(batches, 0 * batches), None, "live").profile
    assert (tuned.gamma_s, tuned.delta_s) == pytest.approx((1e-2, 5e-5), rel=1e-12)
    assert tuned.alpha_s == pytest.approx(1.2 * 8e-3, rel=0.05)
    prefill, decode = phases(tuned)
    before = phases(BEFORE)[0]
    assert (prefill.kind, prefill.source, prefill.error) == (
        before.kind, before.source, before.error
    )  # fmt: skip
    assert (decode.kind, decode.source, decode.most) == ("measured", "live", 64)
    assert decode.error.mape < 0.05 < prefill.error.mape
    assert tuned.provenance.kind == "modelled"
    assert stated_check_of(tuned).mape >= 0.198


def test_prefills_alone_leave_the_decodes():
    tokens = np.tile([128.0, 512.0, 2048.0], 50)
    tuned = tuned_profile(BEFORE, observed(0 * tokens, tokens), None, "live").profile
    assert (tuned.alpha_s, tuned.beta_s) == pytest.approx((8e-3, 2e-4), rel=1e-12)
    prefill, decode = phases(tuned)
    assert (prefill.kind, prefill.most) == ("measured", 2048)
    assert decode.source == "rows" and PREFILL not in tuned.checks


def test_both_phases_seen_are_both_measured():
    batches = np.tile([8.0, 0.0, 32.0], 40)
    tokens = np.tile([0.0, 512.0, 256.0], 40)
    tuned = tuned_profile(BEFORE, observed(batches, tokens), None, "live").profile
    assert tuned.provenance == Provenance("measured", "live")
    assert {check.rows for check in tuned.checks} == {40} and len(tuned.checks) == 3
