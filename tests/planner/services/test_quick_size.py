"""How many GPUs for users at once: monotone in users and limits, and within the limits."""

from __future__ import annotations

import pytest

from planner.errors import PlannerError
from planner.services.quick_size import loads_of, quick_size

pytestmark = pytest.mark.django_db
QUESTION = {
    "users": 50, "input_tokens": 4000, "output_tokens": 1000, "model": "llama-3.1-70b",
    "gpu": "p5.48xlarge", "ttft_ms": 2000, "tpot_ms": 50,
}  # fmt: skip


def test_the_answer_is_within_the_limits_and_grows_with_the_users():
    answers = [quick_size(**QUESTION | {"users": users}) for users in (1, 50, 500)]
    for answer in answers:
        assert answer["ttft_ms"] <= 2000 and answer["tpot_ms"] <= 50
        assert answer["gpus"] == answer["replicas"] * answer["tp"]
        assert answer["gpu"] == "H100-SXM" and answer["assumptions"]
    assert [a["gpus"] for a in answers] == sorted(a["gpus"] for a in answers)


def test_tighter_limits_need_no_fewer_gpus():
    loose, tight = (quick_size(**QUESTION | {"tpot_ms": limit})["gpus"] for limit in (80, 25))
    assert tight >= loose


def test_limits_that_no_replica_meets_are_refused():
    with pytest.raises(PlannerError):
        quick_size(**QUESTION | {"tpot_ms": 1})


@pytest.mark.parametrize("users", [1, 7, 50, 1000, 123_456])
def test_every_load_leads_to_replicas_that_serve_all_users(users):
    loads = loads_of(users)
    assert loads == sorted(set(loads), reverse=True) and min(loads) >= 1
    assert all(load * -(-users // load) >= users for load in loads)
