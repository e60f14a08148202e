"""Placement: by hand, against every way to place, and what it may never do."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from bench.provision.exact_placement import exact_placement, fewest_devices
from simulation.errors import SimulationError
from simulation.provisioning.exact import exact_plan
from simulation.provisioning.interference import Demand, latency_at_share
from simulation.provisioning.packing import MAX_DEVICES_TRIED
from simulation.provisioning.placement import packing_plan, place_plan
from simulation.provisioning.problem import evaluate, sojourns
from tests.simulation.provisioning.cases import by_hand, random_demand, random_problem

DEVICE = 10.0


def flat(problem, memory, compute, bandwidth):
    shape = problem.latency_s.shape

    def spread(values):
        return np.broadcast_to(np.array(values, float)[:, None, None], shape)

    return Demand(spread(memory), spread(compute), spread(bandwidth))


def by_trying(problem, demand, plan, device, best=None):
    """Fewest devices, if below ``best``, over every assignment of single-GPU replicas: slow and
    simple."""
    op = np.repeat(np.arange(len(problem.names)), plan.replicas)
    b = np.searchsorted(problem.batches, plan.batch)
    chosen = (np.arange(len(problem.names)), b, 0)
    rate = problem.rate / plan.batch
    rho = rate * problem.latency_s[chosen] / plan.replicas
    for where in product(range(len(op)), repeat=len(op)):
        used = len(set(where))
        if set(where) != set(range(used)) or (best is not None and used >= best):
            continue
        where = np.array(where)
        ok, slow = True, np.ones(len(op))
        for d in range(used):
            on = np.flatnonzero(where == d)
            kinds = op[on]
            if demand.memory_bytes[chosen][kinds].sum() > device:
                ok = False
            for use in (demand.compute[chosen], demand.bandwidth[chosen]):
                total = (rho * use)[kinds].sum()
                if total > 1:
                    ok = False
                for i in on:
                    other = min(total - (rho * use)[op[i]], 1 - 1e-9)
                    slower = min(use[op[i]] * other / (1 - other), use[kinds].sum() - 1)
                    slow[i] = max(slow[i], 1 + slower)
        if not ok:
            continue
        mean = np.array([slow[op == v].mean() for v in range(len(problem.names))])
        slowed = replace(problem, latency_s=problem.latency_s * mean[:, None, None])
        choice = np.stack([b, np.zeros_like(b), plan.replicas], axis=1)
        with np.errstate(invalid="ignore"):
            if evaluate(slowed, "", choice).feasible:
                best = used
    return best


def by_its_words(problem, demand, plan):
    """Algorithm 2, everything judged anew for each shard and device: slow and simple."""
    instances = packing_plan(problem, demand, plan)
    operator, replica = instances.operator, instances.replica
    work = {
        "compute": instances.busy * instances.compute,
        "bandwidth": instances.busy * instances.bandwidth,
    }

    def latency(where):
        slow = np.ones(operator.size)
        for i, d in enumerate(where):
            on = operator[where == d]
            for name, use in (("compute", instances.compute), ("bandwidth", instances.bandwidth)):
                v, all_at_once = operator[i], use[on].sum() - 1
                other = min(work[name][on].sum() - work[name][v], 1 - 1e-9)
                slower = max(0.0, min(use[v] * other / (1 - other), all_at_once))
                slow[i] = max(slow[i], 1 + slower) if d >= 0 else 1.0
        mean = [
            np.mean([slow[(operator == v) & (replica == k)].max() for k in range(count)])
            for v, count in enumerate(plan.replicas)
        ]
        slowed = replace(problem, latency_s=problem.latency_s * np.array(mean)[:, None, None])
        b, p = (np.searchsorted(*x) for x in ((problem.batches, plan.batch),
                                              (problem.parallel, plan.parallel)))  # fmt: skip
        return evaluate(slowed, "", np.stack([b, p, plan.replicas], axis=1)).latency_s

    base, position = plan.replicas.min(), np.argsort(instances.graph.topological)
    every = sorted(set(zip(operator.tolist(), replica.tolist(), strict=True)))
    turns = sorted([turn for turn in every if turn[1] < base], key=lambda x: (x[1], position[x[0]]))
    turns += sorted(
        [turn for turn in every if turn[1] >= base], key=lambda x: -instances.latency_s[x[0]]
    )
    where, owner = np.full(operator.size, -1), []
    for v, k in turns:
        siblings = np.flatnonzero((operator == v) & (replica == k))
        for i in siblings:
            scored = []
            for d in range(len(owner)):
                on = operator[where == d]
                held = instances.memory[on].sum() + instances.memory[v]
                most = max(use[on].sum() + use[v] for use in work.values())
                if (k < base and owner[d] != k) or d in where[siblings]:
                    continue
                if held <= DEVICE and most <= 1.0:
                    scored.append((held / DEVICE + most, d))
            for _, d in sorted(scored)[:MAX_DEVICES_TRIED]:
                where[i] = d
                if latency(where) <= problem.slo_s:
                    break
                where[i] = -1
            if where[i] < 0:
                where[i] = len(owner)
                owner.append(k if k < base else -1)
    return where


def test_algorithm_2_as_its_words_say():
    """What changes on one device at a time is what looking at all of them anew gives."""
    compared = 0
    for seed in range(14):
        problem = random_problem(seed, operators=4, parallel=2, replicas=4, dag=seed % 2 == 1)
        plan = exact_plan(problem)
        if plan is None:
            continue
        compared += 1
        demand = random_demand(problem, seed)
        placement = place_plan(problem, demand, plan, DEVICE)
        assert placement.device.tolist() == by_its_words(problem, demand, plan).tolist(), seed
    assert compared >= 8


def cases(count, **sizes):
    for seed in range(count):
        problem = random_problem(seed, parallel=1, dag=seed % 2 == 1, **sizes)
        yield seed, problem, random_demand(problem, seed)


def test_two_operators_share_one_device_until_memory_ends():
    problem = replace(by_hand(), slo_s=5.0)
    plan = exact_plan(problem)  # one replica each, utilisation 0.4 and 0.8
    light = flat(problem, [4, 5], [0.3, 0.3], [0.2, 0.2])
    assert place_plan(problem, light, plan, DEVICE).devices == 1
    assert place_plan(problem, light, plan, 8.0).devices == 2
    with pytest.raises(SimulationError):
        place_plan(problem, light, plan, 4.5)


def test_memory_bound_operators_slow_each_other_and_compute_bound_ones_beside_them_less():
    problem = replace(by_hand(), rate=2.0, slo_s=5.0)
    plan = exact_plan(problem)
    both = place_plan(problem, flat(problem, [1, 1], [0.1, 0.1], [1.0, 0.5]), plan, DEVICE)
    # rho: 0.2 and 0.4. attention takes all bandwidth and meets mlp's 0.4 * 0.5 of it; mlp takes
    # half and meets 0.2 * 1.0.
    assert both.devices == 1
    assert both.slowdown == pytest.approx([1 + 0.2 / 0.8, 1 + 0.5 * 0.2 / 0.8])
    apart = place_plan(problem, flat(problem, [1, 1], [0.1, 0.9], [1.0, 0.1]), plan, DEVICE)
    assert apart.slowdown == pytest.approx([1 + 0.04 / 0.96, 1 + 0.1 * 0.2 / 0.8])


def test_what_fills_a_device_is_slowed_by_processor_sharing():
    """Two that take all of the arithmetic, half and a quarter of the time: 1 / (1 - L), never more
    than 2 beside one other; the slowdown does not hide that the device is as good as full."""
    problem = replace(by_hand(), rate=2.0, slo_s=50.0)
    plan = evaluate(problem, "", np.array([[0, 0, 1], [0, 0, 1]]))
    placement = place_plan(problem, flat(problem, [1, 1], [1.0, 1.0], [0, 0]), plan, DEVICE)
    assert placement.devices == 1
    assert placement.slowdown == pytest.approx([1 / (1 - 0.4), 1 / (1 - 0.2)])


def test_a_board_draws_no_more_than_it_may():
    problem = replace(by_hand(), slo_s=5.0)
    plan = exact_plan(problem)  # utilisation 0.4 and 0.8
    cool = flat(problem, [1, 1], [0.1, 0.1], [0.1, 0.1])
    board = np.broadcast_to(np.array([0.9, 0.9])[:, None, None], problem.latency_s.shape)
    assert place_plan(problem, cool, plan, DEVICE).devices == 1
    assert place_plan(problem, replace(cool, board=board), plan, DEVICE).devices == 2


def test_a_single_stream_gpu_takes_no_extra_replica():
    problem = by_hand()  # one and two replicas
    plan = exact_plan(problem)
    small = flat(problem, [1, 1], [0.1, 0.1], [0.1, 0.1])
    assert place_plan(problem, small, plan, DEVICE).devices == 1
    assert place_plan(problem, small, plan, DEVICE, shared=False).devices == 2


def test_algorithm_2_never_violates_memory_or_limit():
    for seed, problem, demand in cases(40, operators=6, batches=3, replicas=10):
        plan = exact_plan(problem)
        if plan is None:
            continue
        placed = place_plan(problem, demand, plan, DEVICE)
        assert placed.feasible and placed.latency_s <= problem.slo_s, seed
        assert (placed.memory_bytes <= DEVICE).all(), seed
        assert (placed.compute <= 1).all() and (placed.bandwidth <= 1).all(), seed
        assert np.bincount(placed.operator).tolist() == plan.slots_of.tolist(), seed
        assert set(placed.device) == set(range(placed.devices)), seed


def test_exact_placement_is_the_best_of_all_ways_to_place():
    looked, gaps = 0, []
    for seed, problem, demand in cases(60, operators=3, replicas=3):
        plan = exact_plan(problem)
        if plan is None or plan.slots > 6:
            continue
        looked += 1
        placed = exact_placement(problem, demand, plan, DEVICE)
        assert placed.devices == by_trying(problem, demand, plan, DEVICE), seed
        assert placed.feasible, seed
        greedy = place_plan(problem, demand, plan, DEVICE)
        assert greedy.devices >= placed.devices, seed
        gaps.append(greedy.devices / placed.devices - 1)
    assert looked > 30
    assert np.mean(gaps) <= 0.1


def test_the_optimum_in_devices_equals_every_plan_placed_every_way():
    compared = 0
    for seed, problem, demand in cases(600, operators=2, replicas=2):
        table = sojourns(problem)
        best = None
        for picked in product(*(np.argwhere(np.isfinite(table[v])) for v in range(2))):
            choice = np.array(picked)
            choice[:, 2] += 1
            plan = evaluate(problem, "", choice)
            if plan.feasible:
                best = by_trying(problem, demand, plan, DEVICE, best)
        fewest = fewest_devices(problem, demand, DEVICE)
        assert (fewest is None) == (best is None), seed
        if fewest is not None:
            compared += 1
            assert fewest[1].devices == best, seed
    assert compared >= 150


def test_fewer_sms_never_help_and_bandwidth_saturates_early():
    shares = np.linspace(0.05, 1, 20)
    compute = latency_at_share(1.0, 1.0, 0.1, shares)
    memory = latency_at_share(1.0, 0.1, 1.0, shares)
    assert compute == pytest.approx(1 / shares)
    assert (np.diff(memory) <= 0).all()
    assert memory[shares >= 0.4] == pytest.approx(1.0)
    with pytest.raises(SimulationError, match="share"):
        latency_at_share(1.0, 1.0, 0.1, 0.0)
