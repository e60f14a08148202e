"""How many GPUs for users at once: monotone in users and limits, and within the limits."""

import numpy as np
import pytest
from django.urls import reverse

from planner.domain.options import options_of
from planner.errors import PlannerError
from planner.inputs import catalogue
from planner.services.quick_size import SizeQuestion, loads_of, quick_size
from simulation.fleet import Tier
from simulation.sizing.batch_queue import evaluate_pool
from simulation.sizing.capacity import SizingCase
from simulation.sizing.pool import fewest_instances, pool_curve
from simulation.sizing.workload import Workload
from simulation.trace import CachedTokens
from tests.planner.samples import client_of
from tests.planner.web.pages import signed_in

pytestmark = pytest.mark.django_db
QUESTION = {
    "users": 50, "isl": 4000, "osl": 1000, "model": "llama-3.1-70b", "gpu": "p5.48xlarge",
    "ttft_ms": 2000, "tbt_ms": 50,
}  # fmt: skip


def sized(**changes):
    return quick_size(options_of(SizeQuestion, QUESTION | changes))


def test_the_answer_is_within_the_limits_and_grows_with_the_users():
    answers = [sized(users=users) for users in (1, 50, 500)]
    for answer in answers:
        assert answer.ttft_ms <= 2000 and answer.tbt_ms <= 50
        assert answer.gpus == answer.replicas * answer.tp
        assert answer.gpu == "H100-SXM" and answer.assumptions
        assert answer.recommended_gpus == answer.gpus + answer.tp  # one spare replica
        assert answer.recommended_cost_usd_per_hour > answer.cost_usd_per_hour
    assert [a.gpus for a in answers] == sorted(a.gpus for a in answers)


def test_tighter_limits_need_no_fewer_gpus():
    loose, tight = (sized(tbt_ms=limit).gpus for limit in (80, 25))
    assert tight >= loose


def test_limits_that_no_replica_meets_are_refused():
    with pytest.raises(PlannerError):
        sized(tbt_ms=1)


def test_a_model_that_fits_nowhere_is_refused_for_the_widest_replica():
    with pytest.raises(PlannerError) as refused:
        sized(model="deepseek-r1", gpu="L4")
    assert "8 x L4" in str(refused.value)


@pytest.mark.parametrize("users", [1, 7, 50, 1000, 123_456])
def test_every_load_leads_to_replicas_that_serve_all_users(users):
    loads = loads_of(users)
    assert loads == sorted(set(loads), reverse=True) and min(loads) >= 1
    assert all(load * -(-users // load) >= users for load in loads)


def test_a_rate_needs_replicas_that_carry_it():
    answer = sized(users=None, rps=3.0)
    assert answer.replicas * answer.rps_per_replica >= 3.0
    assert answer.gpus == answer.replicas * answer.tp
    assert answer.ttft_ms <= 2000 and answer.tbt_ms <= 50
    assert answer.cost_usd_per_hour > 0


@pytest.mark.parametrize("asked", [{"users": None}, {"rps": 1.0}, {"users": 0}, {"ttft_ms": 0}])
def test_a_question_has_users_or_a_rate_and_limits(asked):
    with pytest.raises(PlannerError):
        sized(**asked)


def test_page_and_api_answer_as_the_service(planner):
    asked = QUESTION | {"users": 5, "model": "llama-3.1-8b"}
    answer = client_of(planner).post("/api/v1/quick-size/", asked, format="json")
    page = signed_in(planner).get(reverse("web:quick-size"), asked)
    assert answer.json()["gpus"] == page.context["found"].gpus == sized(**asked).gpus
    short = {name: asked[name] for name in ("model", "gpu", "users")}  # the rest has defaults
    assert signed_in(planner).get(reverse("web:quick-size"), short).context["found"]
    rate = signed_in(planner).get(reverse("web:quick-size"), asked | {"users": "", "rps": 3})
    assert rate.context["found"].replicas == sized(**asked | {"users": None, "rps": 3.0}).replicas
    both = signed_in(planner).get(reverse("web:quick-size"), asked | {"rps": 1})
    assert both.status_code == 200 and both.context["form"].errors
    answer_alone = {"HX-Request": "true", "HX-Target": "answer"}
    none = signed_in(planner).get(
        reverse("web:quick-size"), {"model": "llama-3.1-8b", "users": ""}, headers=answer_alone
    )
    assert "alert-danger" in none.content.decode()


@pytest.mark.parametrize("cached_share", [0.0, 0.5])
@pytest.mark.parametrize("users", [7, 150, 700])
def test_users_meet_the_limits_at_the_speed_of_the_profile_of_a_plan(users, cached_share):
    """The queue that sizes plans has the same latencies where it holds the same requests."""
    answer = sized(users=users, model="llama-3.1-8b", osl=500, tbt_ms=20, cached_share=cached_share)
    profile = catalogue.profiles()["llama-3.1-8b", "H100-SXM", answer.tp]
    cached = CachedTokens(np.array([4000 * cached_share]))
    work = Workload(np.array([4000]), np.array([500]), cached=cached)
    rate = answer.tokens_per_s / 500 / answer.replicas
    at = evaluate_pool(profile, work.at(rate))
    assert rate * at.e2e.mean == pytest.approx(users / answer.replicas, rel=0.01)
    assert answer.tbt_ms == pytest.approx(1e3 * at.tbt.mean)
    assert answer.ttft_ms == pytest.approx(1e3 * at.ttft.mean)
    assert at.tbt.mean <= 0.020 and at.ttft.mean <= 2.0


def test_a_rate_needs_as_many_replicas_as_a_plan_with_the_profile():
    answer = sized(users=None, rps=40.0, model="llama-3.1-8b")
    lengths = np.array([4000]), np.array([1000])
    curve = pool_curve(
        SizingCase(
            catalogue.profiles()["llama-3.1-8b", "H100-SXM", answer.tp], lengths,
            Tier("", ttft_s=2.0, tbt_s=0.05, attainment=0.95),
        )
    )  # fmt: skip
    assert answer.replicas == fewest_instances(curve.max_rps, 40.0)
    assert answer.tbt_ms == pytest.approx(1e3 * curve.alone.tbt_s)


@pytest.mark.parametrize("load", [{"users": 200}, {"users": None, "rps": 20.0}])
def test_cached_prompts_need_no_more_gpus(load):
    shares = [sized(**load, cached_share=share) for share in (0.001, 0.5, 0.9)]
    gpus = [answer.gpus for answer in shares]
    assert gpus == sorted(gpus, reverse=True)
    assert gpus[-1] < gpus[0]
