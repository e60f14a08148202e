"""Module-level scaling: speedup by hand, costs as printed, both algorithms, the optimum."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from simulation.errors import SimulationError
from simulation.modules.parts import MIB, acting_cost, modules_of
from simulation.modules.reduction import (
    Assessment,
    Instance,
    LayerBytes,
    reduce,
    weight_bytes_by_device,
)
from simulation.modules.scale_up import ModuleProblem, algorithm1, optimum, runs, speedup
from simulation.performance.specs import ModelShape


def cluster(layers=40, free=(0, 30, 30, 30), gamma=0.0, speed=None):
    free = np.array(free, float)
    return ModuleProblem(
        home=np.zeros(layers, np.int64),
        layer_bytes=1.0,
        free_bytes=free,
        vacancy=free / max(free.max(), 1),
        speed=np.ones(free.size) if speed is None else np.array(speed, float),
        gamma=gamma,
    )


def copies(layers, devices, *spans):
    replicated = np.zeros((layers, devices), bool)
    for first, last, device in spans:
        replicated[first:last, device] = True
    return replicated


def test_thirty_of_forty_layers_twice_is_1_6():
    # 40 / (10 + 30 / 2) (methods.md B2); the source measured 4.3 under load: queueing.
    assert speedup(cluster(), copies(40, 4, (0, 30, 1))) == pytest.approx(1.6)


def test_runs_pay_where_they_begin():
    split = copies(40, 4, (0, 10, 1), (20, 40, 1), (5, 10, 2))
    assert runs(split) == 3
    # 10 layers alone, 25 twice, 5 three times: 10 + 12.5 + 5 / 3, and three runs at 0.5.
    expected = 40 / (10 + 25 / 2 + 5 / 3 + 3 * 0.5)
    assert speedup(cluster(gamma=0.5), split) == pytest.approx(expected)


def test_a_slow_device_holds_its_layers_back():
    slow = cluster(layers=2, free=(0, 2), speed=(1.0, 0.25))
    both = copies(2, 2, (0, 2, 1))
    assert speedup(slow, both) == pytest.approx(2 / (2 * 0.5 / 0.25))  # half the batch, a quarter
    assert algorithm1(slow).replicated.sum() == 0  # of the speed: worse than alone


def test_costs_are_a_start_and_bytes_over_the_link():
    layer = 605 * MIB
    # The first row of the source's table, over the link that it used.
    assert acting_cost("replicate", layer, 25e9).seconds == pytest.approx(0.2987)
    assert acting_cost("migrate", layer, 25e9).seconds == pytest.approx(0.2492)
    assert acting_cost("migrate", 20 * layer, 25e9).memory_bytes == pytest.approx(
        12659 * MIB, rel=0.01
    )
    slow, fast = (acting_cost("replicate", 20 * layer, link).seconds for link in (25e9, 300e9))
    assert slow - fast == pytest.approx(20 * layer * (1 / 25e9 - 1 / 300e9))


def test_algorithm_1_fills_the_devices_with_runs_when_coordination_is_cheap():
    greedy = algorithm1(cluster(gamma=0.01))
    assert greedy.replicated.sum(axis=0).tolist() == [0, 30, 30, 30]
    assert runs(greedy.replicated) <= 6
    assert greedy.speedup > 2.5


def test_memory_is_never_over_capacity_and_speed_never_falls():
    rng = np.random.default_rng(5)
    for _ in range(40):
        problem = cluster(
            layers=int(rng.integers(4, 20)),
            free=rng.uniform(0, 12, 4),
            gamma=float(rng.choice([0.0, 0.05, 0.3, 2.0])),
        )
        for replication in (algorithm1(problem), optimum(problem)):
            assert (replication.replicated.sum(axis=0) <= problem.fitting_copies).all()
            assert replication.speedup >= 1.0
            assert not replication.replicated[:, 0].any()  # the home device holds the originals


def test_the_optimum_is_the_best_of_all_replications():
    rng = np.random.default_rng(11)
    for _ in range(15):
        problem = cluster(layers=5, free=(0, rng.integers(0, 5), rng.integers(0, 5)), gamma=0.2)
        best = 1.0
        for bits in product((False, True), repeat=10):
            replicated = np.zeros((5, 3), bool)
            replicated[:, 1:] = np.array(bits).reshape(5, 2)
            if (replicated.sum(axis=0) <= problem.fitting_copies).all():
                best = max(best, speedup(problem, replicated))
        optimal = optimum(problem)
        assert optimal.speedup == pytest.approx(best)
        assert optimal.speedup == pytest.approx(optimal.bound, rel=1e-6)
        assert algorithm1(problem).speedup <= best + 1e-12


def test_a_run_that_pays_only_as_a_whole_is_seen_by_the_optimum_alone():
    dear = cluster(layers=10, free=(0, 10), gamma=0.8)  # one layer saves 0.5
    assert algorithm1(dear).replicated.sum() == 0
    optimal = optimum(dear)
    assert optimal.replicated.sum() == 10
    assert optimal.speedup == pytest.approx(10 / (5 + 0.8))


def test_the_optimum_needs_devices_of_equal_speed():
    with pytest.raises(SimulationError, match="equal speed"):
        optimum(cluster(layers=2, free=(0, 2), speed=(1.0, 0.5)))


def instance(batch=15, devices=3):
    return Instance.undivided(np.zeros(4, np.int64), devices, batch)


def layers_of(cache):
    """Layers of 1, a third of it attention's."""
    return LayerBytes(1 / 3, 2 / 3, cache)


