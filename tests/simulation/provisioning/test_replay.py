"""Requests through stations: the engine, closed forms, by hand, and a slow reference."""

from dataclasses import replace
from functools import partial
from itertools import product

import numpy as np
import pytest

from simulation.fleet import Tier
from simulation.performance.compiled_graph import GraphProfile
from simulation.performance.curves import Curve, grid
from simulation.performance.curves import Part as CurvePart
from simulation.performance.graph import operator_graph
from simulation.performance.specs import Arrangement
from simulation.provisioning.device_sharing import chunked_service
from simulation.provisioning.interference import SHARED_KINDS, InterferenceTable
from simulation.provisioning.level import no_worse
from simulation.provisioning.level_confirmation import Confirmation
from simulation.provisioning.levels import level_of, model_level, plan_level
from simulation.provisioning.replay import (
    LevelReplay,
    Requests,
    StationLayout,
    draw_requests,
    replay_together,
)
from simulation.provisioning.replicas import under_load
from simulation.provisioning.station_state import Passes
from simulation.provisioning.stations import VISITS, replay
from simulation.provisioning.workload import phase_problem, with_slo
from simulation.sizing.capacity import NO_LIMIT, SizingCase, isolated_role
from simulation.sizing.trial import RequestDraws, Trial
from tests.simulation.provisioning.test_workload import GPU, SHAPE, service, timing

DEVICE = 72e9


def lengths(count: int = 800) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(3)
    isl = np.clip(rng.lognormal(6.6, 0.6, count), 16, 6000).astype(int)
    return isl, np.clip(rng.lognormal(4.6, 0.6, count), 2, 600).astype(int)


def flat(seconds: float) -> Curve:
    """As long for any batch of prompts."""
    return grid(dense=CurvePart(np.array([1.0, 2.0]), np.zeros(1), np.full((2, 1), seconds)))


@pytest.mark.parametrize(("phase", "rate"), [("prefill", 14.0), ("decode", 12.0)])
def test_one_station_is_the_engine(phase: str, rate: float) -> None:
    """The same requests through one replica: the same TTFT, the engine's start within it, and the
    same gaps between tokens."""
    isl, osl = lengths()
    load = replace(service(phase, rate, 1.0), isl=float(isl.mean()), osl=float(osl.mean()))
    if phase == "prefill":
        load = replace(load, start_s=0.05)
    problem = phase_problem(load, timing, parallel=(1,))
    plan = under_load(problem, replace(model_level(problem, DEVICE).replicas, replicas=1, batch=8))
    judge = LevelReplay(problem, [draw_requests(isl, osl, problem)], DEVICE)
    graph = operator_graph(SHAPE, Arrangement(tp=1))
    batch = plan.batch if phase == "prefill" else int(problem.problem.batches[-1])
    profile = GraphProfile(
        model=SHAPE.name, gpu=GPU.name, tp=1, max_batch=batch, max_batch_tokens=NO_LIMIT,
        kv_capacity_tokens=NO_LIMIT, provenance=GPU.provenance, kind="roofline",
        curve=judge.curve(0), graph=graph, timing=timing, spread=0.0, start_s=0.05,
    )  # fmt: skip
    pools, sample, tier = isolated_role(
        SizingCase(profile, (isl, osl), Tier("t", ttft_s=1.0, tbt_s=1.0), role=phase)
    )
    trial = Trial(pools, RequestDraws(sample, seed=0, requests=1500), tier)
    log = trial.at(rate)
    same = Requests(
        log.trace.arrival_s,
        log.trace.input_tokens.astype(np.int64),
        log.trace.output_tokens.astype(np.int64),
    )
    judge = LevelReplay(problem, [same], DEVICE)
    came = judge.latency_of(level_of(problem, plan))
    took = log.requests.ttft_s if phase == "prefill" else log.requests.tbt_s
    took = took[int(0.1 * took.size) :]
    for share, ours in ((0.5, came.p50_s), (0.95, came.p95_s)):
        assert ours == pytest.approx(np.quantile(took, share, method="lower"), rel=1e-3)


