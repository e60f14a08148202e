"""No estimate beats what its GPUs can compute, however short the answers are."""

import itertools

import pytest

from planner.inputs import catalogue
from planner.inputs.catalogue.estimate_calibration import efficiencies, estimate_fit
from simulation.performance.estimate.calibration import ENGINES
from simulation.performance.estimate.defaults import Deployment
from simulation.performance.estimate.estimate import Estimate, estimate_rows
from simulation.performance.graph import operator_graph
from simulation.performance.specs import Arrangement
from simulation.performance.work import iteration

ISL, LOADS, STEADY = 1024.0, (1.0, 16.0, 256.0), 1e6
ANSWERS = (1.0, 2.0, 8.0, 64.0)


@pytest.mark.parametrize(("model", "gpu", "tp"), [("llama-3.1-8b", "H100-SXM", 1),
                                                  ("gpt-oss-120b", "B200", 2)])  # fmt: skip
def test_prompts_are_computed_no_faster_than_the_peak(model: str, gpu: str, tp: int) -> None:
    shape, kind, where = catalogue.shape(model), catalogue.gpu(gpu), Arrangement(tp=tp, moe_tp=tp)
    prompt = iteration(0.0, 0.0, ISL, ISL * ISL / 2.0)
    flops = float(operator_graph(shape, where).total("flops", prompt))  # on each GPU
    asked = [
        Deployment(shape, kind, where, ISL, osl, users, engine, rounds=rounds)
        for engine, osl, users, rounds in itertools.product(ENGINES, ANSWERS, LOADS, (10, STEADY))
    ]
    for query, answer in zip(
        asked, estimate_rows(asked, estimate_fit().calibration, efficiencies()), strict=True
    ):
        assert isinstance(answer, Estimate)
        rate = answer.tokens_per_s / query.osl
        assert rate * flops < kind.peak_flops["bf16"], query
        # Little's law: as many as there are users are under way.
        stay = answer.ttft_s + (query.osl - 1.0) * answer.tbt_s
        assert rate * stay == pytest.approx(query.concurrency)


def test_answers_of_one_token_are_limited_by_prompts_alone() -> None:
    """More users of a model that embeds or classifies wait longer, and get no more done."""
    queries = [
        Deployment(
            catalogue.shape("qwen3-8b"), catalogue.gpu("H100-SXM"), Arrangement(), ISL, 1.0, users,
            rounds=STEADY,
        )
        for users in (64.0, 128.0, 256.0)
    ]  # fmt: skip
    answers = estimate_rows(queries, estimate_fit().calibration, efficiencies())
    rates = [answer.tokens_per_s for answer in answers if isinstance(answer, Estimate)]
    assert rates[0] == pytest.approx(rates[1]) and rates[1] == pytest.approx(rates[2])
    assert all(any("one token" in sentence for sentence in answer.assumptions) for answer in answers
               if isinstance(answer, Estimate))  # fmt: skip
