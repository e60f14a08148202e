"""Prompts by iterations: systems with closed forms, and the simulator."""

import numpy as np
import pytest

from simulation.fleet import Tier
from simulation.sizing.batch_queue import PoolShape, evaluate_pool, saturated_rps
from simulation.sizing.prompt_chain import prompt_delays
from simulation.sizing.trial import RequestDraws, Trial, pool_of
from simulation.sizing.workload import Workload
from tests.simulation.builders import profile

RNG = np.random.default_rng(5)
ISL = np.clip(RNG.lognormal(6, 0.7, 4000), 1, 8000).astype(int)
FIXED_S, TOKEN_S = 0.03, 1.2e-4
ROOMY = 10**6


def instance(room: int):
    return profile(alpha=0.02, beta=0.0, gamma=FIXED_S, delta=TOKEN_S, budget=room, kv=10**7)


def of(isl, rate: float = 0.0) -> Workload:
    return Workload(np.asarray(isl), np.ones(len(isl), np.int64), rate=rate)


def test_where_thousands_of_full_iterations_may_wait_prompts_come_too_fast() -> None:
    """Of prompts of a hundred iterations each line at 99.99% holds tens of thousands of them: no
    limit is met there, and no grid of their square is worth its memory."""
    service = 100 * (FIXED_S + 1000 * TOKEN_S)
    prompts = np.full(10, 100_000)
    assert prompt_delays(instance(1000), of(prompts, 0.9999 / service), 0.0, 0.0) is None
    waits = prompt_delays(instance(1000), of(prompts, 0.5 / service), 0.0, 0.0)
    assert waits is not None
    assert waits.share * waits.first_token.mean == pytest.approx(service * 0.5, rel=0.05)  # M/D/1


@pytest.mark.parametrize("load", [0.2, 0.5, 0.8])
def test_prompts_that_each_fill_an_iteration_are_md1(load: float) -> None:
    service = FIXED_S + 1000 * TOKEN_S
    waits = prompt_delays(instance(1000), of(np.full(10, 1000), load / service), 0.0, 0.0)
    assert waits is not None
    assert waits.share == pytest.approx(load, rel=0.01)
    late = waits.share * waits.first_token.mean
    assert late == pytest.approx(service * load / 2 / (1 - load), rel=0.02)


def test_beside_decodes_prompts_wait_as_behind_a_gate() -> None:
    """All that came during an iteration is let in by the next: C' = running + work that came in C,
    of mean running / (1 - rho) and variance rate E[work^2] E[C] / (1 - rho^2)."""
    running, rate = 0.02, 25.0
    even = profile(alpha=running, beta=0.0, gamma=running, delta=TOKEN_S, budget=ROOMY, kv=10**7)
    work = of(np.full(10, 200), rate)
    waits = prompt_delays(even, work, 8.0, running)
    rho, each = rate * 200 * TOKEN_S, 200 * TOKEN_S
    cycle = running / (1 - rho)
    rest = (cycle + rate * each**2 / (1 - rho**2)) / 2
    assert waits is not None
    assert waits.share == pytest.approx(1.0)
    assert waits.start_wait.mean == pytest.approx(rest, rel=0.03)
    # What came before it in the cycle, and what comes behind it until it begins, end with it.
    assert waits.first_token.mean == pytest.approx(rest * (1 + 2 * rho), rel=0.03)


def test_prompts_that_come_faster_than_they_are_computed_have_no_law() -> None:
    fastest = 1000 / (FIXED_S + 1000 * TOKEN_S) / 500
    assert prompt_delays(instance(1000), of(np.full(10, 500), 0.95 * fastest), 0.0, 0.0) is not None
    assert prompt_delays(instance(1000), of(np.full(10, 500), 1.01 * fastest), 0.0, 0.0) is None


@pytest.mark.parametrize("rate", [0.0, 1e-9, 1e-4])
def test_hardly_anybody_waits_where_hardly_anybody_comes(rate: float) -> None:
    service = FIXED_S + 500 * TOKEN_S
    waits = prompt_delays(instance(1000), of(np.full(10, 500), rate), 0.0, 0.0)
    assert waits is not None
    assert waits.share == pytest.approx(rate * service, abs=1e-9)
    assert waits.others_s == 0.0
    if rate > 0:  # the rest of one prompt, then an iteration of one's own
        assert waits.first_token.mean == pytest.approx(service / 2, rel=0.01)


@pytest.mark.parametrize("load", [0.3, 0.6, 0.85])
def test_a_prefill_instance_agrees_with_simulation(load: float) -> None:
    speed, work = instance(2048), of(ISL)
    rate = load * saturated_rps(speed, work, PoolShape("prefill"))
    draws = RequestDraws((ISL, work.osl), seed=3, requests=60_000)
    trial = Trial((pool_of(speed),), draws, Tier("t"))
    came = trial.at(rate).requests.ttft_s
    waits = evaluate_pool(speed, work.at(rate), PoolShape("prefill"))
    assert waits.ttft.mean == pytest.approx(came.mean(), rel=0.07)
    assert waits.ttft.quantile(0.95) == pytest.approx(np.quantile(came, 0.95), rel=0.1)