def stations(*args, **kwargs):
    """Return the graph of ``layout``."""
    return layout(*args, **kwargs).graph()


def layout(edges, seconds, replicas, device, compute, *, batch=1, sticky=False, hop=0.0):
    """Return stations of constant times, a replica each on ``device[q]``."""
    count = len(seconds)
    return StationLayout(
        curves=[flat(s) for s in seconds],
        max_batch=np.full(count, batch),
        sticky=np.full(count, sticky),
        max_requests=np.full(count, 1 << 40),
        kv_capacity=np.full(int(np.sum(replicas)), np.inf),
        hop_s=np.full(count, hop),
        row_s=np.zeros(count),
        edges=edges,
        replicas=np.asarray(replicas),
        replica_of_shard=np.arange(int(np.sum(replicas))),
        device_of_shard=np.asarray(device),
        compute=np.asarray(compute, float),
        bandwidth=np.zeros(count),
        interference=np.empty((0, 0)),
        devices=int(np.max(device)) + 1,
    )


def ends(graph, arrival, passes=1, key=()):
    arrival = np.asarray(arrival, float)
    ones = np.ones(arrival.size, np.int64)
    following = np.r_[np.arange(1, arrival.size), -1]
    problem = Passes(
        arrival, ones, passes * ones, passes * ones, 0 * ones, following, np.zeros(1, np.int64),
        False, len(key) > 0, np.array([*key, 0.0]),
    )  # fmt: skip
    run = replay(graph, problem)
    assert run.count[VISITS] == arrival.size * passes * (graph.max_batch.size)
    return run.finish


@pytest.mark.parametrize("phase", ["prefill", "decode"])
def test_services_replayed_together_are_no_faster_than_alone(phase):
    problem = phase_problem(service(phase, 12.0, 1.0 if phase == "prefill" else 0.08), timing)
    level = plan_level("operator", problem, DEVICE)
    draw = draw_requests(np.full(400, 1000), np.full(400, 10), problem)
    judge = LevelReplay(problem, [draw], DEVICE)
    alone = judge.latency_of(level)
    (same,) = replay_together([judge], [level])
    # The warm-up is a share of the time here, and a share of the requests alone.
    assert same.p95_s == pytest.approx(alone.p95_s, rel=0.02)
    # On devices of their own services do not meet, on common ones they do.
    placed = level.placement
    room = np.tile(placed.memory_bytes, 2)
    near = replace(placed, devices=2 * placed.devices, memory_bytes=room)
    away = replace(near, device=placed.device + placed.devices)
    there, elsewhere = replace(level, placement=near), replace(level, placement=away)
    first, second = replay_together([judge, judge], [there, elsewhere])
    assert first.p95_s == pytest.approx(same.p95_s) and second.p95_s == pytest.approx(same.p95_s)
    both = replay_together([judge, judge], [level, level])
    assert min(came.mean_s for came in both) > same.mean_s


def test_measured_slowdowns_hold_between_services():
    """With pairs that do not slow each other, services are as fast as alone; else slower."""
    mean_s = []
    for slowdown in (1.0, 3.0):
        pairs = dict.fromkeys(product(SHARED_KINDS, SHARED_KINDS), slowdown)
        table = InterferenceTable("g", "", pairs)
        problem = phase_problem(service("prefill", 12.0, 1.0), timing, interference=table)
        level = plan_level("operator", problem, DEVICE)
        draw = draw_requests(np.full(400, 1000), np.full(400, 40), problem)
        judge = LevelReplay(problem, [draw], DEVICE)
        alone = judge.latency_of(level)
        both = replay_together([judge, judge], [level, level])
        mean_s.append(min(came.mean_s for came in both) / alone.mean_s)
    assert mean_s[0] == pytest.approx(1.0, rel=0.02)
    assert mean_s[1] > 1.02


