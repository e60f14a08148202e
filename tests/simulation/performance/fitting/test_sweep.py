"""A deployment served at one isl and osl over a range of load, and what its fit is tied to."""

from dataclasses import replace

import numpy as np
import pytest

from simulation.errors import SimulationError
from simulation.performance.adjusted_profile import AdjustedProfile, adjust_profile
from simulation.performance.curves import Part, grid, scaled_by_phase
from simulation.performance.fitting.compare import (
    EXPECTED,
    FITTED,
    INSIDE,
    SERVED_TTFT,
    UNSEEN,
    Waiting,
    compare_with,
    phases,
    stated_check,
    telling_check,
)
from simulation.performance.fitting.fit import Fitter
from simulation.performance.fitting.fit_sweep import is_sweep, prompt_alone
from simulation.performance.linear import LinearProfile
from simulation.performance.profile import Check, check, iteration_s
from simulation.performance.rows import benchmark_rows
from simulation.performance.specs import Provenance
from tests.simulation.performance.rows import joined

SOURCE = Provenance("measured", "test")
LIMITS = {"kv_capacity_tokens": 10**6, "provenance": SOURCE}
WAITING = Waiting(start_s=0.02, order=0.1)
LOADS = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0)
TRUE = LinearProfile("m", "g", 2, 8e-3, 2e-4, 1e-2, 5e-5, 256, 2048, 10**6, SOURCE)
MODELLED = replace(
    TRUE, gamma_s=TRUE.gamma_s / 1.25, delta_s=TRUE.delta_s / 1.25,
    alpha_s=1.0, beta_s=1.0, provenance=Provenance("modelled", "peaks"), spread=0.2,
)  # fmt: skip


def sweep(profile=TRUE, loads=LOADS, isl=1024.0, osl=128.0, throughput=False):
    """Rows as the steady state has them, every iteration with its b isl / osl prompt tokens."""
    users = np.array(loads)
    b = users * 0.9 if throughput else users
    tokens = b * isl / osl
    tbt = iteration_s(profile, b, b * (isl + osl / 2), tokens, tokens * isl / 2)
    prompt = np.full(b.size, float(iteration_s(profile, 0, 0, isl, isl * isl / 2)))
    osls = np.full(b.size, osl)
    ttft = np.where(users > 1, WAITING.ttft_s(prompt, tbt, osls, users, users), prompt)
    numbers = {
        "tp": np.full(b.size, 2.0), "concurrency": users, "isl": np.full(b.size, isl),
        "osl": osls, "tbt_s": tbt, "ttft_s": ttft,
    }  # fmt: skip
    if throughput:
        numbers["throughput"] = b / tbt
    return benchmark_rows({"model": ["m"] * b.size, "gpu": ["g"] * b.size}, numbers)


def test_a_sweep_is_one_proportion_of_isl_to_osl():
    rows = sweep()
    assert is_sweep(rows)
    assert is_sweep(replace(rows, isl=rows.isl * np.linspace(0.98, 1.02, rows.rows)))
    assert not is_sweep(joined([rows, sweep(isl=2048.0)]))
    assert not is_sweep(replace(rows, batch=rows.concurrency))


def fitted(rows, base=MODELLED, **more):
    return Fitter(
        "linear", base=base, waiting=WAITING, max_batch_tokens=2048, **LIMITS, **more
    ).fit(rows)


@pytest.mark.parametrize("throughput", [False, True])
def test_what_a_base_in_proportion_ties_comes_out_exactly(throughput):
    true = replace(TRUE, alpha_s=1.1e-2)  # not below gamma: else a mixed iteration hides alpha
    result = fitted(sweep(true, throughput=throughput))
    values = [p.value for p in result.parameters]
    assert values == pytest.approx([1.1e-2, 2e-4, 1e-2, 5e-5], rel=1e-6)
    assert all(p.low <= p.value <= p.high for p in result.parameters)
    # the prompt's time is measured at one length: its parts are no surer than the modelled line
    _, _, gamma, delta = result.parameters
    assert gamma.high == pytest.approx(1e-2 * np.exp(1.96 * 0.2), rel=1e-3)
    assert delta.low == pytest.approx(5e-5 / np.exp(1.96 * 0.2), rel=1e-3)
    assert "times 1.25" in result.notes[0]
    assert result.profile.provenance.kind == "modelled"
    assert [phase.kind for phase in phases(result.profile)] == ["modelled", "measured"]
    assert result.profile.spread == 0.2
    assert {c.quantity for c in result.profile.checks if UNSEEN in c.against} >= {SERVED_TTFT}
    assert max(c.mape for c in result.profile.checks) < 1e-6


