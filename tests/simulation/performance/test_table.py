"""Table profiles: worked by hand, monotone, and honest about what was not measured."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.inputs.ingest.benchmarks import read_benchmarks
from simulation.errors import SimulationError
from simulation.performance.curves import MIXED, Curve, evaluate, inside
from simulation.performance.fitting.fit import Fitter
from simulation.performance.monotone import finer, interpolate, isotonic, rising
from simulation.performance.profile import Profile, iteration_s, measured_range
from simulation.performance.rows import benchmark_rows
from simulation.performance.specs import Provenance
from simulation.performance.table import table_curve
from tests.shared_folder import PROFILES, needs_shared

SOURCE = Provenance("measured", "test")


def rows(cells):
    """``cells``: batch, isl, osl, prefill seconds, TBT seconds."""
    batch, isl, osl, prefill, tbt = np.array(cells, float).T
    size = len(cells)
    return benchmark_rows(
        {"model": ["m"] * size, "gpu": ["g"] * size},
        {"tp": np.ones(size), "batch": batch, "isl": isl, "osl": osl, "prefill_s": prefill,
         "tbt_s": tbt, "e2e_s": prefill + osl * tbt},
    )  # fmt: skip


# Two batches by two prompts, all four measured: contexts are 100 + 50 and 400 + 50 tokens.
SQUARE = rows([
    (1, 100, 100, 0.010, 0.008),
    (1, 400, 100, 0.040, 0.009),
    (4, 100, 100, 0.040, 0.012),
    (4, 400, 100, 0.160, 0.016),
])  # fmt: skip


def decode(curve, b, context):
    return float(evaluate(curve, b, b * context, 0, 0))


def prefill(curve, p, keys):
    return float(evaluate(curve, 0, 0, p, p * keys))


def test_two_by_two_on_paper():
    curve = table_curve(SQUARE)
    for b, context, seconds in ((1, 150, 8), (1, 450, 9), (4, 150, 12), (4, 450, 16)):
        assert decode(curve, b, context) == pytest.approx(seconds / 1e3)
    # halfway in the context: the mean; halfway in the logarithm of the batch: the geometric mean
    assert decode(curve, 1, 300) == pytest.approx(0.0085)
    assert decode(curve, 2, 150) == pytest.approx((0.008 * 0.012) ** 0.5)
    assert decode(curve, 2, 450) == pytest.approx((0.009 * 0.016) ** 0.5)
    # prefill: 100 tokens a prompt means 50 keys; 400 tokens are one prompt or four, both 40 ms
    assert prefill(curve, 100, 50) == pytest.approx(0.010)
    assert prefill(curve, 400, 50) == pytest.approx(0.040)
    assert prefill(curve, 400, 200) == pytest.approx(0.040)
    assert prefill(curve, 1600, 200) == pytest.approx(0.160)
    assert prefill(curve, 200, 50) == pytest.approx(0.020)
    # both: the weights are read once, so the cheaper of the two least iterations is saved: 8 ms
    mixed = float(evaluate(curve, 4, 4 * 150, 400, 400 * 200))
    assert mixed == pytest.approx(0.012 + 0.040 - 0.008)


def test_splitwise_s_rule_for_mixed_iterations():
    values = table_curve(SQUARE).values.copy()
    values[MIXED] = 1.1
    curve = Curve(values)
    mixed = float(evaluate(curve, 4, 4 * 150, 396, 396 * 50))
    assert mixed == pytest.approx(1.1 * prefill(curve, 400, 50))
    assert decode(curve, 4, 150) == pytest.approx(0.012)


def test_outside_the_grid_is_said_and_the_last_slope_goes_on():
    curve = table_curve(SQUARE)
    assert inside(curve, [1, 4], [150, 1800], 0, 0).all()
    assert not inside(curve, [5, 1], [750, 10_000], 0, 0).any()
    assert inside(curve, 0, 0, [100, 1600], [100 * 50, 1600 * 200]).all()
    assert not inside(curve, 0, 0, [50, 1700, 400], [50 * 25, 1700 * 200, 400 * 5000]).any()
    # the last piece before 4 sequences ends with this slope
    step = 4 * 4 ** (-1 / 4)
    slope = (0.012 - decode(curve, step, 150)) / (4 - step)
    assert decode(curve, 8, 150) == pytest.approx(0.012 + 4 * slope)


def test_a_cell_that_was_not_measured_is_a_sum_of_two_terms():
    curve = table_curve(SQUARE.take([0, 1, 2]))
    assert decode(curve, 4, 450) == pytest.approx(0.009 + 0.012 - 0.008)
    assert inside(curve, 4, 4 * 150, 0, 0)
    assert not inside(curve, 4, 4 * 450, 0, 0)  # nearest row with 4 sequences: 150 tokens


def test_repeats_are_medians_and_half_batches_are_left_out():
    noisy = rows(
        [(1, 100, 100, 0.010, 0.008)] * 2 + [(1, 100, 100, 9.0, 5.0), (4, 100, 100, 0.04, 0.012)]
    )
    curve = table_curve(noisy)
    assert decode(curve, 1, 150) == pytest.approx(0.008)
    assert prefill(curve, 100, 50) == pytest.approx(0.010)
    queued = rows(
        [(1, 100, 100, 0.01, 0.008), (4, 100, 100, 0.04, 0.012), (8, 100, 100, 0.02, 0.010)]
    )
    queued.e2e_s[2] *= 3  # three times what one batch of these times would take
    fitted = Fitter("table", 1, SOURCE).fit(queued, cross_validate=False)
    assert fitted.profile.max_batch == 4
    assert "1 of 3 rows" in fitted.notes[0]
    assert not inside(fitted.profile.curve, 8, 8 * 150, 0, 0)


@given(st.lists(
    st.tuples(
        st.sampled_from([1, 2, 4, 8, 16]), st.sampled_from([128, 512, 1024]),
        st.sampled_from([64, 128]), st.floats(1e-3, 1), st.floats(1e-3, 1e-1),
    ),
    min_size=1, max_size=12,
))  # fmt: skip
def test_whatever_was_measured_time_rises_with_the_load(cells):
    curve = table_curve(rows(cells))
    b, p = np.geomspace(0.5, 64, 80), np.geomspace(16, 40_000, 80)
    for context in (10, 200, 700, 5000):
        assert (np.diff(evaluate(curve, b, b * context, 0, 0)) >= -1e-12).all()
        several = np.full(80, 3.0)
        assert (np.diff(evaluate(curve, several, several * p, 0, 0)) >= -1e-12).all()
    for keys in (16, 64, 256, 2000):
        assert (np.diff(evaluate(curve, 0, 0, p, p * keys)) >= -1e-12).all()
    alone = evaluate(curve, b[:, None], b[:, None] * 300, 0, 0)
    chunk = evaluate(curve, 0, 0, p, p * 256)
    both = evaluate(curve, b[:, None], b[:, None] * 300, p, p * 256)
    assert (both >= np.maximum(alone, chunk) - 1e-12).all()
    assert (both <= alone + chunk + 1e-12).all()


def test_isotonic_is_the_nearest_rising_sequence():
    smoothed = isotonic(np.array([1.0, 3.0, 2.0, 4.0]), np.array([1.0, 1.0, 3.0, 1.0]))
    assert smoothed == pytest.approx([1, 2.25, 2.25, 4])
    grid = np.array([[3.0, 1.0], [2.0, 5.0]])
    level = rising(grid, np.ones((2, 2)))
    assert (np.diff(level, axis=0) >= 0).all()
    assert (np.diff(level, axis=1) >= 0).all()
    assert level[1, 1] == 5


def test_between_knots_nothing_overshoots():
    x, y = np.array([1.0, 2, 4, 8, 16]), np.array([1.0, 1.0, 1.1, 30, 31])
    fine = finer(x, 3)
    assert set(x) <= set(fine)
    values = interpolate(x, y, fine)
    assert (np.diff(values) >= -1e-12).all()
    assert values.min() >= 1
    assert values.max() <= 31


def test_what_cannot_be_a_table_is_refused():
    with pytest.raises(SimulationError, match="prefill time"):
        table_curve(rows([(1, 100, 100, np.nan, 0.008)]))
    with pytest.raises(SimulationError, match="500 different sizes and a table at most 400"):
        table_curve(rows([(b, 100, 100, 0.01 * b, 0.008) for b in range(1, 501)]))
    two = rows([(1, 100, 100, 0.01, 0.008)] * 2)
    two.gpu[1] = "h"
    with pytest.raises(SimulationError, match="one arrangement"):
        Fitter("table", 1, SOURCE).fit(two, cross_validate=False)


SPLITWISE = (
    "model,hardware,prompt_size,batch_size,token_size,prompt_time,token_time,e2e_time,"
    "tensor_parallel\n"
)


def test_both_files_give_one_profile_for_the_same_measurements(tmp_path):
    ms, s = [SPLITWISE], [SPLITWISE]
    for batch, isl, osl, first, tbt in (
        (1, 128, 128, 25, 8),
        (1, 512, 64, 30, 9),
        (1, 1024, 256, 55, 9.5),
    ):
        ms.append(f"m,g,{isl},{batch},{osl},{first},{tbt},{first + osl * tbt},2\n")
        answer_s = osl * tbt / 1e3
        s.append(f"m,g,{isl},{batch},{osl},{first / 1e3},{answer_s},{first / 1e3 + answer_s},2\n")
    curves = []
    for name, text, known in (("a.csv", ms, "splitwise"), ("b.csv", s, "sageserve")):
        (tmp_path / name).write_text("".join(text))
        benchmarks = read_benchmarks(tmp_path / name)
        assert benchmarks.format == known
        curves.append(table_curve(benchmarks.rows))
    assert curves[0].values == pytest.approx(curves[1].values, rel=1e-9)


@needs_shared(PROFILES)
def test_real_rows_come_back_from_their_table():
    measured = read_benchmarks(PROFILES / "splitwise_perf_model.csv").rows
    for (model, gpu, tp), part in measured.arrangements():
        profile = Fitter("table", 1, SOURCE).fit(part, cross_validate=False).profile
        assert isinstance(profile, Profile)
        assert (profile.model, profile.gpu, profile.tp, profile.kind) == (model, gpu, tp, "table")
        assert profile.max_batch == (32 if tp == 2 else 64)  # 64 did not fit on two GPUs
        unbroken = part.take(part.ran_as_one_batch)
        none = np.zeros(unbroken.rows)
        first = iteration_s(
            profile, none, none, unbroken.tokens, unbroken.tokens * unbroken.isl / 2
        )
        each = iteration_s(profile, unbroken.batch, unbroken.batch * unbroken.context, none, none)
        assert np.abs(first / unbroken.prefill_s - 1).mean() < 0.04
        assert np.abs(each / unbroken.tbt_s - 1).mean() < 0.03
        assert measured_range(
            profile, none, none, unbroken.tokens, unbroken.tokens * unbroken.isl / 2
        ).all()