def test_what_shares_a_device_is_slower_by_hand():
    """Two branches of 1 s on one device, at all of its arithmetic and at 0.4: both take 1.4 s
    while both run, so the other's end is at 1.4 s. On devices of their own 1 s."""
    edges = ((0, 2), (1, 2))
    apart = stations(edges, [1.0, 1.0, 0.5], [1, 1, 1], [0, 1, 2], [1.0, 0.4, 0.1])
    assert ends(apart, [0.0]) == pytest.approx([1.5])
    same = stations(edges, [1.0, 1.0, 0.5], [1, 1, 1], [0, 0, 1], [1.0, 0.4, 0.1])
    assert ends(same, [0.0]) == pytest.approx([1.9])
    # Two prompts, one behind the other in a pipeline: a hop of 0.1 s between the stages.
    line = stations(((0, 1),), [1.0, 2.0], [1, 1], [0, 1], [1.0, 1.0], hop=0.1)
    assert ends(line, [0.0, 0.0]) == pytest.approx([3.1, 5.1])
    # Those that come while the first is at work are a batch.
    pair = stations(((0, 1),), [1.0, 2.0], [1, 1], [0, 1], [1.0, 1.0], batch=2)
    assert ends(pair, [0.0, 0.1, 0.2]) == pytest.approx([3.0, 5.0, 5.0])


def test_the_shortest_go_first_by_hand():
    """One replica, a second each: who waits goes by length, of the same length as they came."""
    line = stations((), [1.0], [1], [0], [1.0])
    assert ends(line, [0.0, 0.1, 0.2, 0.3, 0.4], key=[9, 4, 2, 4, 7]) == pytest.approx(
        [1.0, 3.0, 2.0, 4.0, 5.0]
    )
    pair = stations((), [1.0], [1], [0], [1.0], batch=2)
    assert ends(pair, [0.0, 0.1, 0.2, 0.3], key=[9, 4, 2, 3]) == pytest.approx([1, 3, 2, 2])


@pytest.mark.parametrize("seed", range(4))
def test_whatever_the_order_as_many_are_done_by_then(seed: int) -> None:
    """Where each takes as long the order says who, not when: the same ends, of others; and of two
    that wait together the one with less is never behind."""
    rng = np.random.default_rng(seed)
    arrival, key = np.cumsum(rng.exponential(0.25, 300)), rng.permutation(300)
    servers = stations((), [0.9], [4], [0, 1, 2, 3], [1.0])
    in_turn, shortest = ends(servers, arrival), ends(servers, arrival, key=key)
    assert np.sort(shortest) == pytest.approx(np.sort(in_turn))
    begin = shortest - 0.9
    for i in range(300):
        behind = (arrival < begin[i] - 1e-9) & (key < key[i]) & (begin > begin[i] + 1e-9)
        assert not behind.any()


def test_a_lone_station_waits_as_in_m_d_1():
    rng = np.random.default_rng(1)
    arrival = np.cumsum(rng.exponential(1.0, 60_000))
    took = ends(stations((), [0.7], [1], [0], [1.0]), arrival) - arrival
    assert took.mean() == pytest.approx(0.7 + 0.7 * 0.7 / (2 * 0.3), rel=0.05)


def slow_reference(edges, seconds, replicas, device, compute, batch, arrival):
    """The same by steps: what runs is looked at anew at each event."""
    count, n = len(seconds), len(arrival)
    need = np.zeros((n, count), int)
    for _, w in edges:
        need[:, w] += 1
    waiting = [[] for _ in range(count)]
    running, finish, t, coming = {}, np.full(n, np.nan), 0.0, 0
    first = np.r_[0, np.cumsum(replicas)]
    left = np.full(n, count)
    while True:
        for v in range(count):
            for q in range(first[v], first[v + 1]):
                if q not in running and waiting[v]:
                    taken, waiting[v] = waiting[v][:batch], waiting[v][batch:]
                    running[q] = [v, taken, seconds[v]]
        use = {}
        for q, (v, _, _) in running.items():
            use[device[q]] = use.get(device[q], 0.0) + compute[v]
        slow = {q: max(1.0, use[device[q]]) for q in running}
        until = {q: left_s * slow[q] for q, (_, _, left_s) in running.items()}
        step = min(until.values(), default=np.inf)
        arrives = arrival[coming] - t if coming < n else np.inf
        if not np.isfinite(min(step, arrives)):
            return finish
        dt = min(step, arrives)
        t += dt
        done = [q for q in running if until[q] <= dt + 1e-12]
        for q, job in running.items():
            job[2] -= dt / slow[q]
        if arrives <= step:
            for v in range(count):
                if need[coming, v] == 0:
                    waiting[v].append(coming)
            coming += 1
        for q in done:
            v, taken, _ = running.pop(q)
            for r in taken:
                left[r] -= 1
                if left[r] == 0:
                    finish[r] = t
                for u, w in edges:
                    if u == v:
                        need[r, w] -= 1
                        if need[r, w] == 0:
                            waiting[w].append(r)


