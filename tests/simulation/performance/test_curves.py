"""What the engine asks of a curve: seconds, growth of a run, measured range; and its scaling."""

from dataclasses import replace

import numpy as np
import pytest
from numba import njit

from planner.domain.sources import BEYOND, provenance_at
from simulation.engine.run import simulate
from simulation.errors import SimulationError
from simulation.performance.adjusted_profile import adjust_profile, scale_profile_times
from simulation.performance.curves import FOREVER, Part, decode_growth, grid, inside, linear
from simulation.performance.profile import iteration_s
from simulation.performance.specs import Provenance
from simulation.policies.static import Static
from simulation.results import BEYOND_CONTEXT, REASONS, TOO_LONG
from simulation.sizing.queueing import largest_rate
from simulation.sizing.trial import extrapolated_share
from tests.simulation.builders import fleet, pool, profile, trace
from tests.simulation.fluid import assert_simulation_agrees, steady_state

DECODE = Part(
    np.array([1.0, 8.0]), np.array([10.0, 20.0, 40.0]), np.array([[1.0, 2, 3], [2, 4, 8]])
)
PREFILL = Part(np.array([1.0, 101.0]), np.zeros(1), np.array([[1.0], [11.0]]))
CURVE = grid(decode=DECODE, prefill=PREFILL, overlap_s=0.5)


@njit
def grown(values, b, c):  # as compiled code calls it; from Python it cannot be
    return decode_growth(values, b, c)


@pytest.mark.parametrize(
    ("b", "mean_context", "growth", "holds"),
    [
        (1, 4.5, 0.0, 6),  # before the first knot: 4.5 to 9.5
        (1, 10.0, 0.1, 11),  # 10 to 20
        (8, 35.0, 0.2, 6),  # 35 to 40, the last ones measured
        (1, 40.0, 0.05, 1),
        (1, 41.0, 0.05, FOREVER),
    ],
)
def test_growth_within_a_segment(b, mean_context, growth, holds):
    got, iterations = grown(CURVE.values, float(b), b * mean_context)
    assert (got, min(iterations, 10**6)) == (pytest.approx(growth), min(holds, 10**6))


def test_a_linear_curve_never_grows():
    assert grown(linear(1.0, 0.1, 1.0, 0.1).values, 4.0, 100.0) == (0.0, FOREVER)


def test_mixed_iterations_by_hand():
    prof = adjust_profile(profile(), curve=CURVE)
    # 8 decodes of 15 tokens and 51 tokens of prompt: 3 + 6 - 0.5.
    assert iteration_s(prof, [0, 8, 8], [0, 120, 120], [51, 0, 51], 0.0).tolist() == [6, 3, 8.5]


def test_decodes_beside_a_prompt_may_have_times_of_their_own():
    slow = Part(np.array([8.0]), np.array([10.0, 20.0]), np.array([[7.0, 9.0]]))
    curve = grid(decode=DECODE, prefill=PREFILL, beside=slow, overlap_s=0.5)
    prof = adjust_profile(profile(), curve=curve)
    # 8 decodes of 15 tokens alone, and with 51 tokens of prompt: 8 + 6 - 0.5.
    assert iteration_s(prof, [8, 8], [120, 120], [0, 51], 0.0).tolist() == [3, 13.5]
    assert inside(curve, [7, 7, 8, 8], [140, 140, 160, 240], [0, 51, 51, 51], 0.0).tolist() == [
        True, False, True, False,
    ]  # fmt: skip
    assert iteration_s(scale_profile_times(prof, 2.0), 8, 120, 51, 0.0) == 27.0


def test_measured_range_by_hand():
    got = inside(CURVE, [1, 1, 9, 8, 0, 0], [10, 9, 180, 320, 0, 0], [0, 0, 0, 0, 101, 102], 0.0)
    assert got.tolist() == [True, False, False, True, True, False]
    line = linear(1.0, 0.1, 1.0, 0.1, decodes=4, prefill_tokens=100)
    assert inside(line, [4, 5, 0, 1], 0, [0, 0, 100, 101], 0).tolist() == [True, False, True, False]


