"""Systems of one instance, small enough to work out by hand."""

import numpy as np

from simulation.engine.run import simulate
from simulation.policies.static import Static
from tests.simulation.builders import fleet, linear_seconds, pool, profile, trace


def replay(prof, arrival, isl, osl, **kwargs):
    return simulate(
        trace(arrival, isl, osl), fleet(pool(prof)), Static([1]), **{"duration_s": 60.0, **kwargs}
    )


def test_lone_request_decodes_at_batch_one():
    prof = profile()
    result = replay(prof, [1.0], [32], [5])
    log, totals = result.requests, result.totals
    assert log.ttft_s[0] == linear_seconds(prof, 0, 32)
    assert log.tbt_s[0] == linear_seconds(prof, 1, 0)
    assert log.e2e_s[0] == linear_seconds(prof, 0, 32) + 4 * linear_seconds(prof, 1, 0)
    assert totals.iterations[0] == 5
    assert totals.prefill_s[0] == linear_seconds(prof, 0, 32)
    assert totals.decode_s[0] == 4 * linear_seconds(prof, 1, 0)
    assert totals.idle_s[0] == 60.0 - log.e2e_s[0]


def test_memory_shortage_preempts_the_newest_and_recomputes_it():
    prof = profile(kv=100, budget=128)
    result = replay(prof, [0.0, 0.0], [40, 40], [20, 20])
    # 82 tokens after admission; 9 decodes of two fill 100; then the second one goes, with 10 done.
    shortage = linear_seconds(prof, 0, 80) + 9 * linear_seconds(prof, 2, 0)
    first_done = shortage + 10 * linear_seconds(prof, 1, 0)
    second_done = first_done + linear_seconds(prof, 0, 50) + 9 * linear_seconds(prof, 1, 0)
    assert result.totals.preemptions[0] == 1
    assert result.requests.last_token_s.tolist() == [first_done, second_done]
    assert result.requests.first_token_s[1] == linear_seconds(prof, 0, 80)


def test_series_hold_the_tokens_and_memory_of_a_lone_request():
    prof = profile(alpha=1.0, beta=0.0, gamma=2.0, delta=0.0, kv=1000)
    result = replay(prof, [0.0], [32], [5], duration_s=8.0, interval_s=2.0)
    series = result.series
    # Prefill ends at 2, tokens at 2, 3, 4, 5, 6; an edge belongs to the interval it opens.
    assert series.input_tokens.tolist() == [[0, 32, 0, 0]]
    assert series.output_tokens.tolist() == [[0, 2, 2, 1]]
    assert series.busy.tolist() == [[1, 1, 1, 0]]
    # Reserved: prompt and first token, then one more at the start of each decode.
    held = np.array([[33 * 2, 34 + 35, 36 + 37, 0]]) / (2 * 1000)
    np.testing.assert_allclose(series.utilisation, held)


def test_stragglers_finish_after_the_window_but_hours_stop_with_it():
    prof = profile(alpha=1.0, beta=0.0, gamma=2.0, delta=0.0)
    result = replay(prof, [5.0], [8], [11], duration_s=10.0)
    assert result.requests.last_token_s[0] == 5 + 2 + 10
    assert result.totals.prefill_s[0] == 2.0
    assert result.totals.decode_s[0] == 3.0
    assert result.totals.idle_s[0] == 5.0


def test_after_four_hours_stragglers_are_unfinished():
    prof = profile(alpha=4000.0, beta=0.0, gamma=4000.0, delta=0.0)
    result = replay(prof, [5.0, 6.0], [8, 8], [2, 9], duration_s=10.0)
    assert result.requests.outcome.tolist() == [0, 2]
    assert np.isfinite(result.requests.first_token_s).all()
    assert np.isnan(result.requests.last_token_s[1])


def test_an_instance_counts_iterations_beyond_32_bits():
    """Three answers of 1.5 billion tokens, one after another."""
    prof = profile(alpha=2.0**-30, beta=0.0, gamma=2.0**-30, delta=0.0, kv=1 << 33)
    tokens = 1_500_000_000
    result = replay(prof, [0.0, 10.0, 20.0], [1] * 3, [tokens] * 3)
    assert result.totals.iterations[0] == 3 * tokens
    assert np.allclose(result.requests.e2e_s, tokens * 2.0**-30)
