"""Fits to benchmark rows: parameters and their intervals, errors, what cannot be fitted."""

from dataclasses import replace

import numpy as np
import pytest

from simulation.errors import SimulationError
from simulation.performance.adjusted_profile import AdjustedProfile
from simulation.performance.curves import Part, evaluate, grid, scaled_by_phase
from simulation.performance.fitting.compare import (
    PREFILL,
    SERVED_TBT,
    TBT,
    TTFT,
    compare_with,
    prefill_seconds,
)
from simulation.performance.fitting.fit import Fitter
from simulation.performance.fitting.fit_linear import least_squares, linear_fit
from simulation.performance.linear import LinearProfile
from simulation.performance.profile import Profile, measured_range
from simulation.performance.rows import benchmark_rows
from simulation.performance.specs import Provenance
from tests.simulation.performance.rows import joined

SOURCE = Provenance("measured", "test")
ALPHA, BETA, GAMMA, DELTA = 8e-3, 2e-4, 1e-2, 5e-5
LIMITS = {"kv_capacity_tokens": 10**6, "provenance": SOURCE}


def batches(noise=0.0, repeats=3, seed=0, batch=(1, 2, 4, 8, 16, 32), isl=(128, 512, 1024, 2048)):
    """A cross of batches at 64 tokens and prompts at one sequence, as C1 would have it."""
    cells = [(b, 64) for b in batch] + [(1, s) for s in isl]
    b, s = np.repeat(np.array(cells, float), repeats, axis=0).T
    random = np.random.default_rng(seed)
    prefill = (GAMMA + DELTA * b * s) * np.exp(noise * random.standard_normal(b.size))
    tbt = (ALPHA + BETA * b) * np.exp(noise * random.standard_normal(b.size))
    osl = np.full(b.size, 64.0)
    return benchmark_rows(
        {"model": ["m"] * b.size, "gpu": ["g"] * b.size},
        {"tp": np.full(b.size, 2), "batch": b, "isl": s, "osl": osl, "prefill_s": prefill,
         "tbt_s": tbt, "e2e_s": prefill + osl * tbt},
    )  # fmt: skip


def served(concurrency=(1, 2, 4, 8, 16, 32, 64), lengths=((512, 128), (256, 256), (1024, 64))):
    c, isl, osl = np.array([(c, *pair) for c in concurrency for pair in lengths], float).T
    tbt = ALPHA + BETA * c + DELTA * c * isl / osl
    return benchmark_rows(
        {"model": ["m"] * c.size, "gpu": ["g"] * c.size},
        {"tp": np.full(c.size, 2), "concurrency": c, "isl": isl, "osl": osl, "tbt_s": tbt,
         "ttft_s": GAMMA + DELTA * isl},
    )  # fmt: skip


def test_exact_rows_give_the_exact_line_and_its_limits():
    fitted = Fitter("linear", **LIMITS).fit(batches())
    values = [p.value for p in fitted.parameters]
    assert values == pytest.approx([ALPHA, BETA, GAMMA, DELTA])
    assert isinstance(fitted.profile, LinearProfile)
    assert isinstance(fitted.profile, Profile)
    assert (fitted.profile.model, fitted.profile.gpu, fitted.profile.tp) == ("m", "g", 2)
    inside = measured_range(fitted.profile, [32, 33, 0, 0], 0, [0, 0, 2048, 2049], 0)
    assert inside.tolist() == [True, False, True, False]
    assert all(check.mape < 1e-9 for check in fitted.profile.checks)
    assert not fitted.residuals.outlier.any()


def test_intervals_hold_the_truth_about_as_often_as_they_say():
    inside = np.zeros(4)
    for seed in range(60):
        fitted = linear_fit(batches(noise=0.03, seed=seed), 2048)
        for i, (p, true) in enumerate(
            zip(fitted.parameters, (ALPHA, BETA, GAMMA, DELTA), strict=True)
        ):
            inside[i] += p.low <= true <= p.high
    assert (inside / 60 > 0.8).all(), inside


def test_repeats_do_not_narrow_an_interval():
    once = batches(noise=0.05, repeats=1)
    few, many = linear_fit(once, 2048), linear_fit(joined([once] * 8), 2048)
    for a, b in zip(few.parameters, many.parameters, strict=True):
        assert b.value == pytest.approx(a.value)
        assert b.high - b.low > 0.8 * (a.high - a.low)