@pytest.mark.parametrize(
    "curve", [CURVE, linear(0.1, 0.2, 0.3, 0.4), grid(prefill=PREFILL, mixed=1.1)]
)
def test_scaling_scales_every_iteration(curve):
    rng = np.random.default_rng(0)
    asked = rng.integers(0, 10, 50), rng.integers(1, 500, 50), rng.integers(0, 200, 50), 1000.0
    prof = adjust_profile(profile(), curve=curve)
    np.testing.assert_allclose(
        iteration_s(scale_profile_times(prof, 1.25), *asked), 1.25 * iteration_s(prof, *asked)
    )
    with pytest.raises(SimulationError, match="positive"):
        scale_profile_times(prof, 0.0)


def test_iterations_outside_the_measured_range_are_counted():
    prof = adjust_profile(profile(budget=200, kv=1000), curve=CURVE)
    result = simulate(trace([0.0], [30], [20]), fleet(pool(prof)), Static([1]), duration_s=120.0)
    # Decodes attend to 31, 32 ... 49 tokens: up to 40 they are measured.
    assert result.totals.iterations[0] == 20
    assert result.totals.outside[0] == 9


def test_a_request_beyond_the_models_context_is_rejected_with_its_reason():
    limited = fleet(pool(profile(kv=1024), max_context=512), pool(profile(kv=256), max_context=512))
    result = simulate(trace([0.0] * 3, [500, 500, 600], [12, 13, 500]), limited, Static([1, 1]))
    assert result.requests.outcome.tolist() == [0, 1, 1]
    assert result.requests.pool[0] == 0
    assert result.reject_reasons == {BEYOND_CONTEXT: 2}
    small = fleet(pool(profile(kv=256), max_context=512))
    result = simulate(trace([0.0] * 3, [200, 300, 600], [9, 9, 9]), small, Static([1]))
    assert result.reject_reasons == {BEYOND_CONTEXT: 1, TOO_LONG: 1}
    assert [REASONS[i] for i in result.requests.reason[1:]] == [TOO_LONG, BEYOND_CONTEXT]
    assert result.requests.reason[0] == -1


@pytest.mark.parametrize("rate", [1.0, 4.0])
def test_fluid_model_of_a_curve_agrees_with_simulation(rate):
    """Decode time grows with batch and context, prefill with tokens and the keys they attend to."""
    b, y, p = np.array([1.0, 32, 256]), np.array([1.0, 500, 4000]), np.array([1.0, 512, 4096])
    decode = 0.02 + 1e-4 * b[:, None] + 1e-7 * b[:, None] * y
    prefill = 0.01 + 5e-5 * p[:, None] + 1e-8 * p[:, None] * y
    curve = grid(decode=Part(b, y, decode), prefill=Part(p, y, prefill), overlap_s=0.005)
    prof = adjust_profile(profile(max_batch=256, budget=4096, kv=2_000_000), curve=curve)
    isl, osl = 800, 200
    assert_simulation_agrees(prof, rate, isl, osl)
    limit, named = largest_rate(prof, isl, osl)
    assert named == "throughput"
    steady = steady_state(prof, limit, isl, osl)
    # The limit takes every iteration to prefill, so it errs a little to the safe side.
    assert 0.9 * prof.max_batch < steady.batch <= prof.max_batch


def test_a_context_longer_than_those_of_the_rows_is_outside() -> None:
    line = linear(1.0, 0.1, 1.0, 0.1, context=1000.0)
    got = inside(line, [4, 4, 0], [4000, 4001, 0], [0, 0, 100], 0)
    assert got.tolist() == [True, False, True]


@pytest.mark.parametrize("decodes", [1.0, 3.0, 8.0])
def test_what_is_said_of_a_load_is_measured_as_far_as_measurements_go_and_no_further(decodes):
    """Twelve sequences at once in batches of eight."""
    source = Provenance("measured", "rows")
    prof = replace(profile(kv=100_000), provenance=source, fitted_decodes=decodes)
    run = simulate(trace([0.0] * 12, [30] * 12, [20] * 12), fleet(pool(prof)), Static([1]))
    beyond = extrapolated_share(run)
    assert (beyond > BEYOND) == (decodes < prof.max_batch)
    label = provenance_at(prof, beyond)
    assert (label == source) == (beyond < BEYOND)
    if label != source:
        assert label.kind == "modelled" and f"up to {decodes:.0f} sequences" in label.source
    for other in ("modelled", "assumed"):
        relabelled = replace(prof, provenance=Provenance(other, "x"))
        assert provenance_at(relabelled, 1.0) == relabelled.provenance