def test_waiting_is_not_taken_for_prefill_where_no_request_is_alone():
    true = replace(TRUE, alpha_s=1.1e-2)
    rows = sweep(true, loads=(2.0, 8.0, 16.0, 32.0, 64.0))
    result = fitted(rows)
    assert [p.value for p in result.parameters] == pytest.approx([1.1e-2, 2e-4, 1e-2, 5e-5])
    assert "taken for waiting" in result.notes[1]
    delta = result.parameters[3]
    assert delta.high > rows.ttft_s.min() / (1e-2 + 5e-5 * 1024) * 5e-5  # were all of it prefill
    plain = prompt_alone(rows, None)
    delayed = prompt_alone(rows, WAITING)
    assert plain is not None and delayed is not None
    assert (delayed.seconds < plain.seconds).all() and delayed.high == pytest.approx(plain.seconds)
    # no more than half of it: a start longer than TTFT cannot be
    half = prompt_alone(rows, Waiting(10.0, 0.1))
    assert half is not None and half.seconds == pytest.approx(plain.seconds / 2)


def test_prompts_never_take_more_of_tbt_than_it_grows_by():
    rows = sweep(replace(TRUE, alpha_s=1.1e-2))
    result = fitted(replace(rows, ttft_s=rows.ttft_s * 10))
    alpha, beta, gamma, delta = (p.value for p in result.parameters)
    assert beta == 0 and delta * 8 == pytest.approx(2e-4 + 5e-5 * 8)
    assert gamma == pytest.approx(1.1e-2) and alpha == pytest.approx(1.1e-2)
    assert "all that the time between tokens grows by" in result.notes[-1]
    rest = 10 * (1e-2 + 5e-5 * 1024) - gamma - delta * 1024
    assert f"{rest * 1e3:.3g} ms of a prompt are in no iteration" in result.notes[-1]


def test_gamma_is_never_above_the_iteration_that_holds_both():
    result = fitted(sweep(replace(TRUE, alpha_s=8e-3, gamma_s=8e-3)))
    alpha, beta, gamma, delta = (p.value for p in result.parameters)
    assert (alpha, gamma) == pytest.approx((8e-3, 8e-3))  # 1e-2 in proportion, were it allowed
    assert (beta, delta) == pytest.approx((2e-4, 5e-5))
    assert max(c.mape for c in result.profile.checks) < 1e-6


def test_a_little_more_than_one_in_flight_waits_a_little():
    rows = sweep()
    alone = prompt_alone(rows.take([0]), WAITING)
    nearly = prompt_alone(replace(rows, concurrency=rows.concurrency * 1.02).take([0]), WAITING)
    assert alone is not None and nearly is not None
    assert nearly.seconds == pytest.approx(alone.seconds, rel=0.02)
    assert (nearly.seconds < alone.seconds).all()


def test_long_contexts_are_fitted_where_there_is_nothing_shorter():
    true = replace(TRUE, alpha_s=1.1e-2)
    result = fitted(sweep(true, isl=6144.0, osl=768.0))
    # three chunks of 2,048 tokens are prefilled one after the other
    assert result.parameters[3].value > 0 and result.parameters[0].value == pytest.approx(1.1e-2)


@pytest.mark.parametrize("crowd", [False, True])
def test_without_a_ttft_that_tells_the_factor_is_of_the_time_between_tokens(crowd):
    slower = {p: getattr(TRUE, p) * 1.25 for p in ("beta_s", "gamma_s", "delta_s")}
    true = replace(TRUE, alpha_s=1.25e-2, **slower)
    rows = sweep(true, loads=(4.0, 8.0, 16.0, 32.0) if crowd else LOADS)
    if not crowd:
        rows = replace(rows, ttft_s=np.full(rows.rows, np.nan))
    result = fitted(rows, base=replace(TRUE, alpha_s=1e-2))
    values = [p.value for p in result.parameters]
    assert values == pytest.approx([1.25e-2, 2.5e-4, 1.25e-2, 6.25e-5])
    assert "No row has TTFT at up to 2 in flight" in result.notes[0]


def test_a_sweep_without_a_base_is_refused_with_the_remedy():
    rows = sweep()
    with pytest.raises(SimulationError, match="Measure a second proportion"):
        fitted(rows, base=None)