def test_a_served_deployment_gives_alpha_beta_delta_together():
    fitted = Fitter("linear", **LIMITS).fit(served((4, 8, 16, 32, 64)))
    alpha, beta, gamma, delta = (p.value for p in fitted.parameters)
    assert (alpha, beta, delta) == pytest.approx((ALPHA, BETA, DELTA))
    assert gamma == alpha
    assert "gamma" in fitted.notes[0]
    assert {c.quantity for c in fitted.profile.checks} == {SERVED_TBT}
    assert max(c.mape for c in fitted.profile.checks) < 1e-9


def test_a_fit_never_goes_below_zero():
    falling = batches()
    falling = replace(
        falling, tbt_s=0.02 - 1e-4 * falling.batch, e2e_s=np.full(falling.rows, np.nan)
    )
    alpha, beta, *_ = linear_fit(falling, 2048).parameters
    assert beta.value == 0
    assert alpha.value > 0


def test_outliers_are_named_and_checks_are_of_the_rows():
    rows = batches(noise=0.01)
    rows.tbt_s[5] *= 1.5
    fitted = Fitter("linear", **LIMITS).fit(rows)
    odd = fitted.residuals.of(TBT)
    assert odd.row[odd.outlier].tolist() == [5]
    errors = fitted.residuals.of(PREFILL).error
    check = next(c for c in fitted.profile.checks if c.quantity == PREFILL)
    assert check.rows == errors.size == rows.rows
    assert check.mape <= np.abs(errors).max()


def test_left_out_configurations_are_worse_than_fitted_ones():
    fitted = Fitter("linear", **LIMITS).fit(batches(noise=0.1, repeats=2))
    by = {
        (c.against.split(",")[0], c.quantity): c
        for c in fitted.profile.checks
        if "inside" in c.against
    }
    for quantity in (TBT, PREFILL):
        seen, out = (
            by[k, quantity]
            for k in ("the rows it was fitted to", "configurations left out of the fit")
        )
        assert out.mape > seen.mape


def test_a_long_prompt_runs_in_chunks():
    profile = Fitter("linear", **LIMITS).fit(batches()).profile
    long = prefill_seconds(profile, np.ones(2), np.array([2048.0, 5000.0]))
    assert long[0] == pytest.approx(GAMMA + DELTA * 2048)
    assert long[1] == pytest.approx(3 * GAMMA + DELTA * 5000)


def test_ttft_of_one_request_is_its_prefill():
    compared = compare_with(Fitter("linear", **LIMITS).fit(batches()).profile, served())
    alone = compared.of(TTFT)
    assert alone.row.size == 3
    assert alone.error == pytest.approx(np.zeros(3), abs=1e-9)
    assert set(compared.quantity) == {SERVED_TBT, TTFT}


def base(factor=1.0):
    b, p = np.array([1.0, 64.0]), np.array([1.0, 8192.0])
    dense = Part(p, np.zeros(1), factor * np.array([[2e-3], [2e-1]]))
    decode = Part(b, np.array([1.0, 4096.0]), factor * np.array([[1e-3, 2e-3], [4e-3, 2e-2]]))
    prefill = Part(p, np.array([1.0, 4096.0]), factor * np.array([[0, 1e-4], [1e-2, 2e-1]]))
    curve = grid(dense=dense, decode=decode, prefill=prefill)
    return AdjustedProfile("m", "g", 2, 256, 8192, 10**6, SOURCE, "roofline", curve)


def test_calibration_by_phase_brings_a_uniformly_fast_base_to_the_rows():
    rows = batches()
    none = np.zeros(rows.rows)
    true = base(1.7).curve
    first = evaluate(true, none, none, rows.tokens, rows.tokens * rows.isl / 2)
    each = evaluate(true, rows.batch, rows.batch * rows.context, none, none)
    rows = replace(rows, prefill_s=first, tbt_s=each, e2e_s=np.full(rows.rows, np.nan))
    fitted = Fitter("roofline", base=base(), **LIMITS).fit(rows, cross_validate=False)
    assert [p.value for p in fitted.parameters] == pytest.approx([1.7, 1.7], rel=0.02)
    assert fitted.profile.kind == "roofline"
    assert max(c.mape for c in fitted.profile.checks) < 0.02


