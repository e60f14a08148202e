"""How instances serve and how requests find them: from the scenario's words to the fleet."""

import pytest

from planner.errors import ScenarioError
from planner.inputs.scenario.document import dump, parse
from tests.planner.inputs.scenario.test_columns import BIG, SMALL, built, on

TEXT = """\
version: 1
models: [llama-3.1-8b, llama-3.1-70b]
profiles:
  - {model: llama-3.1-8b, gpu: H100-SXM, kind: roofline}
  - {model: llama-3.1-70b, gpu: H100-SXM, tp: 8, kind: roofline, role: prefill}
  - {model: llama-3.1-70b, gpu: H100-SXM, tp: 8, kind: roofline, role: decode}
regions:
  - {name: east, capacity: {H100-SXM: 64}, usd_per_gpu_hour: {H100-SXM: 2}, carbon_g_per_kwh: 400}
tiers: [{name: chat, ttft_ms: 1000}]
traffic: {sources: [{trace: t}]}
"""


def test_each_model_serves_by_its_own_row_else_by_the_one_for_all() -> None:
    rows = [{"batching": "whole"}, {"model": SMALL, "batching": "alone"}]
    hardware = built([on(BIG, tp=8), on(SMALL)], serving=rows)
    pools = hardware.fleet(hardware.minimum).pools
    assert {(pool.model, pool.batching) for pool in pools} == {(BIG, "whole"), (SMALL, "alone")}
    usual = built([on(SMALL)])
    assert {pool.batching for pool in usual.fleet(usual.minimum).pools} == {"chunked"}


def test_deadlines_and_caches_are_of_the_pools_that_prefill() -> None:
    row = {"scheduler": "dpa", "tau_p_s": 2, "prefix_caching": True, "when_full": "fail"}
    apart = [on(BIG, tp=8, role="prefill"), on(BIG, tp=8, role="decode")]
    hardware = built(apart, serving=[row])
    pools = {pool.role: pool for pool in hardware.fleet(hardware.minimum).pools}
    prefill, decode = pools["prefill"], pools["decode"]
    assert (prefill.scheduler, prefill.tau_p_s, prefill.tau_n_s) == ("dpa", 2.0, 10.0)
    assert (prefill.prefix_cache, prefill.when_full) == (True, "fail")
    assert (decode.scheduler, decode.prefix_cache, decode.when_full) == ("pf", False, "fail")


def test_routing_of_the_scenario_is_the_fleets() -> None:
    routing = {"region_threshold": 0.5, "instance": "round-robin", "decode": "least-pending"}
    hardware = built([on(SMALL)], fleet={"routing": routing})
    its_routing = hardware.fleet(hardware.minimum).routing
    assert (its_routing.region_threshold, its_routing.instance) == (0.5, "round-robin")
    assert (its_routing.decode, its_routing.release_one_below) == ("least-pending", 0.6)


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ("serving: [{model: gpt}]", "line 11: serving[0].model: model 'gpt' is not in this"),
        ("serving: [{}, {batching: whole}]", "serving[1]: the row for all models is listed twice"),
        ("serving: [{batching: magic}]", "serving[0].batching: input should be 'chunked', "),
        ("serving: [{tau_p_s: 1}]", "serving[0]: tau_n_s and tau_p_s belong to scheduler: dpa"),
        (
            "fleet: {routing: {release_two_below: 0.9}}",
            "fleet.routing.release_two_below: ",
        ),
    ],
)
def test_faults_are_told_with_their_place(more: str, words: str) -> None:
    with pytest.raises(ScenarioError) as problem:
        parse(TEXT + more + "\n")
    assert words in str(problem.value)


def test_every_option_survives_writing_and_reading() -> None:
    more = """\
serving:
  - {batching: whole, scheduler: dpa, tau_n_s: 30, tau_p_s: 1}
  - model: llama-3.1-70b
    prefix_caching: true
    when_full: fail
    kv_transfer: {gb_s: 50, shared_gb_s: 400}
fleet:
  routing: {region_threshold: 0.8, instance: least-pending, release_two_below: 0.4}
  today:
    - {model: llama-3.1-70b, region: east, gpu: H100-SXM, tp: 8, role: decode, replicas: 1}
"""
    scenario = parse(TEXT + more)
    assert parse(dump(scenario)) == scenario
    assert scenario.serving[1].kv_transfer.shared_gb_s == 400


def test_starts_by_where_the_weights_are_and_what_is_lent_out() -> None:
    starts = {"remote_s": 3600, "other_model_s": 900, "warm_hosts": 3}
    row = {"model": SMALL, "region": "east", "gpu": "H100-SXM", "replicas": 2, "lent": 4}
    fleet = {"startup_s": 300, "starts": starts, "today": [row]}
    hardware = built([on(SMALL)], fleet=fleet)
    assert hardware.today is not None
    pools = {pool.region: pool for pool in hardware.fleet(hardware.today).pools}
    start = pools["east"].start_up
    assert start is not None and (start.lent, start.warm_hosts) == (4, 3)
    assert (start.local_s, start.remote_s, start.reclaim_s) == (300, 3600, 60)
    assert (start.other_model_s, start.same_architecture_s) == (900, None)
    assert pools["west"].start_up is not None and pools["west"].start_up.lent == 0
    plain = built([on(SMALL)])
    assert plain.fleet(plain.minimum).pools[0].start_up is None


def test_models_of_one_architecture_are_told_by_the_scenario() -> None:
    models = [{"name": name, "architecture": "llama"} for name in (BIG, SMALL)]
    hardware = built([on(BIG, tp=8), on(SMALL)], models=models)
    assert {pool.architecture for pool in hardware.fleet(hardware.minimum).pools} == {"llama"}


def test_a_ratio_gate_is_the_fleets() -> None:
    apart = [on(BIG, tp=8, role="prefill"), on(BIG, tp=8, role="decode")]
    hardware = built(apart, fleet={"registration": {"ratio": 0.5}})
    gate = hardware.fleet(hardware.minimum).registration
    assert gate is not None and (gate.ratio, gate.tolerance) == (0.5, 0.25)