def shaped():
    b, p = np.array([1.0, 64.0]), np.array([1.0, 8192.0])
    dense = Part(p, np.zeros(1), np.array([[2e-3], [2e-1]]))
    decode = Part(b, np.array([1.0, 4096.0]), np.array([[1e-3, 2e-3], [4e-3, 2e-2]]))
    prefill = Part(p, np.array([1.0, 4096.0]), np.array([[0, 1e-4], [1e-2, 2e-1]]))
    curve = grid(dense=dense, decode=decode, prefill=prefill)
    return AdjustedProfile("m", "g", 2, 256, 8192, 10**6, SOURCE, "roofline", curve)


@pytest.mark.parametrize("loads", [LOADS, (2.0, 4.0, 8.0, 16.0)])
def test_each_phase_of_a_roofline_gets_its_own_factor_from_a_sweep(loads):
    base = shaped()
    ends = max(loads), 1024.0
    true = adjust_profile(base, curve=scaled_by_phase(base.curve, 1.5, 1.2, *ends))
    result = Fitter("roofline", base=base, waiting=WAITING, **LIMITS).fit(sweep(true, loads=loads))
    values = {p.name: p.value for p in result.parameters}
    assert values["decode factor"] == pytest.approx(1.5, rel=0.02)
    assert values["prefill factor"] == pytest.approx(1.2, rel=0.02)


def test_ttft_of_a_crowd_is_no_prefill():
    base, rows = shaped(), sweep(adjust_profile(shaped()), loads=(64.0,))
    result = Fitter("roofline", base=base, waiting=WAITING, **LIMITS).fit(
        replace(rows, ttft_s=rows.ttft_s + 60)
    )
    assert [p.value for p in result.parameters] == pytest.approx([1.0, 1.0])
    assert np.isnan(result.parameters[0].low)  # of one row
    prefill, decode = phases(result.profile)
    assert (prefill.kind, prefill.most) == ("modelled", None)
    assert (decode.kind, decode.most) == ("measured", 64)


def test_ttft_under_load_is_compared_only_where_waiting_is_known():
    rows = sweep()
    assert SERVED_TTFT not in compare_with(TRUE, rows).quantity
    errors = compare_with(TRUE, rows, WAITING).of(SERVED_TTFT)
    assert errors.row.tolist() == [1, 2, 3, 4, 5]
    assert errors.error == pytest.approx(np.zeros(5), abs=1e-9)
    # 32 users where memory holds 16 wait for a place: as long again as a request stays
    small = compare_with(replace(TRUE, kv_capacity_tokens=16 * 1152), rows, WAITING)
    b, tokens = 16.0, 16 * 8.0
    prompt, tbt = 1e-2 + 5e-5 * 1024, 1e-2 + 2e-4 * b + 5e-5 * tokens
    first = 0.02 + tbt + prompt + 0.1 * 15 * prompt
    expected = first + (first + 127 * tbt)
    assert small.of(SERVED_TTFT).predicted_s[-1] == pytest.approx(expected)


def one(mape, against, rows=50, quantity="TBT"):
    return Check(quantity, against, rows, mape, mape, mape, 0.0)


def test_a_handful_of_rows_does_not_stand_for_all():
    unseen, seen = f"{UNSEEN}, {INSIDE}", f"{FITTED}, {INSIDE}"
    few, many = one(0.01, unseen, rows=2), one(0.08, seen)
    assert telling_check([few, many]) is many
    assert telling_check([one(0.01, unseen, rows=20), many]).mape == 0.01
    # a quantity that was only fitted counts beside one that was left out
    assert telling_check([one(0.02, unseen), one(0.3, seen, quantity="prefill time")]).mape == 0.3
    waits = one(0.9, unseen, quantity=SERVED_TTFT)
    assert telling_check([waits, many]) is many
    assert telling_check([waits]) is waits
    assert telling_check([]) is None


def test_a_modelled_profile_is_no_surer_than_its_roofline():
    flattering = [one(0.014, f"{FITTED}, {INSIDE}", rows=8)]
    verdict = stated_check(flattering, spread=0.17, modelled=True)
    assert verdict is not None
    assert (verdict.mape, verdict.rows, verdict.against) == (0.17, 0, EXPECTED)
    assert stated_check([one(0.3, "x")], 0.17, modelled=True).mape == 0.3
    assert stated_check(flattering, 0.17, modelled=False) is flattering[0]
    of_itself = [one(0.0, f"{FITTED}, {INSIDE}", rows=1)]
    assert stated_check(of_itself, 0.17, modelled=False).mape == 0.17
    assert stated_check([], 0.12, modelled=False).mape == 0.12
    assert stated_check([], 0.0, modelled=True) is None


def test_a_check_of_nothing_is_a_sentence():
    with pytest.raises(SimulationError, match="no measurement of TPOT"):
        check("TPOT", "sizes left out", np.zeros(0), np.zeros(0))
