"""What requests of one length do to the order in which a closed loop's prompts are computed."""

from dataclasses import replace

import pytest

from planner.errors import PlannerError
from planner.inputs import catalogue
from planner.inputs.catalogue.estimate_calibration import efficiencies, estimate_fit
from planner.inputs.estimates.deployment_rows import deployment
from simulation.errors import SimulationError
from simulation.performance.estimate.closed_loop import demands
from simulation.performance.estimate.defaults import Deployment
from simulation.performance.estimate.estimate import Estimate, estimate
from simulation.performance.graph import operator_graph
from simulation.performance.memory import MAX_BATCH_TOKENS
from simulation.performance.specs import Arrangement
from simulation.performance.work import iteration

USERS, OSL = 64.0, 256.0
SAME = Deployment(
    catalogue.shape("qwen3-32b"),
    catalogue.gpu("H100-SXM"),
    Arrangement(tp=4, moe_tp=4),
    isl=2048.0,
    osl=OSL,
    concurrency=USERS,
    engine="sglang",
)


def one(query: Deployment) -> Estimate:
    return estimate(query, estimate_fit().calibration, efficiencies())


def test_sglang_keeps_users_in_step_who_wait_for_half_of_the_prompts() -> None:
    """By hand: every prompt is computed once in a cycle, with as many others as an iteration takes,
    half of them before one's first token."""
    many, calibration = one(SAME), estimate_fit().calibration
    four = demands(
        operator_graph(SAME.shape, SAME.decode),
        SAME.gpu,
        efficiencies(),
        iteration(0.0, 0.0, MAX_BATCH_TOKENS, MAX_BATCH_TOKENS * SAME.isl / 2.0),
    )
    prompt = float(max(four["busy"], calibration.eager_s * four["kernels"])) / 4.0
    lone = one(replace(SAME, concurrency=1.0))
    polls = 1.0 + calibration.polls  # SGLang looks at every iteration by default
    waits = many.ttft_s - lone.ttft_s - polls * (many.decode_s - lone.decode_s)
    assert waits == pytest.approx((USERS - 1.0) * prompt / 2.0)
    # A prompt's iteration hides a little of the host's time.
    assert (many.tbt_s - many.decode_s) * OSL == pytest.approx(USERS * prompt / 2.0, rel=0.01)


def test_lengths_that_differ_put_users_out_of_step() -> None:
    apart = one(replace(SAME, equal=False))
    assert one(SAME).ttft_s > 2.0 * apart.ttft_s and one(SAME).tbt_s < apart.tbt_s
    steady = replace(SAME, rounds=1e6)  # no benchmark: nobody says equal
    assert one(steady).tbt_s == one(replace(steady, equal=False)).tbt_s
    drawn = replace(SAME, isl=8192.0, osl=1024.0)
    assert one(drawn) == one(replace(drawn, equal=False))  # InferenceMAX draws its lengths
    assert one(replace(drawn, equal=True)).ttft_s > one(drawn).ttft_s


@pytest.mark.parametrize("engine", ["vllm", "trtllm"])
def test_engines_that_mix_make_a_prompt_wait_for_the_one_before(engine: str) -> None:
    mixing = replace(SAME, engine=engine)
    same, apart = one(mixing), one(replace(mixing, equal=False))
    assert same.tbt_s == apart.tbt_s
    assert 0.0 < same.ttft_s - apart.ttft_s < 3.0 * same.prompt_s
    lone = replace(mixing, concurrency=1.0)
    assert one(lone).ttft_s == one(replace(lone, equal=False)).ttft_s


def test_what_is_taken_for_lengths_is_said_and_can_be_given() -> None:
    row = {"model": "qwen3-32b", "gpu": "H100-SXM", "tp": 4, "isl": 512, "osl": 64}
    row |= {"concurrency": 8}
    assert any("equal_lengths" in note for note in one(deployment(row)).assumptions)
    for word, equal in (("yes", True), ("no", False)):
        query = deployment(row | {"equal_lengths": word})
        assert query.equal is equal
        assert not any("equal_lengths" in note for note in one(query).assumptions)
    with pytest.raises(PlannerError, match="equal_lengths 'some' is unknown"):
        deployment(row | {"equal_lengths": "some"})


def test_sglang_looks_for_requests_as_often_as_is_said_or_recipes_have_it() -> None:
    """By hand: a part of the interval's decode iterations pass before a prompt begins."""
    polls = estimate_fit().calibration.polls
    drawn = replace(SAME, isl=8192.0, osl=1024.0)
    for users, interval in ((8.0, 10.0), (16.0, 30.0)):
        recipe = one(replace(drawn, concurrency=users))
        often = one(replace(drawn, concurrency=users, recv_interval=1.0))
        waits = polls * (interval - 1.0) * often.decode_s
        assert recipe.ttft_s - often.ttft_s == pytest.approx(waits)
        assert recipe.tbt_s == often.tbt_s
        assert any("recv_interval 1" in note for note in recipe.assumptions)
    for default in (SAME, replace(drawn, rounds=1e6)):
        assert one(default).ttft_s == one(replace(default, recv_interval=1.0)).ttft_s
    other = replace(drawn, engine="vllm")
    assert one(other).ttft_s == one(replace(other, recv_interval=30.0)).ttft_s
    row = {"model": "qwen3-32b", "gpu": "H100-SXM", "isl": 512, "osl": 64, "concurrency": 8}
    assert deployment(row | {"scheduler_recv_interval": 4}).recv_interval == 4.0
    with pytest.raises(SimulationError, match="recv_interval is 0"):
        deployment(row | {"recv_interval": 0})
