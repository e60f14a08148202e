"""bin/manage configure: the contract of its options and answer."""

import pytest

from tests.planner.domain.deployment_search.test_configure import KEYS
from tests.planner.management.calling import answer, command, problem

pytestmark = pytest.mark.django_db
GIVEN = "configure --model meta-llama/Llama-3.1-8B-Instruct --isl 512 --osl 64 --gpus H100,A100"


def called(words: str) -> str:
    code, out, err = command(*GIVEN.split(), *words.split())
    assert (code, err) == (0, "")
    return out


def test_the_answer_has_the_keys_of_the_contract() -> None:
    limits = "--ttft-ms 800 --tbt-ms 40 --rps 50 --top 2 --price A100-80GB=2"
    result = answer(*GIVEN.split(), *limits.split())
    assert result.keys() >= {"candidates", "pareto", "ruled_out", "evaluated", "seconds"}
    assert len(result["candidates"]) == 2 and result["pareto"]
    for row in result["candidates"]:
        assert row.keys() >= KEYS and row["profiles"][0]["kind"] == "roofline"
        assert row["instances"] * row["max_rps"] >= 50
        assert row["usd_per_gpu_hour"] == 2
    assert all(isinstance(number, int) for number in result["ruled_out"].values())
    assert {"what", "value", "provenance"} <= result["assumptions"][0].keys()


def test_a_price_that_is_none_is_refused() -> None:
    assert "price of H200" in problem(*GIVEN.split(), "--price", "H200=3")


def test_at_a_rate_the_words_have_the_replicas_and_their_cost() -> None:
    lines = called("--top 1 --engines vllm --rps 50 --price A100-80GB=2")
    head, best = (line.split() for line in lines.splitlines()[2:4])
    replicas, cost = int(best[head.index("replicas")]), float(best[head.index("$/h")])
    assert replicas >= 1 and cost >= 2 * replicas and cost % (2 * replicas) == 0
