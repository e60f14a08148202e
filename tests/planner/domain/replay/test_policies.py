"""Every policy of the table, made from a scenario's words and replayed."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from planner.domain.preparation import planned_of
from planner.domain.progress import silent
from planner.domain.replay.policy_context import SharedInputs, policy_context_of
from planner.domain.replay.rated_signals import PressureTests, pressure_test
from planner.domain.replay.replay import run_policy
from planner.domain.study import Study
from planner.errors import ScenarioError
from planner.policies.base import Group
from planner.policies.choice import policy_of
from planner.policies.context import Plan
from planner.policies.registry import POLICIES, TRAITS
from simulation.fleet import Tier
from tests.planner.domain import builders as make

SPEED = {"gpu": "G", "alpha_ms": 12, "beta_ms": 0.3, "gamma_ms": 12, "delta_ms": 0.06}
LENGTHS = {"input_tokens": {"mean": 800}, "output_tokens": {"mean": 40}}
TIERS = [
    {"name": "chat", "ttft_ms": 1000, "tbt_ms": 100},
    {"name": "night", "e2e_ms": 600_000, "deferrable": True},
]
# Two hours of traffic have no day before, and no season; modules need a model with layers.
LACKING = ("today", "periodic", "lt-i-seasonal", "modules")
EVERY = [name for name in POLICIES if name not in LACKING]
ROLES = [name for name in EVERY if TRAITS[name].group == Group.ROLES]


def study(folder: Path, series: Any = None, **changes: Any) -> Study:
    """One model in one region; the load swings between 5 and 45 requests a second."""
    load = 1500 + 1200 * np.sin(np.linspace(0, 10 * np.pi, 120)).round(3)
    source = make.source(tiers={"chat": 0.8, "night": 0.2}, **LENGTHS)
    fields: dict[str, Any] = {
        "models": [
            {"name": "m", "weight_gb": 16, "kv_bytes_per_token": 131072, "max_context": 8192}
        ],
        "profiles": [{"model": "m", **SPEED}],
        "tiers": TIERS,
        "traffic": {"sources": [source]},
        "horizon": {"period_s": 300, "lead_s": 120, "duration_s": 2400},
    }
    scenario = make.scenario(**(fields | changes))
    stored = make.demand_file(folder, {"m": load.tolist() if series is None else series})
    return make.study(scenario, stored)


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> Study:
    """More runs today than is needed: policies that go by memory have something to take away."""
    today = [{"model": "m", "region": "east", "gpu": "G", "replicas": 6}]
    return study(tmp_path_factory.mktemp("mixed"), fleet={"today": today})


@pytest.fixture(scope="module")
def apart(tmp_path_factory: pytest.TempPathFactory) -> Study:
    """Prefill and decode instances."""
    roles = [{"model": "m", **SPEED, "role": role} for role in ("prefill", "decode")]
    return study(
        tmp_path_factory.mktemp("apart"),
        profiles=roles,
        serving=[{"kv_transfer": {"gb_s": 100}}],
        horizon={"period_s": 300, "lead_s": 120, "duration_s": 1200},
    )


def played(toy: Study, name: str, **arguments: Any) -> Any:
    return run_policy(toy, policy_of(name, **arguments), seed=1, progress=silent)


@pytest.mark.parametrize("name", [name for name in EVERY if name not in ROLES])
def test_every_policy_loses_no_request_and_moves_within_its_limits(mixed: Study, name: str) -> None:
    run = played(mixed, name)
    figures = run.summary
    assert figures.arrived == len(mixed.trace) > 10_000
    assert figures.arrived == figures.completed + figures.rejected + figures.unfinished
    up = run.series.ready + run.series.starting
    assert (up <= np.array([pool.maximum for pool in run.fleet.pools])[:, None] + 1e-6).all()
    gpus = int(mixed.hardware.capacity_gpus[0, 0])
    assert (up + run.series.draining).sum(axis=0).max() <= gpus + 1e-6
    # A GPU runs some iteration nearly all the time at any of these loads, so the signals of GPU
    # use may have nothing to say (methods.md D9). LT-H goes by one forecast made before the window,
    # and this traffic's past is too short to foresee more than its last value. The others must.
    still = name.startswith("flat-") or name == "lt-h"
    moves = float(np.ptp(run.series.ready.sum(axis=0))) > 0.5
    assert moves != still or name.endswith("-gpu")


@pytest.mark.parametrize("name", [name for name in EVERY if name not in ("chiron", "flat-min")])
def test_every_policy_runs_where_prefill_and_decode_are_apart(apart: Study, name: str) -> None:
    figures = played(apart, name).summary
    assert figures.arrived == figures.completed + figures.rejected + figures.unfinished
    assert figures.completed > 0.9 * figures.arrived


@pytest.mark.parametrize("name", ROLES)
def test_roles_cannot_change_without_two(mixed: Study, name: str) -> None:
    with pytest.raises(ScenarioError, match=name):
        played(mixed, name)


@pytest.mark.parametrize("name", ROLES)
def test_roles_change_without_more_gpus(apart: Study, name: str) -> None:
    run = played(apart, name)
    up = run.series.ready + run.series.starting + run.series.draining
    assert up.sum(axis=0).max() <= int(apart.hardware.capacity_gpus[0, 0]) + 1e-6
    switched = name != "convertible-decode"
    assert switched or run.summary.switches == 0
    if name != "token-velocity":
        np.testing.assert_allclose(up.sum(axis=0), apart.today.sum())


@pytest.mark.parametrize(("gpus", "start"), [(32, [10, 5, 5]), (7, [3, 2, 2]), (1, [1, 0, 0])])
def test_chirons_start_shrinks_to_the_gpus_there_are(
    tmp_path: Path, gpus: int, start: list[int]
) -> None:
    region = {"name": "east", "capacity": {"G": gpus}, "usd_per_gpu_hour": {"G": 2},
              "carbon_g_per_kwh": 400, "pue": 1.2}  # fmt: skip
    toy = study(tmp_path, series=[60] * 120, regions=[region])
    ready = policy_of("chiron").build(policy_context_of(toy, seed=1, progress=silent))
    assert [pool.initial for pool in ready.fleet.pools] == start


def test_coordinated_control_keeps_the_ratio(apart: Study) -> None:
    run = played(apart, "decode-tps")
    prefill, decode = run.series.ready
    ratio = next(
        setting.value for setting in run.settings if setting.what.startswith("prefill replicas per")
    )
    assert isinstance(ratio, float)
    # Minutes with both sides whole: one step of rounding around the best ratio.
    steady = (prefill == prefill.round()) & (decode == decode.round())
    expected = np.ceil(decode[steady] * ratio)
    assert np.abs(prefill[steady] - expected).max() <= 2


def test_the_pressure_test_reads_what_one_instance_was_sized_for(mixed: Study) -> None:
    test = pressure_test(mixed, "fixed")
    theta = float(mixed.sizes.theta_tps[0, 0])
    isl, osl = mixed.traffic.lengths[0]
    assert test.signal_targets("prefill-tps")[0] == pytest.approx(theta, rel=0.1)
    assert test.signal_targets("decode-tps")[0] == pytest.approx(
        theta * osl.mean() / isl.mean(), rel=0.1
    )
    assert 0.3 < test.signal_targets("decode-gpu")[0] <= 1
    assert 0 < test.signal_targets("prefill-sm")[0] <= test.signal_targets("prefill-gpu")[0]
    tests = PressureTests(mixed)
    assert tests.at("fixed") is tests.at("fixed")  # once for all policies


def test_a_guard_goes_by_the_curve_that_its_plan_was_sized_by(mixed: Study) -> None:
    curve, theta = mixed.sizes.pool_tps[0, 0], float(mixed.sizes.theta_tps[0, 0])
    many = pressure_test(mixed, "best", many=True)
    assert many.rate_tps[0] == pytest.approx(curve[15] / 16)  # C(16), whatever runs today
    run = played(mixed, "lt-g")
    first = next(setting.where for setting in run.settings if setting.what == "replicas at most")
    by_name = {setting.what: setting.value for setting in run.settings if setting.where == first}
    prompts = by_name["above the plan: prompt tokens/s per replica"]
    assert prompts == pytest.approx(theta, rel=0.1)
    for n in (1, 2, 4, 16):
        share = by_name[f"above the plan: share of that load, pools of {n}"]
        assert share == pytest.approx(curve[n - 1] / n / theta)


def test_prefill_and_decode_are_pressed_together_in_their_ratio(apart: Study) -> None:
    pools = {pool.role: p for p, pool in enumerate(apart.hardware.fleet(apart.today).pools)}
    isl, osl = apart.traffic.lengths[0]
    for ratio, expected in (("fixed", None), (1.0, 1.0), (3.0, 3.0)):
        test = pressure_test(apart, ratio)
        # All prompts of the one side are the answers of the other.
        taken = test.readings["prefill_tps"][pools["prefill"]] / isl.mean()
        written = test.readings["decode_tps"][pools["decode"]] / osl.mean()
        if expected is None:
            today = apart.counts_by_pool(apart.today)
            expected = today[pools["prefill"]] / today[pools["decode"]]
        assert written / taken == pytest.approx(expected, rel=0.25)
        assert 0.2 < test.signal_targets("prefill-gpu")[pools["prefill"]] <= 1 or expected > 1
        ratio = test.ratio[pools["prefill"]]
        assert ratio == pytest.approx(expected, rel=0.35)
    best = pressure_test(apart, "best")
    assert PressureTests(apart).at("observed").ratio == pytest.approx(best.ratio)
    either = (
        best.signal_targets("prefill-gpu")[pools["prefill"]],
        best.signal_targets("decode-gpu")[pools["decode"]],
    )
    assert max(either) > 0.5


def test_a_policy_says_what_to_copy(mixed: Study, apart: Study) -> None:
    by_place = {
        (setting.what, setting.where): setting.value
        for setting in played(mixed, "hpa-concurrency").settings
    }
    pool = next(where for what, where in by_place if what == "replicas at most")
    shown = pressure_test(mixed, "fixed").metric_targets("concurrency")[0]
    target = by_place["target of requests waiting or running per replica", pool]
    assert target == pytest.approx(shown) and target > 1
    assert (
        by_place["stabilisation_s", ""] == 300.0 and by_place["routing.region_threshold", ""] == 0.7
    )
    assert by_place["replicas at the start", pool] == mixed.counts_by_pool(mixed.today)[0]
    run = played(apart, "decode-tps")
    ratios = {
        setting.value for setting in run.settings if setting.what.startswith("prefill replicas per")
    }
    begins = [pool.initial for pool in run.fleet.pools]
    assert ratios == {begins[0] / begins[1]}


def test_latencies_are_held_to_the_tiers_that_a_model_has_traffic_of(mixed: Study) -> None:
    """A strict tier that only others have sets no target; without any of its own it would."""
    fast = Tier("fast", ttft_s=0.2)
    chat, night = mixed.hardware.tiers
    for asked, ttft_s, tbt_s in (
        ([False, True, True], 1.0, 0.1),
        ([True, True, False], 0.2, 0.1),
        ([True, False, False], 0.2, 0.1),  # fast limits no gaps
        (None, 0.2, 0.1),
    ):
        known = None if asked is None else np.array([asked])
        hardware = replace(mixed.hardware, tiers=(fast, chat, night), tiers_in_use=known)
        context = policy_context_of(replace(mixed, hardware=hardware), seed=1, progress=silent)
        for name, limit in (("ttft-feedback", ttft_s), ("tbt-feedback", tbt_s)):
            ready = policy_of(name, target_factor=0.5).build(context)
            ready.policy.reset(ready.fleet)
            (in_force,) = (
                setting
                for setting in ready.policy.computed_parameters()
                if setting.what.startswith("limit of")
            )  # type: ignore[attr-defined]
            np.testing.assert_allclose(in_force.values, 500 * limit)


def test_deferred_plans_start_with_the_plan_and_stay_within_it(mixed: Study) -> None:
    at_once, deferred = played(mixed, "lt-i"), played(mixed, "lt-u")
    np.testing.assert_array_equal(at_once.plan.target, deferred.plan.target)
    most = at_once.plan.target.max()
    assert deferred.series.ready.max() <= most + 1e-6


def test_silos_take_more_or_serve_worse_than_one_pool(mixed: Study) -> None:
    run = played(mixed, "siloed")
    assert [pool.tiers for pool in run.fleet.pools] == [("chat",), ("night",)]
    assert set(run.summary.tiers) == {"chat", "night"}
    assert (run.series.ready > 0).any(axis=1).all()


def test_several_of_one_kind_by_label(mixed: Study) -> None:
    calm = played(mixed, "reactive", label="Calm", scale_out_above=0.99, scale_in_below=0.001)
    eager = played(mixed, "reactive", label="Eager", scale_out_above=0.05, scale_in_below=0.001)
    assert (calm.name, calm.label) == ("reactive:Calm", "Calm")
    assert eager.summary.gpu_hours > calm.summary.gpu_hours


def test_a_timetable_holds_by_the_clock(mixed: Study) -> None:
    start = int(mixed.window.start_s % 86400 // 60)
    steps = [
        {"at": f"{minute // 60:02d}:{minute % 60:02d}", "replicas": count}
        for minute, count in ((start, 9), (start + 5, 4))
    ]
    run = played(mixed, "periodic", timetable=steps)
    ready = run.series.ready[0]
    assert ready[:5] == pytest.approx(9.0)
    assert ready[6:] == pytest.approx(4.0)


def test_a_guard_adds_to_a_timetable_what_it_adds_to_the_same_static_fleet(mixed: Study) -> None:
    static = played(mixed, "flat-g", load_factor=0.01)  # one replica
    steps = [{"at": "00:00", "replicas": 1}]
    guarded = played(mixed, "periodic", timetable=steps, guard=True)
    assert guarded.summary.gpu_hours == static.summary.gpu_hours
    alone = played(mixed, "periodic", timetable=steps)
    assert alone.summary.gpu_hours < guarded.summary.gpu_hours


def test_periodic_learns_from_the_day_before(tmp_path: Path) -> None:
    hours = np.arange(72)
    load = (3000 + 2400 * np.sin(2 * np.pi * hours / 24)).round()
    spread = np.repeat(load / 60, 60)
    toy = study(
        tmp_path,
        series=spread.tolist(),
        horizon={"period_s": 3600, "duration_s": 6 * 3600},
        tiers=TIERS[:1],
        traffic={"sources": [make.source(**LENGTHS)], "bin_s": 900},
    )
    same = played(toy, "periodic").summary
    perfect = played(toy, "lt-i-perfect", load_factor=1.0).summary
    # Every day is like the last, so yesterday is a perfect forecast but for lead and buffer.
    assert same.gpu_hours == pytest.approx(perfect.gpu_hours, rel=0.1)


def test_a_plan_is_made_for_so_many_times_the_forecast(mixed: Study) -> None:
    made = policy_context_of(mixed, seed=1, progress=silent)
    once, twice = made.followed_plan(Plan()), made.followed_plan(Plan(load_factor=2.0))
    assert (twice.expected_tps == once.expected_tps).all()
    shared = policy_context_of(
        mixed, seed=1, progress=silent, shared=SharedInputs(planned_of(mixed, silent))
    )
    again = shared.followed_plan(Plan(load_factor=2.0))
    assert (again.plan().target == twice.plan().target).all()
    assert twice.plan().target.sum() > once.plan().target.sum()


@pytest.mark.parametrize("name", ["decode-tps", "reactive", "lt-i", "lt-u"])
def test_the_safer_end_of_a_knob_costs_more(mixed: Study, name: str) -> None:
    policy = policy_of(name)
    assert policy.tuned_parameter is not None
    cheap, safe = (
        run_policy(
            mixed, policy.with_value(policy.tuned_parameter.values[i]), seed=1, progress=silent
        ).summary
        for i in (0, -1)
    )
    assert safe.gpu_hours > cheap.gpu_hours


OWN = """
import numpy as np
class Steady:
    def __init__(self, count=1, name="steady"):
        self.name, self.interval_s, self._count = name, 60.0, count
    def reset(self, fleet):
        return np.full(len(fleet.pools), self._count)
    def decide(self, observation):
        return np.full(len(observation.ready), self._count)
"""


def test_an_operators_own_policy(
    mixed: Study, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "house_rules.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("HEADROOM_POLICIES", "steady=house_rules:Steady")
    run = played(mixed, "steady", parameters={"count": 7})
    summary = run.summary
    beyond = summary.before_gpu_hours + summary.after_gpu_hours
    assert summary.instance_hours - beyond == pytest.approx(7 * mixed.window.duration_s / 3600)
    with pytest.raises(ScenarioError, match="does not take these parameters"):
        played(mixed, "steady", parameters={"counts": 7})
    monkeypatch.setenv("HEADROOM_POLICIES", "steady=house_rules:Gone")
    with pytest.raises(ScenarioError, match="cannot be loaded"):
        played(mixed, "steady")
