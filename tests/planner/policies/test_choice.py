"""Policies in the scenario file: types by name, defaults of the classes, labels, own ones."""

from typing import Any

import pytest
from pydantic import ValidationError

from planner.errors import ScenarioError
from planner.inputs.scenario.document import dump, parse
from planner.policies.choice import is_policy, policy_groups, policy_of
from planner.policies.registry import POLICIES
from planner.policies.user_policies import policy_names
from planner.policies.user_policy_settings import own_policies
from tests.planner.domain.builders import text


def refusal(policies: Any, **changes: Any) -> str:
    with pytest.raises(ScenarioError) as problem:
        parse(text(policies=policies, **changes))
    return str(problem.value)


@pytest.mark.parametrize("name", POLICIES)
def test_every_name_makes_a_policy_that_is_kept_as_it_is(name: str) -> None:
    policy = policy_of(name)
    assert policy.name == policy.key == name and policy.title == POLICIES[name]
    scenario = parse(text(policies=[name, {"name": "flat-peak", "label": "Twin"}]).replace(
        "fleet: {startup_s: 60}",
        "fleet: {startup_s: 60, today: [{model: m, region: east, gpu: G, replicas: 1}]}",
    ))  # fmt: skip
    assert scenario.policies[0] == policy
    again = parse(dump(scenario))
    assert again.policies == scenario.policies


def test_a_label_that_two_policies_share_is_told_with_the_policy() -> None:
    """Else a sentence says of one name that it met every tier and that it missed one."""
    hpa, keda = policy_of("hpa", label="mine"), policy_of("keda", label="mine")
    calm = policy_of("hpa", label="calm")
    every = [hpa, keda, calm, policy_of("lt-i")]
    titles = [policy.with_unique_title(every).title for policy in every]
    assert titles == [
        f"mine ({POLICIES['hpa']})", f"mine ({POLICIES['keda']})", "calm", POLICIES["lt-i"],
    ]  # fmt: skip
    apart = hpa.with_unique_title(every)
    assert apart.with_value(0.5).title == titles[0] and apart.key == hpa.key == "hpa:mine"


def test_old_files_keep_working() -> None:
    parsed = parse(text(policies=["lt-i", {"name": "reactive", "scale_out_above": 0.8}]))
    assert [p.name for p in parsed.policies] == ["lt-i", "reactive"]
    assert parsed.policies[1].arguments["scale_out_above"] == 0.8


def test_faults_name_their_line_and_field() -> None:
    rows = [{"name": "hpa"}, {"name": "reactive", "target": 0.5}]
    assert "policies[1].target: this key is not known" in refusal(rows)
    problem = refusal(["flat-peak", "best"])
    assert "no such policy. Choose from today, flat-before" in problem
    problem = refusal([{"name": "tbt-feedback", "beta_out": 2}])
    assert "gamma_in < beta_out <= alpha_out" in problem
    assert "at most 1" in refusal([{"name": "decode-gpu", "target": 3}])
    assert "must be below" in refusal([{"name": "lt-u", "scale_in_below": 0.8}])
    many = [{"name": "hpa", "label": f"h{i}"} for i in range(101)]
    assert "at most 100 items" in refusal(many)


def test_a_fault_is_found_on_its_own_line() -> None:
    document = text(policies=[{"name": "hpa"}, {"name": "chiron", "theta": 2}])
    line = next(i for i, row in enumerate(document.splitlines(), 1) if "theta" in row)
    with pytest.raises(ScenarioError, match=rf"line {line}: policies\[1\]\.theta"):
        parse(document)


def test_several_of_one_name_need_labels() -> None:
    twice = [{"name": "reactive", "cooldown_s": s} for s in (15, 60)]
    assert "give each a label" in refusal(twice)
    twice[1]["label"] = "Calm"  # type: ignore[assignment]
    scenario = parse(text(policies=twice, objective={"baseline": "reactive:Calm"}))
    assert [p.key for p in scenario.policies] == ["reactive", "reactive:Calm"]
    assert scenario.policies[1].title == "Calm"
    assert "baseline" in refusal(["lt-i"], objective={"baseline": "reactive:Calm"})


def test_timetables_name_what_is_there() -> None:
    step = {"at": "08:00", "replicas": 3}
    assert parse(text(policies=[{"name": "periodic", "timetable": [step]}]))
    problem = refusal([{"name": "periodic", "timetable": [step | {"region": "moon"}]}])
    assert "timetable[0].region: region 'moon' is not in this scenario" in problem
    problem = refusal([{"name": "periodic", "timetable": [step | {"role": "decode"}]}])
    assert "timetable[0].role: role 'decode' is not in this scenario, which has mixed" in problem
    assert "time of day" in refusal([{"name": "periodic", "timetable": [step | {"at": "24:00"}]}])


def test_own_policies_are_only_those_the_installation_lists(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    path = {"name": "os:system"}
    assert "no such policy" in refusal([path])
    monkeypatch.setenv("HEADROOM_POLICIES", "queue=my_policy:QueueLength, b=x.y:Z")
    assert own_policies() == {"queue": "my_policy:QueueLength", "b": "x.y:Z"}
    assert policy_names()[-2:] == ["queue", "b"]
    assert policy_groups()[-1][1] == [("queue", "queue", ""), ("b", "b", "")]
    rows = [{"name": "queue", "parameters": {"per_instance": 4}}]
    scenario = parse(text(policies=rows))
    assert scenario.policies[0].arguments == {"per_instance": 4}
    assert parse(dump(scenario)).policies == scenario.policies
    with pytest.raises(ValidationError):
        policy_of("queue", parameters={"code": ["not", "a", "number"]})


@pytest.mark.parametrize("setting", ["queue", "queue=module", "a=b:C,a=d:E", "a=b:C()", "=b:C"])
def test_a_setting_that_cannot_be_read_says_so(
    setting: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADROOM_POLICIES", setting)
    with pytest.raises(ScenarioError, match="HEADROOM_POLICIES"):
        own_policies()


def test_keys_with_labels_are_known_by_their_name() -> None:
    assert is_policy("lt-i") and is_policy("reactive:Calm")
    assert not is_policy("best") and not is_policy("best:reactive")


def test_an_autoscaler_says_what_it_goes_by_in_its_name_or_its_metric():
    assert policy_of("hpa-queue").arguments["metric"] == "queue"
    assert policy_of("keda").arguments["metric"] == "queue"
    assert policy_of("keda", metric="tokens", target=9_000).arguments["target"] == 9_000
    with pytest.raises(ValidationError, match="metric of hpa-queue is queue"):
        policy_of("hpa-queue", metric="memory")
    with pytest.raises(ValidationError, match="target must be at most 1"):
        policy_of("hpa", target=5)
