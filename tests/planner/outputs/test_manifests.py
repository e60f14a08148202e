"""What leaves for a cluster: its schedule is the plan's, and its reader takes it."""

import csv
import json
from copy import deepcopy
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from planner.domain.planning.purchases import DeferrableWork, ShiftFigures
from planner.domain.study import Setting
from planner.errors import NotReady, PlannerError
from planner.outputs.manifests import aibrix, deferrable_work, dynamo, keda, kserve, llmd, wva
from planner.outputs.manifests.common import Document, schedule_only_note, yaml_text
from planner.outputs.manifests.kinds import MANIFESTS
from planner.outputs.moved_work import moved_work
from planner.outputs.object_names import LONGEST, checked_name, name_of, unique_names
from planner.outputs.plan_guard import Guard
from planner.outputs.plans import Rule, rule_of
from planner.outputs.validation import NAMES, SCHEMAS, check, faults
from planner.outputs.weekly_pattern import (
    MINUTES_PER_DAY,
    MINUTES_PER_WEEK,
    UNKNOWN,
    Slot,
    Step,
    fold_steps,
    recurring_slots,
    replicas_without_gaps,
)
from planner.policies.choice import policy_of
from simulation.policies.endpoint_picker import VELOCITY
from simulation.policies.parts.guard import AIM
from simulation.policies.token_velocity import DECODE_BATCH
from tests.planner.outputs.reading import objects_of, steps_of_cron, week_of_cron, week_of_schedules
from tests.planner.outputs.samples import MONDAY, asked, plan_of, pool_of, steps_of
from tests.shared_folder import SHARED, shared
from tools.export_schemas import reduced_schemas, text_of

LENGTHS = st.integers(1, 3 * MINUTES_PER_DAY)
TIMETABLES = st.lists(st.tuples(LENGTHS, st.integers(0, 4)), min_size=1, max_size=12)
HPA_RULE = Rule("hpa", "queue", 5.0, 0.1, 300.0)


def length(step: Step) -> float:
    return (step.ends - step.begins).total_seconds()


def spec(document: Any) -> Any:
    return document.body["spec"]


# Schedules say what the plan says