def judge(capacity, kv_per_sequence=0.1, limit=99.0):
    """Memory by hand; the limit holds while the batch is at most ``limit``."""

    def assess(state):
        used = memory(state, layers_of(0.0), kv_per_sequence)
        used[0] -= state.offloaded_bytes
        return Assessment(used - np.array(capacity, float), state.batch > limit)

    return assess


def memory(state, sizes, kv_per_sequence):
    """Bytes on each device: parts of layers, copies, and KV of the batch where it lives."""
    caches = np.bincount(state.kv_home, minlength=state.replicated.shape[1])
    return weight_bytes_by_device(state, sizes) + caches * state.batch * kv_per_sequence


def test_memory_of_an_instance_by_hand():
    state = replace(instance(), replicated=copies(4, 3, (1, 3, 2)))
    # 4 layers of 1 and their KV of 15 x 0.1 on device 0, two copies on device 2: KV stays.
    assert memory(state, layers_of(0.0), 0.1) == pytest.approx([4 + 6.0, 0, 2])


def test_whole_layers_move_first_and_only_as_many_as_needed():
    result = reduce(instance(), judge([6, 20, 3]), layers_of(1.5))
    assert result.solved
    assert np.bincount(result.state.home, minlength=3).tolist() == [2, 2, 0]
    assert (result.state.kv_home == result.state.home).all()
    assert (result.state.ffn_home == result.state.home).all()


def test_kv_moves_where_a_whole_layer_does_not_fit():
    result = reduce(instance(), judge([9, 1.6, 0]), layers_of(1.5))
    assert result.solved
    assert np.bincount(result.state.kv_home, minlength=3).tolist() == [3, 1, 0]
    assert not result.state.home.any() and not result.state.ffn_home.any()


def test_replicas_go_when_nothing_can_move_and_then_the_batch_shrinks():
    crowded = replace(instance(), replicated=copies(4, 2, (0, 4, 1)))
    result = reduce(crowded, judge([20, 2]), layers_of(1.5))
    assert result.solved
    assert result.state.replicated.sum() == 2 and result.state.batch == 15
    slow = reduce(instance(batch=23, devices=1), judge([99], limit=10), layers_of(1))
    assert slow.state.batch == 8 and slow.solved


def test_weights_are_offloaded_last_and_a_hopeless_case_is_said():
    tight = reduce(instance(batch=1, devices=1), judge([3]), layers_of(0.1))
    assert tight.state.batch == 1
    assert tight.solved and tight.state.offloaded_bytes == pytest.approx(1.4)
    never = reduce(instance(batch=1, devices=1), judge([9], limit=0), layers_of(0.1))
    assert not never.solved


def test_modules_of_llama_13b_are_those_of_table_1():
    shape = ModelShape("llama-13b", 40, 5120, 32000, 40, 40, 128, 13824, 2048)
    by_name = {part.name: part for part in modules_of(shape)}
    memory = {"self_attn.q_proj": 50, "self_attn": 200, "ffn.up_proj": 135, "decoder layer": 605}
    for name, mebibytes in memory.items():
        assert by_name[name].memory_bytes / MIB == pytest.approx(mebibytes, abs=0.5)
    # The source leaves one of three feed-forward projections out of a layer: 127.5 there.
    flops = {"self_attn.q_proj": 13.42, "self_attn": 55.02, "ffn.up_proj": 36.24,
             "decoder layer": 163.7}  # fmt: skip
    for name, giga in flops.items():
        assert by_name[name].flops / 1e9 == pytest.approx(giga, rel=1e-3)
    assert by_name["ffn.up_proj"].per_layer == 3


def test_projections_move_towards_compute_and_where_a_layer_does_not_fit():
    # The SLO is missed and another device is twice as fast, with room for two feed-forward parts.
    def assess(state):
        away = int((state.ffn_home != 0).sum())
        over = np.array([-50.0, -1.4 + away * 2 / 3])
        return Assessment(over, away < 3, 1.0 + 0.1 * away)

    reduction = reduce(instance(devices=2), assess, layers_of(9.0), np.array([1.0, 2.0]))
    assert (reduction.state.ffn_home == 1).sum() == 2
    assert not reduction.state.kv_home.any()
    # Memory is short, no device is faster, and there is room for neither layer nor cache.
    tight = reduce(instance(devices=2), judge([9.5, 0.7]), layers_of(1.5))
    assert tight.state.ffn_home.tolist() == [0, 0, 0, 1]
    assert not tight.state.home.any() and not tight.state.kv_home.any()
    assert tight.solved
