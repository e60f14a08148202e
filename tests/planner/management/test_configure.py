"""bin/manage configure: the contract of its options and answer."""

import io
import json
from typing import Any

import pytest
from django.core.management import call_command

from tests.planner.domain.deployment_search.test_configure import KEYS

pytestmark = pytest.mark.django_db
GIVEN = [
    "--model",
    "meta-llama/Llama-3.1-8B-Instruct",
    "--isl",
    "512",
    "--osl",
    "64",
    "--gpus",
    "H100,A100",
]


def called(*words_more: str) -> str:
    out = io.StringIO()
    call_command("configure", *GIVEN, *words_more, stdout=out)
    return out.getvalue()


def test_the_answer_has_the_keys_of_the_contract() -> None:
    limits = [
        "--ttft-ms",
        "800",
        "--tbt-ms",
        "40",
        "--rps",
        "50",
        "--top",
        "2",
        "--price",
        "A100-80GB=2",
    ]
    result: dict[str, Any] = json.loads(called(*limits, "--json"))
    assert result.keys() >= {"candidates", "pareto", "ruled_out", "evaluated", "seconds"}
    assert len(result["candidates"]) == 2 and result["pareto"]
    for row in result["candidates"]:
        assert row.keys() >= KEYS and row["profiles"][0]["kind"] == "roofline"
        assert row["instances"] * row["max_rps"] >= 50
        assert row["usd_per_gpu_hour"] == 2
    assert all(isinstance(number, int) for number in result["ruled_out"].values())
    assert {"what", "value", "provenance"} <= result["assumptions"][0].keys()


def test_in_words_the_ranking_stands_beside_what_was_ruled_out() -> None:
    printed = called("--top", "1", "--engines", "vllm")
    assert "precision not on this GPU" in printed and "dollars per million tokens" in printed
    assert "A100-80GB" in printed and "sglang" not in printed.split("From arrival")[0]


def test_a_price_that_is_none_is_refused() -> None:
    complaints = io.StringIO()
    with pytest.raises(SystemExit) as stopped:
        call_command("configure", *GIVEN, "--price", "H200=3", stderr=complaints)
    assert stopped.value.code == 2 and "price of H200" in complaints.getvalue()


def test_at_a_rate_the_words_have_the_replicas_and_their_cost() -> None:
    lines = called("--top", "1", "--engines", "vllm", "--rps", "50", "--price", "A100-80GB=2")
    head, best = (line.split() for line in lines.splitlines()[2:4])
    replicas, cost = int(best[head.index("replicas")]), float(best[head.index("$/h")])
    assert replicas >= 1 and cost >= 2 * replicas and cost % (2 * replicas) == 0