def test_scaling_by_phase_covers_decodes_among_prompts():
    b, keys, slow = np.array([1.0, 256.0]), np.array([1.0, 4096.0]), np.full((2, 2), 8e-3)
    curve = grid(decode=Part(b, keys, slow / 2), beside=Part(b, keys, slow))
    twice = scaled_by_phase(curve, 2.0, 1.0, decode_until=8.0, prefill_from=1024.0)
    for prompt in (0, 64):
        load = 8, 800, prompt, prompt * 32
        assert evaluate(twice, *load) == pytest.approx(2 * evaluate(curve, *load))


def test_scaling_by_phase_uses_the_factor_of_each_end():
    curve = scaled_by_phase(base().curve, 2.0, 3.0, decode_until=1.0, prefill_from=8192.0)
    assert evaluate(curve, 1, 1, 0, 0) == pytest.approx(2 * evaluate(base().curve, 1, 1, 0, 0))
    long = evaluate(curve, 0, 0, 8192, 8192 * 100)
    assert long == pytest.approx(3 * evaluate(base().curve, 0, 0, 8192, 8192 * 100))


def test_least_squares_is_the_textbook_s_where_nothing_is_negative():
    random = np.random.default_rng(0)
    design = np.column_stack([np.ones(50), np.arange(50.0)])
    seconds = 1 + 0.5 * np.arange(50) + 0.1 * random.standard_normal(50)
    line = least_squares(design, seconds, np.arange(50)[:, None])
    assert line.values == pytest.approx(np.linalg.lstsq(design, seconds, rcond=None)[0])
    assert (line.low < line.values).all()
    assert (line.values < line.high).all()


def test_what_cannot_be_fitted_is_refused_in_a_sentence():
    with pytest.raises(SimulationError, match="kind"):
        Fitter("magic", **LIMITS).fit(batches())
    with pytest.raises(SimulationError, match="base"):
        Fitter("operator", **LIMITS).fit(batches())
    with pytest.raises(SimulationError, match="at least two sizes"):
        Fitter("linear", **LIMITS).fit(batches(batch=(1,), isl=(64,)))
    other = batches()
    other.gpu[0] = "h"
    with pytest.raises(SimulationError, match="Choose one"):
        Fitter("linear", **LIMITS).fit(other)
    with pytest.raises(SimulationError, match="tp"):
        Fitter("linear", **LIMITS).fit(replace(other, tp=np.full(other.rows, np.nan)))


def of_batches(batch, tbt):
    """Rows as the WVA has them: a batch and the time between tokens, nothing else."""
    b = np.array(batch, float)
    return benchmark_rows(
        {"model": ["m"] * b.size, "gpu": ["g"] * b.size},
        {"tp": np.ones(b.size), "batch": b, "tbt_s": np.array(tbt)},
    )


def test_rows_without_a_prefill_give_alpha_and_beta_and_say_what_the_rest_rests_on():
    b = np.array([1, 2, 4, 8, 16, 32])
    rows = of_batches(b, ALPHA + BETA * b)
    bound = Fitter("linear", **LIMITS).fit(rows)
    assert [p.value for p in bound.parameters] == pytest.approx([ALPHA, BETA, ALPHA, BETA])
    assert bound.profile.provenance.kind == "assumed"
    assert "upper bound" in bound.notes[-1]
    base = LinearProfile("m", "g", 1, 1.0, 1.0, GAMMA, DELTA, 8, 2048, 10**6, SOURCE)
    tied = Fitter("linear", base=base, **LIMITS).fit(rows)
    assert [p.value for p in tied.parameters] == pytest.approx([ALPHA, BETA, GAMMA, DELTA])
    assert tied.profile.provenance.kind == "modelled"
    assert tied.profile.max_batch == 256  # throughput rises to the end: no bound was seen
    (own_check, *_) = tied.profile.checks
    assert own_check.mape < 1e-9


def test_the_largest_batch_is_where_throughput_ends_to_rise():
    b = np.array([1, 4, 16, 64, 128, 256])
    tbt = ALPHA + BETA * b
    tbt[-2:] = [0.06, 0.2]  # 64 give 3,077 tokens/s, 128 2,133
    fitted = Fitter("linear", **LIMITS).fit(of_batches(b, tbt))
    assert fitted.profile.max_batch == 64
    assert [p.value for p in fitted.parameters[:2]] == pytest.approx([ALPHA, BETA])
    assert "falls beyond it" in fitted.notes[0]