@pytest.mark.parametrize("seed", range(12))
def test_stations_go_as_the_slow_reference_says(seed: int) -> None:
    rng = np.random.default_rng(seed)
    count = int(rng.integers(2, 6))
    pairs = [(u, v) for u in range(count) for v in range(u + 1, count)]
    edges = tuple((u, v) for u, v in pairs if rng.random() < 0.6)
    seconds = rng.uniform(0.2, 2.0, count)
    if seed % 2:  # several replicas, on devices of their own: which of them is free is all the same
        replicas = rng.integers(1, 4, count)
        device = np.arange(replicas.sum())
    else:  # one of each, several on a device
        replicas = np.ones(count, int)
        device = np.r_[0, rng.integers(0, 3, count - 1)]
    compute, batch = rng.uniform(0.2, 1.0, count), int(rng.integers(1, 4))
    arrival = np.cumsum(rng.exponential(1.5, 60))
    graph = stations(edges, seconds, replicas, device, compute, batch=batch)
    ours = ends(graph, arrival)
    theirs = slow_reference(edges, seconds, replicas, device, compute, batch, arrival)
    assert ours == pytest.approx(theirs)


@pytest.mark.parametrize("phase", ["prefill", "decode"])
def test_levels_keep_what_they_promise(phase: str) -> None:
    """Requests confirm every level, and none gets less from a finer one."""
    isl, osl = lengths()
    limit = 1.0 if phase == "prefill" else 0.06
    for rate in (6.0, 70.0):
        load = replace(service(phase, rate, limit), isl=float(isl.mean()), osl=float(osl.mean()))
        problem = phase_problem(load, timing, parallel=(1, 2))
        judge = LevelReplay(problem, [draw_requests(isl, osl, problem)], DEVICE)
        confirmation = Confirmation(problem, judge, 0.95)
        levels = [confirmation.whole_replicas()]
        for name in ("module", "operator"):
            plan = partial(plan_level, name, device_bytes=DEVICE, coarser=tuple(levels))
            levels.append(confirmation.level(name, levels, plan))
        assert levels[0].least_devices <= levels[0].mean_devices <= levels[0].devices
        means = [level.mean_devices for level in levels]
        assert means == sorted(means, reverse=True)  # a coarser plan is also one of a finer level
        for i, level in enumerate(levels):
            assert level.replayed.attainment >= 0.95
            for coarser in levels[:i]:
                assert no_worse(level, coarser)
                assert level.replayed.p95_s <= 1.001 * coarser.replayed.p95_s


def test_what_alone_takes_too_long_is_said_with_what_comes_nearest() -> None:
    isl = np.r_[np.full(60, 500), np.full(40, 8000)]
    problem = phase_problem(
        replace(service("prefill", 2.0, 0.3), isl=float(isl.mean())), timing, parallel=(1,)
    )
    judge = LevelReplay(problem, [draw_requests(isl, np.ones_like(isl), problem)], DEVICE)
    level = Confirmation(problem, judge, 0.95).whole_replicas()
    assert level is not None
    assert level.replayed.attainment < 0.95


def chunked(graph, arrival, isl, chunks, decodes):
    """Replay chunked requests; return ends of their prompts, their ends, and the visits."""
    arrival = np.asarray(arrival, float)
    isl, chunks, decodes = (np.full(arrival.size, n) for n in (isl, chunks, decodes))
    following = np.r_[np.arange(1, arrival.size), -1]
    requests = Passes(
        arrival, isl, chunks + decodes, chunks, 0 * isl, following, np.zeros(1, np.int64), False
    )
    run = replay(graph, requests)
    return run.prefilled, run.finish, run.count[VISITS]


