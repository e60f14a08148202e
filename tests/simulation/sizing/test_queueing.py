"""Closed forms against their textbook definitions, and the fluid model against simulation."""

from math import factorial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulation.sizing.queueing import erlang_b, erlang_c, largest_rate, mmc_mean_wait
from tests.simulation.builders import profile
from tests.simulation.fluid import assert_simulation_agrees, steady_state


@given(st.integers(1, 60), st.floats(0.01, 0.99))
def test_erlang_by_definition(servers, utilisation):
    load = utilisation * servers
    terms = [load**k / factorial(k) for k in range(servers + 1)]
    assert erlang_b(servers, load) == pytest.approx(terms[-1] / sum(terms))
    queued = terms[-1] * servers / (servers - load)
    assert erlang_c(servers, load) == pytest.approx(queued / (sum(terms[:-1]) + queued))


def test_overload_waits_for_ever():
    assert mmc_mean_wait(2, 2.0, 1.0) == float("inf")
    assert erlang_c(2, 2.5) == 1.0


LARGE = {"alpha": 0.03, "beta": 1.5e-4, "gamma": 0.04, "delta": 1e-4}


@pytest.mark.parametrize("rate", [1.0, 2.0, 4.0])
def test_fluid_model_agrees_with_simulation(rate):
    prof = profile(**LARGE, max_batch=512, budget=8192, kv=2_000_000)
    assert_simulation_agrees(prof, rate, 800, 200)


def test_fluid_model_is_unstable_at_full_load():
    prof = profile(alpha=0.03, beta=1e-3, gamma=0.03, delta=1e-4)
    assert steady_state(prof, 4.0, 500, 201).load == pytest.approx(1.0)
    assert steady_state(prof, 4.0, 500, 201).iteration_s == float("inf")


@pytest.mark.parametrize(
    ("change", "bound"),
    [({"max_batch": 16}, "throughput"), ({"budget": 80}, "throughput"), ({"kv": 9000}, "memory")],
)
def test_largest_rate_sits_on_the_limit_that_binds(change, bound):
    prof = profile(
        **{**LARGE, "gamma": 0.03, "max_batch": 512, "budget": 8192, "kv": 2_000_000, **change}
    )
    rate, named = largest_rate(prof, 800, 200)
    assert named == bound
    steady = steady_state(prof, rate, 800, 200)
    share = {
        "max_batch": steady.batch / prof.max_batch,
        "budget": (steady.batch + steady.prefill_tokens) / prof.max_batch_tokens,
        "kv": steady.kv_tokens / prof.kv_capacity_tokens,
    }
    assert share[next(iter(change))] == pytest.approx(1.0)
    assert max(share.values()) == pytest.approx(1.0)