@given(TIMETABLES, st.sampled_from(["daily", "weekly"]))
def test_keda_is_active_exactly_when_the_plan_has_more_than_its_least(minutes, repeat):
    pool = pool_of(steps_of(minutes))
    plan = plan_of(pool, repeat=repeat)
    triggers = keda.triggers(asked(plan), pool)
    counts = replicas_without_gaps(pool.steps, repeat)
    counts = np.tile(counts, MINUTES_PER_WEEK // len(counts))
    floor = plan.lowest_replicas(pool)
    raised = np.maximum(counts, floor)
    if [trigger["name"] for trigger in triggers] == ["always"]:  # KEDA asks for one
        assert (raised == floor).all()
        triggers = []
    assert (week_of_cron(triggers, floor) == raised).all()


@given(TIMETABLES)
def test_dates_come_back_as_they_were_planned(minutes):
    pool = pool_of(steps_of(minutes))
    plan = plan_of(pool, repeat="once")
    triggers = [t for t in keda.triggers(asked(plan), pool) if t["name"] != "always"]
    back = steps_of_cron(triggers, MONDAY.year)
    more = [step for step in pool.steps if step.replicas > pool.min_replicas]
    for step in more:
        held = next(s for s in back if s.begins <= step.begins and s.ends >= step.ends)
        assert held.replicas == step.replicas
    assert sum(length(step) for step in back) == sum(length(step) for step in more)


@given(TIMETABLES, st.sampled_from(["daily", "weekly"]))
def test_aibrix_keeps_what_the_plan_has_but_for_the_minute_before_midnight(minutes, repeat):
    pool = pool_of(steps_of(minutes))
    plan = plan_of(pool, repeat=repeat)
    body = aibrix.documents(asked(plan))[0].body
    check("aibrix", body, "it")
    kept = week_of_schedules(body["spec"])
    counts = fold_steps(pool.steps, repeat)
    week = np.tile(counts, MINUTES_PER_WEEK // len(counts))
    inside = week >= 0
    inside[MINUTES_PER_DAY - 1 :: MINUTES_PER_DAY] = False
    assert (kept[inside] == week[inside]).all()
    assert (kept >= week).all()  # never fewer, also in that minute


@given(TIMETABLES, st.sampled_from(["daily", "weekly"]))
def test_a_repeat_has_replicas_in_every_minute_and_changes_none_of_the_plan(minutes, repeat):
    steps = steps_of(minutes)
    planned, every = fold_steps(steps, repeat), replicas_without_gaps(steps, repeat)
    known = planned != UNKNOWN
    assert (every[known] == planned[known]).all() and (every != UNKNOWN).all()
    if known.sum() >= MINUTES_PER_DAY:  # an uncovered day has the largest of the other days
        day = planned.reshape(-1, MINUTES_PER_DAY).max(axis=0)
        assert (np.tile(day, len(every) // MINUTES_PER_DAY)[~known] == every[~known]).all()


def test_dynamo_and_its_scaled_objects_give_the_timetable_back():
    steps = steps_of([(8 * 60, 2), (10 * 60, 5), (6 * 60, 3)])
    prefill, decode = (pool_of(steps, name, role=name) for name in ("prefill", "decode"))
    graph, *scaled = dynamo.documents(asked(plan_of(prefill, decode, repeat="daily")))
    parts = {component["name"]: component for component in graph.body["spec"]["components"]}
    assert {name: component["replicas"] for name, component in parts.items()} == {
        "prefill": 2,
        "decode": 2,
    }
    assert all("scalingAdapter" in component for component in parts.values())
    adapters = {f"{graph.body['metadata']['name']}-{role}" for role in parts}
    assert {spec(scaler)["scaleTargetRef"]["name"] for scaler in scaled} == adapters
    week = np.tile(fold_steps(steps, "daily"), 7)
    for scaler in scaled:
        assert (
            week_of_cron(spec(scaler)["triggers"], spec(scaler)["minReplicaCount"]) == week
        ).all()


def test_stretches_by_hand():
    """Five working days alike and a quiet week-end: one slot with days of the week."""
    day = [(8 * 60, 1), (10 * 60, 4), (6 * 60, 1)]
    steps = steps_of([*day * 5, (2 * MINUTES_PER_DAY, 1)])
    assert recurring_slots(fold_steps(steps, "weekly"), 1) == [Slot((0, 1, 2, 3, 4), 480, 600, 4)]
    trigger = keda.triggers(asked(plan_of(pool_of(steps))), pool_of(steps))[0]["metadata"]
    assert (trigger["start"], trigger["end"]) == ("0 8 * * 1-5", "0 18 * * 1-5")
    night = steps_of([(22 * 60, 1), (8 * 60, 3), (MINUTES_PER_WEEK - 30 * 60, 1)])
    trigger = keda.triggers(asked(plan_of(pool_of(night))), pool_of(night))[0]["metadata"]
    assert (trigger["start"], trigger["end"]) == ("0 22 * * 1", "0 6 * * 2")
    sunday = steps_of([(22 * 60, 1), (8 * 60, 3)], MONDAY.replace(day=24))
    assert keda.cron_fields(recurring_slots(fold_steps(sunday, "weekly"), 1)[0]) == (
        "0 22 * * 0",
        "0 6 * * 1",
    )
    two = fold_steps(
        steps_of([(MINUTES_PER_DAY, 2), (MINUTES_PER_DAY, 5), (6 * MINUTES_PER_DAY, 1)]), "weekly"
    )
    assert (
        two[0] == 2 and two[MINUTES_PER_DAY] == 5 and two[2 * MINUTES_PER_DAY] == 1
    )  # Monday again: the most of both


def test_what_holds_all_the_time_has_a_trigger_that_changes_nothing():
    pool = pool_of(steps_of([(MINUTES_PER_DAY, 3)]))
    scaler = keda.documents(asked(plan_of(pool, repeat="daily")))[0]
    held = spec(scaler)
    assert (held["minReplicaCount"], held["maxReplicaCount"]) == (3, 3)
    assert [t["metadata"]["desiredReplicas"] for t in held["triggers"]] == ["3"]


# Its reader takes it


@pytest.mark.parametrize("kind", MANIFESTS)
@pytest.mark.parametrize("repeat", ["once", "daily", "weekly"])
def test_every_format_is_taken_by_its_reader(kind, repeat):
    steps = steps_of([(90, 0), (MINUTES_PER_DAY, 3), (60, 12)])
    pools = [pool_of(steps, "a" * LONGEST, region="east"), pool_of(steps, "b", region="west")]
    manifests = MANIFESTS[kind].documents(
        asked(plan_of(*pools, repeat=repeat), namespace="serving")
    )
    for manifest in manifests:
        assert not list(faults(manifest.schema, manifest.body))
    text = yaml_text(manifests)
    bodies = [json.loads(json.dumps(manifest.body)) for manifest in manifests]
    assert objects_of(text) == bodies == list(yaml.safe_load_all(text))  # YAML 1.2 and 1.1
    assert text.startswith("# Headroom, run 7: A plan\n")
    assert "kubectl apply -l headroom/region=" in text


@pytest.mark.parametrize("form", ["hpa", "scaledobject", "variantautoscaling"])
def test_wva_in_all_its_forms(form):
    pool = pool_of(steps_of([(MINUTES_PER_DAY, 2), (MINUTES_PER_DAY, 4)]))
    (manifest,) = wva.documents(asked(plan_of(pool), form=form))
    assert not list(faults(manifest.schema, manifest.body))
    if form == "variantautoscaling":
        assert spec(manifest)["variantCost"] == "6.50"
    else:
        marks = manifest.body["metadata"]["annotations"]
        assert marks["llm-d.ai/managed"] == "true" and marks["llm-d.ai/variant-cost"] == "6.50"
        assert "behavior" not in json.dumps(
            manifest.body
        )  # what goes by load waits before it shrinks


def test_a_rule_leaves_as_its_target():
    plan = plan_of(pool_of((), "chat"), rule=HPA_RULE)
    (manifest,) = MANIFESTS["hpa"].documents(asked(plan))
    metric = spec(manifest)["metrics"][0]["pods"]
    assert metric["metric"]["name"] == "vllm_num_requests_waiting"
    assert metric["target"]["averageValue"] == "5000m"
    assert (spec(manifest)["minReplicas"], spec(manifest)["maxReplicas"]) == (1, 5)
    (manifest,) = keda.documents(asked(plan))
    trigger = spec(manifest)["triggers"][0]
    assert trigger["metadata"]["query"] == 'sum(vllm:num_requests_waiting{pod=~"chat-.*"})'
    assert (trigger["metadata"]["threshold"], trigger["metricType"]) == ("5", "AverageValue")
    assert not list(faults("keda", manifest.body))
    with pytest.raises(NotReady):
        aibrix.documents(asked(plan))
    tokens = plan_of(pool_of(()), rule=Rule("hpa", "tokens", 5.0, 0.1, 300.0))
    with pytest.raises(PlannerError):
        MANIFESTS["hpa"].documents(asked(tokens))


def test_token_velocity_leaves_with_the_work_of_each_role():
    policy = policy_of("token-velocity", target=0.5, keep_s=600)
    pools = [pool_of((), f"chat-{role}", role) for role in ("prefill", "decode")]
    computed = [
        Setting(what, f"llama-3.1-8b in us-east, {pool.arrangement}", value)
        for pool in pools
        for what, value in ((VELOCITY, 12_000.0), (DECODE_BATCH, 80.0))
    ]
    plan = plan_of(*pools, rule=rule_of(policy, computed))
    bodies = [document.body for document in keda.documents(asked(plan))]
    triggers = [body["spec"]["triggers"][0]["metadata"] for body in bodies]
    assert [float(trigger["threshold"]) for trigger in triggers] == [6000.0, 40.0]
    prompts, flight = (trigger["query"] for trigger in triggers)
    assert "vllm:prompt_tokens_total" in prompts and 'pod=~"chat-prefill-.*"' in prompts
    assert "vllm:num_requests_running" in flight and 'pod=~"chat-decode-.*"' in flight
    for body in bodies:
        assert not list(faults("keda", body))
        down = body["spec"]["advanced"]["horizontalPodAutoscalerConfig"]["behavior"]["scaleDown"]
        assert down["stabilizationWindowSeconds"] == 600


GUARD = Guard(float("nan"), 1250.0, 12.0, 60.0, 300.0, max_replicas=9)


def test_a_guarded_plan_leaves_with_its_guard():
    """By hand: cron windows for the plan, and by load what is served and what piles up, which has
    to last a minute and stays for five; a pool that only decodes has no prompts."""
    pool = replace(pool_of(steps_of([(480, 2), (960, 5)]), role="decode"), guard=GUARD)
    plan = plan_of(pool, repeat="daily")
    (manifest,) = keda.documents(asked(plan))
    assert not list(faults("keda", manifest.body))
    assert (spec(manifest)["minReplicaCount"], spec(manifest)["maxReplicaCount"]) == (2, 9)
    crons, (outputs, piled) = spec(manifest)["triggers"][:-2], spec(manifest)["triggers"][-2:]
    assert {trigger["type"] for trigger in crons} == {"cron"}
    week = np.tile(fold_steps(pool.steps, "daily"), 7)
    assert (week_of_cron(crons, 2) == week).all()
    assert outputs["metadata"]["query"] == (
        'max_over_time(min_over_time(sum(rate(vllm:generation_tokens_total{pod=~"chat-.*"}[60s]))'
        "[60s:15s])[300s:15s])"
    )
    assert (outputs["metadata"]["threshold"], outputs["metricType"]) == ("1250", "AverageValue")
    assert '> 24 * count(vllm:num_requests_running{pod=~"chat-.*"})' in piled["metadata"]["query"]
    assert (piled["metadata"]["threshold"], piled["metadata"]["ignoreNullValues"]) == ("12", "true")
    assert set(keda.GUARDED) <= set(manifest.comment)

    both = replace(pool, role="mixed", guard=replace(GUARD, prompt_tokens_per_s=8000.0))
    (manifest,) = MANIFESTS["hpa"].documents(asked(plan_of(both, repeat="daily")))
    assert not list(faults("hpa", manifest.body)) and spec(manifest)["maxReplicas"] == 9
    metrics = [metric["external"] for metric in spec(manifest)["metrics"]]
    assert [metric["target"]["averageValue"] for metric in metrics] == [
        "1", "8000000m", "1250000m", "12000m",
    ]  # fmt: skip
    for metric in metrics[1:]:  # each with the query that an adapter has to offer
        assert metric["metric"]["selector"]["matchLabels"] == {"deployment": "chat"}
        assert any(
            line.startswith(f"{metric['metric']['name']}: max_over") for line in manifest.comment
        )
    for kind in ("kserve", "dynamo"):
        manifests = MANIFESTS[kind].documents(asked(plan_of(both, repeat="daily")))
        assert not [
            fault for manifest in manifests for fault in faults(manifest.schema, manifest.body)
        ]
        assert "piled-up" in json.dumps([manifest.body for manifest in manifests])
    for kind in ("aibrix", "llm-d"):  # which have no trigger by load
        manifests = MANIFESTS[kind].documents(asked(plan_of(both, repeat="daily")))
        assert set(schedule_only_note(plan_of(both, repeat="daily"))) <= set(manifests[0].comment)


def test_a_guards_queries_ask_for_as_many_as_carry_it_where_few_carry_less_each():
    """Square-root staffing through what the plan's least and most carry: the query's number is
    that of its inverse, and a pile is held against what those that are there hold."""
    shares = tuple((n, 1.0 - 0.5 * n**-0.5) for n in (1, 2, 4, 8, 16, 64))
    guard = replace(GUARD, capacity_shares=shares)
    a, k = guard.staffing(2, 5)  # shares told are read along 1/sqrt(n), which this law is
    assert (a, k) == pytest.approx((1.0, 0.5))
    assert GUARD.staffing(2, 5) == (1.0, 0.0)
    pool = replace(pool_of(steps_of([(480, 2), (960, 5)]), role="decode"), guard=guard)
    (manifest,) = keda.documents(asked(plan_of(pool, repeat="daily")))
    assert not list(faults("keda", manifest.body))
    outputs, piled = spec(manifest)["triggers"][-2:]
    assert outputs["metadata"]["threshold"] == piled["metadata"]["threshold"] == "1"
    query = outputs["metadata"]["query"]
    assert query.startswith("(0.25 + sqrt(0.0625 + (max_over_time(min_over_time(sum(rate(")
    assert query.endswith("> 0) / 1250)) ^ 2")
    for n in (2, 3, 5, 9):  # by hand: what n carry asks for n
        load = 1250 * n * (1.0 - 0.5 * n**-0.5)
        assert (0.25 + (0.0625 + load / 1250) ** 0.5) ** 2 == pytest.approx(n)
    there = 'count(vllm:num_requests_running{pod=~"chat-.*"})'
    assert f"> 24 * ({there} - 0.5 * sqrt({there})))" in piled["metadata"]["query"]
    (hpa,) = MANIFESTS["hpa"].documents(asked(plan_of(pool, repeat="daily")))
    names = [metric["external"]["metric"]["name"] for metric in spec(hpa)["metrics"]]
    assert names[1:] == [f"headroom_guard_replicas_by_{n}_chat" for n in ("outputs", "piled_up")]
    assert all(any(line.startswith(f"{name}: (") for line in hpa.comment) for name in names[1:])


def test_late_requests_add_replicas_where_the_plan_runs():
    """By hand: a limit of 1.75 s is half way through a bucket of TTFT, and one of 0.1 s of TPOT is
    the end of one. A prefill pool has no TPOT, and a guard of an earlier release no limits."""
    limits = {"allowed_late_share": 0.05, "ttft_limit_s": 1.75, "tpot_limit_s": 0.1}
    guard = replace(GUARD, prompt_tokens_per_s=500.0, **limits)
    pool = replace(pool_of(steps_of([(480, 2), (960, 5)])), guard=guard)
    (manifest,) = keda.documents(asked(plan_of(pool, repeat="daily")))
    assert not list(faults("keda", manifest.body))
    late = spec(manifest)["triggers"][-1]["metadata"]
    assert late["threshold"] == "1"
    pods = 'pod=~"chat-.*"'
    first, later = "vllm:time_to_first_token_seconds", "vllm:request_time_per_output_token_seconds"
    for part in (
        f'0.5 * sum(rate({first}_bucket{{{pods},le="2.5"}}[900s]))',
        f'0.5 * sum(rate({first}_bucket{{{pods},le="1.0"}}[900s]))',
        f'(1 * sum(rate({later}_bucket{{{pods},le="0.1"}}[900s])))',
        f") / {AIM * 0.05:g}, 0, 2)",
        f", {1 / (0.3 * 500):.6g})",
    ):
        assert part in late["query"]
    assert late["query"].count("(") == late["query"].count(")")
    (alone,) = keda.documents(asked(plan_of(
        replace(pool, guard=replace(guard, tpot_limit_s=np.nan)), repeat="daily")))  # fmt: skip
    assert later not in spec(alone)["triggers"][-1]["metadata"]["query"]
    (earlier,) = keda.documents(asked(plan_of(replace(pool, guard=GUARD), repeat="daily")))
    assert len(spec(earlier)["triggers"]) == len(spec(manifest)["triggers"]) - 2


def test_a_power_cap_leaves_with_its_watts_and_its_clock():
    pool = pool_of(steps_of([(MINUTES_PER_DAY, 2)]))
    capped = replace(pool, facts=replace(pool.facts, power_cap_w=350, clock_mhz=1200))
    for kind, cap, clock in ((pool, None, None), (capped, "350", "1200")):
        (document, *_) = keda.documents(asked(plan_of(kind, repeat="daily")))
        annotations = document.body["metadata"]["annotations"]
        assert annotations.get("headroom/gpu-power-cap-watts") == cap
        assert annotations.get("headroom/gpu-clock-mhz") == clock
        assert sum("nvidia-smi" in line for line in document.comment) == (2 if cap else 0)


def test_files_of_one_number_hold_that_of_their_moment():
    pool = pool_of(steps_of([(480, 2), (600, 5), (360, 3)]), gpus=16)
    moment = "2026-05-18T09:00:00Z"
    (values,) = llmd.documents(asked(plan_of(pool, repeat="daily"), at=moment))
    assert values.body["decode"]["replicas"] == 5 and values.body["multinode"] is True


def test_kserve_has_prefill_and_decode_in_one_service():
    steps = steps_of([(480, 2), (960, 5)])
    pools = [pool_of(steps, "p", role="prefill"), pool_of(steps, "d", role="decode")]
    (manifest,) = kserve.documents(asked(plan_of(*pools, repeat="daily")))
    assert "replicas" not in spec(manifest) and "scaling" in spec(manifest)["prefill"]
    with pytest.raises(PlannerError, match="2 pools of prefill and 1 of decode"):
        kserve.documents(asked(plan_of(*pools, pool_of(steps, "q", role="prefill"))))


FAULTS = {
    "keda": [
        (("spec", "unknown"), 1),
        (("spec", "minReplicaCount"), -1),
        (("spec", "minReplicaCount"), 99),
        (("spec", "triggers"), []),
        (("spec", "triggers", 0, "metadata", "desiredReplicas"), 3),
        (("spec", "triggers", 0, "metadata", "desiredReplicas"), "0"),
        (("spec", "triggers", 0, "metadata", "start"), "0 0 0 8 * *"),
        (("spec", "triggers", 0, "metadata", "end"), "0 8 * * 1"),
        (("spec", "triggers", 0, "metadata", "timezone"), "Mars"),
        (("metadata", "name"), "Under_score"),
        (("metadata", "name"), "x" * 60),
        (("metadata", "labels", "a"), "not a label"),
        (("kind",), "Scaled"),
    ],
    "hpa": [
        (("spec", "minReplicas"), 0),
        (("spec", "maxReplicas"), 0),
        (("spec", "maxReplicas"), 2**31),
        (("spec", "metrics", 0, "external", "target", "type"), 1),
        (("spec", "behavior", "scaleUp", "stabilizationWindowSeconds"), 3601),
        (("metadata", "annotations", "llm-d.ai/managed"), "true"),
    ],
    "aibrix": [
        (("spec", "metricsSources"), []),
        (("spec", "schedules", 0, "endTime"), "24:00"),
        (("spec", "schedules", 0, "endTime"), "00:00"),
        (("spec", "schedules", 0, "startTime"), 750),
    ],
    "dynamo": [(("spec", "components", 0, "name"), 3), (("spec", "replicas"), 3)],
    "kserve": [(("spec", "replicas"), 3), (("spec", "scaling", "maxReplicas"), 0)],
    "wva": [(("spec", "variantCost"), 6.5), (("spec", "minReplicas"), 9)],
    "llm-d": [(("decode", "replicas"), "3"), (("decode", "parallelism", "tensors"), 3)],
}


@pytest.mark.parametrize("kind", FAULTS)
def test_what_its_reader_would_not_take_does_not_leave(kind):
    pool = pool_of(steps_of([(480, 2), (600, 5), (360, 3), (6 * MINUTES_PER_DAY, 2)]))
    form = "variantautoscaling" if kind == "wva" else "hpa"
    sound = json.loads(
        json.dumps(MANIFESTS[kind].documents(asked(plan_of(pool), form=form))[0].body)
    )
    assert not list(faults(kind, sound))
    for path, value in FAULTS[kind]:
        body = deepcopy(sound)
        inner = body
        for part in path[:-1]:
            inner = inner[part]
        inner[path[-1]] = value
        if path[-1] == "end":
            inner["start"] = value
        with pytest.raises(PlannerError, match="nothing was written"):
            check(kind, body, "it")


def test_schemas_are_what_was_published():
    schemas = reduced_schemas(shared(SHARED / "reference/schemas"))
    assert set(schemas) == set(NAMES)
    for name, schema in schemas.items():
        assert (SCHEMAS / f"{name}.json").read_text(encoding="utf-8") == text_of(schema)


# Names


@given(st.lists(st.text(max_size=80), min_size=1, max_size=4))
def test_any_words_make_a_name(parts):
    assert checked_name(name_of(parts)) and len(name_of(parts)) <= LONGEST


def test_pools_are_told_apart():
    parts = [("m", "gpu"), ("m", "gpu"), ("m", "gpu"), ("n", "gpu")]
    names = unique_names(parts, [("1 x gpu",), ("2 x gpu",), ("2 x gpu",), ("1 x gpu",)])
    assert len(set(names)) == 4 and names[0] == "m-gpu-1-x-gpu" and names[3] == "n-gpu"
    long = unique_names([("x" * 90, "a"), ("x" * 90, "b")], [(), ()])
    assert long[0] != long[1] and all(len(name) <= LONGEST for name in long)


def test_no_word_of_a_scenario_ends_a_comment():
    text = yaml_text([Document({"a": "12:30", "no": "yes"}, "", ("one\nkind: Secret", "two"))])
    assert text == '# one\n# kind: Secret\n# two\na: "12:30"\n"no": "yes"\n'


def test_the_hours_of_moved_work_leave_with_the_schedule():
    begins = datetime(2026, 5, 18, tzinfo=UTC)
    hours = tuple(
        DeferrableWork(begins + timedelta(hours=p), region, 0.0, 0.0, 0.0, 0.0,
                 {"llama-3.1-8b": 1e6 * p + 0.4})
        for p in (0, 1) for region in ("us-east", "us-west")
    )  # fmt: skip
    shift, ends = ShiftFigures(0.0, None, None, None, 0.0, hours), begins + timedelta(hours=2)
    work = moved_work(shift, ends, "lt-i")
    assert moved_work(shift, ends, "flat-peak") == moved_work(None, ends, "lt-i") == ()
    plan = replace(plan_of(pool_of(steps_of([(120, 2)]))), deferrable_work=work)  # of one region
    (document,) = deferrable_work.documents(asked(plan, namespace="batch"))
    assert not list(faults(document.schema, document.body))
    assert document.body["metadata"]["namespace"] == "batch"
    (text,) = document.body["data"].values()
    assert list(csv.DictReader(text.splitlines())) == [
        {"begins": f"2026-05-18T0{p}:00:00Z", "ends": f"2026-05-18T0{p + 1}:00:00Z",
         "model": "llama-3.1-8b", "input_tokens": str(1_000_000 * p)}
        for p in (0, 1)
    ]  # fmt: skip
    written = yaml_text([document])
    assert list(yaml.safe_load_all(written)) == objects_of(written) == [document.body]
    assert "    begins,ends,model,input_tokens\n" in written  # a row per line
    overlap = text + "2026-05-18T01:30:00Z,2026-05-18T03:00:00Z,llama-3.1-8b,1\n"
    assert list(faults(document.schema, {"data": {"work.csv": overlap}}))