BOTH_ATTENTIONS = np.array([[True, True], [True, False], [False, True], [True, True]])
FORK = ((0, 1), (0, 2), (1, 3), (2, 3))


def fork(batch: int = 1, room: float = np.inf) -> StationLayout:
    """Projection (1 s), attention of prompts (2 s) beside that of decodes (3 s), output (0.5 s)."""
    return replace(
        layout(FORK, [1.0, 2.0, 3.0, 0.5], [1] * 4, range(4), [0.1] * 4, batch=batch),
        visited=BOTH_ATTENTIONS,
        token_budget=1e9,
        sticky=np.array([False, True, True, False]),
        kv_capacity=np.array([np.inf, room, np.inf, np.inf]),
    )


def test_a_chunked_request_passes_prompt_then_decode_stations_by_hand() -> None:
    prefilled, finish, visits = chunked(fork().graph(), [0.0], isl=100, chunks=2, decodes=3)
    assert prefilled == pytest.approx([2 * 3.5])
    assert finish == pytest.approx([2 * 3.5 + 3 * 4.5])
    assert visits == 2 * 3 + 3 * 3


def test_a_finished_prompt_leaves_its_cache_to_the_next() -> None:
    """With memory for one prompt, the second starts when the first decodes; else right behind."""
    one, _, _ = chunked(fork(8, room=100.0).graph(), [0.0, 0.0], isl=100, chunks=1, decodes=4)
    two, _, _ = chunked(fork(8, room=200.0).graph(), [0.0, 0.0], isl=100, chunks=1, decodes=4)
    assert one == pytest.approx([3.5, 7.0])
    assert two == pytest.approx([3.5, 5.5])


@pytest.mark.parametrize(
    ("batch", "budget", "expected"),
    [(2, 10.0, [2, 3, 4]), (2, 20.0, [2, 3, 3]), (1, 20.0, [2, 3, 4])],
)
def test_prompts_within_the_budget_join_the_sequences_by_hand(batch, budget, expected) -> None:
    """Prompts of 10 tokens and one decoded token each, through one station of 1 s."""
    line = replace(layout((), [1.0], [1], [0], [1.0], batch=batch), token_budget=budget)
    _, finish, _ = chunked(line.graph(), [0.0, 0.1, 0.1], isl=10, chunks=1, decodes=1)
    assert finish == pytest.approx(expected)


def test_operators_with_chunked_prefill_keep_both_limits_in_a_replay() -> None:
    isl, osl = lengths(400)
    mean = {"isl": float(isl.mean()), "osl": float(osl.mean())}
    prefill, decode = (
        replace(service(phase, 20.0, limit), **mean)
        for phase, limit in (("prefill", 1.0), ("decode", 0.08))
    )
    phase = phase_problem(chunked_service(prefill, decode), timing, batches=(16,))
    limit = 0.7 * min(decode.slo_s, prefill.slo_s * 16 / decode.osl)
    level = plan_level("operator", with_slo(phase, limit), DEVICE)
    draws = [draw_requests(isl, osl, phase)]
    met = LevelReplay(phase, draws, DEVICE).latency_of(level)
    # Batches are smaller than planned where requests do not wait for each other.
    assert met.attainment > 0.9 and 0.3 * level.latency_s < met.mean_s < 1.5 * level.latency_s
    # The same requests within less time for prompts, or tokens: fewer keep the limits.
    hurried = replace(phase, service=replace(phase.service, ttft_s=0.2))
    assert LevelReplay(hurried, draws, DEVICE).latency_of(level).attainment < met.attainment - 0.1
    faster = replace(phase, service=replace(phase.service, slo_s=met.p50_s))
    half = LevelReplay(faster, draws, DEVICE).latency_of(level).attainment
    assert half == pytest.approx(0.5, abs=0.05)
