"""Algorithm 4 in both directions, worked by hand and as laws on random trees."""

from dataclasses import replace

import numpy as np
import pytest

from planner.optimizer.placement import measure_placement, place_blind, place_exact, run_algorithm4
from planner.optimizer.placement.problem import HIGH, LOW, MEDIUM, Placement, split_units
from planner.optimizer.placement.scale_in import placed_replicas
from tests.optimizer.placement.cases import mixed, moe, pd, problem, random_problem, tree

MIXED = {"mixed_s1": 1, "mixed_s2": 1}
PRIORITIES = {"s2": 3, "s1": 2, "nodes": 2, "racks": 2, "types": (16, 8), **MIXED}


def tiers_used(asked, placement):
    return set(asked.tiers[asked.topology.s1[placement.node]].tolist())


def within(asked, placement):
    return (asked.taken + placement.used_gpus(len(asked.topology)) <= asked.topology.gpus).all()


@pytest.mark.parametrize(
    ("counts", "ratio", "expected"),
    [
        ((6, 4), (3, 2), (((3, 2), 2),)),
        ((31, 20), (3, 2), (((4, 2), 1), ((3, 2), 9))),
        ((5, 2), (), (((3, 1), 1), ((2, 1), 1))),
        ((0, 2), (1, 1), (((0, 2), 1),)),
        ((3,), (), (((1,), 3),)),
        ((1, 1), (3, 2), (((1, 1), 1),)),
        ((0, 0), (), ()),
    ],
)
def test_units_keep_the_ratio_as_well_as_can_be(counts, ratio, expected):
    assert split_units(counts, ratio) == expected


def test_subgroups_have_the_priorities_of_the_seed():
    asked = problem(tree(**PRIORITIES), mixed())
    assert asked.tiers.tolist() == [HIGH, HIGH, MEDIUM, MEDIUM, LOW, LOW]


@pytest.mark.parametrize(
    ("service", "tier"),
    [
        (mixed(counts=4, types=(0,)), {LOW}),
        (pd(counts=(1, 1), affinity="s1"), {LOW}),
        (pd(counts=(1, 1), dt=(1,), affinity="s2"), {MEDIUM}),
        (pd(counts=(1, 1), dt=(1,), affinity="s1"), {HIGH}),
    ],
)
def test_each_service_gets_the_least_precious_subgroup_that_will_do(service, tier):
    asked = problem(tree(**PRIORITIES), service)
    placement = run_algorithm4(asked)
    assert tiers_used(asked, placement) == tier
    assert measure_placement(asked, placement).affinity_honoured in (1.0, None)
    assert tiers_used(asked, place_exact(asked).placement) == tier


def test_a_new_group_on_low_priority_rather_than_more_of_an_existing_one_on_high():
    topology = tree(**PRIORITIES)
    here = int(np.flatnonzero(topology.s1 == 0)[0])
    current = Placement.from_rows([(0, 0, 0, 0, 0, 0, here, 2)])
    asked = problem(topology, mixed(counts=2))
    placement = run_algorithm4(asked, current)
    assert np.unique(placement.unit).tolist() == [0, 1]
    assert tiers_used(asked, placement.rows(placement.unit == 1)) == {LOW}


def test_an_existing_group_rather_than_a_new_one_of_the_same_priority():
    asked = problem(tree(2, 2), pd(counts=(1, 1)))
    current = run_algorithm4(asked)
    grown = run_algorithm4(problem(asked.topology, pd(counts=(2, 2))), current)
    assert np.unique(grown.unit).tolist() == [0, 1]
    assert len(np.unique(asked.subgroup[asked.topology.s1[grown.node]])) == 1


def test_prefill_and_decode_are_never_split_across_subgroups():
    """As printed, the loop would put the prefill under one switch and the decode under another."""
    asked = problem(tree(2, 1, nodes=1, types=(2,), gpus=4), pd(counts=(1, 1), p=4, d=2))
    placement = run_algorithm4(asked)
    assert len(placement) == 0
    assert placement.unplaced[0].number == 1
    assert "no one subgroup has room" in placement.unplaced[0].reason
    assert measure_placement(asked, place_blind(asked)).split_units == 1


def test_a_miss_of_affinity_is_named_and_stays_in_the_subgroup():
    asked = problem(tree(1, 2, nodes=1, types=(2,), gpus=4), pd(counts=(1, 1), affinity="s1"))
    for placement in (run_algorithm4(asked), place_exact(asked).placement):
        measures = measure_placement(asked, placement)
        assert (measures.affinity_missed, measures.split_units, measures.affinity_honoured) == (
            1,
            0,
            0.0,
        )
        assert measures.bandwidth_lost == pytest.approx(0.2)


def test_fallbacks_come_after_preferred_types():
    topology = tree(1, 1, nodes=2, types=(1, 1), gpus=4)
    asked = problem(topology, mixed(counts=4, gpus=2, types=(0, 1)))
    for placement in (run_algorithm4(asked), place_exact(asked).placement, place_blind(asked)):
        assert measure_placement(asked, placement).fallback_gpus == 4
        assert not placement.unplaced


def test_what_finds_no_place_says_why():
    asked = problem(tree(1, 1, nodes=1, types=(1,)), mixed(counts=5, gpus=2))
    placement = run_algorithm4(asked)
    assert placement.unplaced[0].number == 1
    assert placement.unplaced[0].reason == "2 gpu-0 needed and 0 free"


def test_scale_in_frees_high_priority_first():
    topology = tree(**PRIORITIES)
    first = {tier: int(np.flatnonzero(topology.s1 == s1)[0]) for tier, s1 in ((HIGH, 0), (LOW, 4))}
    rows = [(0, u, 0, 0, 0, u, first[tier], 2) for u, tier in enumerate((HIGH, LOW))]
    asked = problem(topology, mixed(counts=1))
    placement = run_algorithm4(asked, Placement.from_rows(rows))
    assert tiers_used(asked, placement) == {LOW}
    assert np.unique(placement.unit).tolist() == [1]


def test_what_is_released_is_free_in_the_next_cycle_only():
    topology = tree(1, 1, nodes=1, types=(1,), gpus=4)
    current = run_algorithm4(problem(topology, mixed("a", 2), mixed("b", 0)))
    asked = problem(topology, mixed("a", 1), mixed("b", 1))
    placement = run_algorithm4(asked, current)
    assert [gap.service for gap in placement.unplaced] == [1]
    again = run_algorithm4(asked, placement)
    assert not again.unplaced


def test_one_role_alone_joins_groups_that_have_room():
    asked = problem(tree(2, 2), pd(counts=(2, 2), ratio=(1, 1)))
    current = run_algorithm4(asked)
    grown = run_algorithm4(problem(asked.topology, pd(counts=(2, 4), ratio=(1, 1))), current)
    assert placed_replicas(grown, 0, 2) == (2, 4)
    assert measure_placement(asked, grown).split_units == 0
    assert len(np.unique(grown.unit)) == 2


def test_attention_and_ffn_lie_under_one_switch_and_keep_both_ratios():
    service = moe(counts=(2, 4), ratio=(1, 2), attention=2, ffn=1)
    asked = problem(tree(2, 2, nodes=1, types=(4,)), service)
    for placement in (run_algorithm4(asked), place_exact(asked).placement):
        assert not placement.unplaced
        prefill = placement.rows(placement.role == 0)
        for unit in np.unique(prefill.unit):
            of_unit = prefill.rows(prefill.unit == unit)
            assert len(np.unique(asked.topology.s1[of_unit.node])) == 1
            assert np.bincount(of_unit.part).tolist() == [2, 1]
            both_roles = placement.rows(placement.unit == unit)
            assert (both_roles.role == 1).sum() == 2
            assert len(np.unique(asked.topology.s2[both_roles.node])) == 1
    spread = measure_placement(asked, place_blind(asked))
    assert spread.affinity_missed > 0


def test_an_instance_larger_than_a_node_takes_whole_ones():
    asked = problem(tree(1, 2, nodes=2, types=(4,), gpus=4), mixed(counts=2, gpus=8))
    for placement in (run_algorithm4(asked), place_exact(asked).placement):
        assert len(placement) == 4
        for which in (0, 1):
            nodes = placement.node[placement.instance == np.unique(placement.instance)[which]]
            assert len(np.unique(asked.topology.s1[nodes])) == 1


@pytest.mark.parametrize("seed", range(12))
def test_laws_on_random_trees(seed):
    asked = random_problem(seed, fill=0.5 + 0.05 * seed)
    for placement in (run_algorithm4(asked), place_blind(asked), place_exact(asked).placement):
        assert within(asked, placement)
        for s, service in enumerate(asked.services):
            lost = np.zeros(len(service.roles), int)
            for gap in placement.unplaced:
                if gap.service == s:
                    lost += gap.number * np.array(gap.shape)
            assert (
                np.array(placed_replicas(placement, s, len(service.roles))) + lost
            ).tolist() == list(service.wanted)
            of_service = placement.rows(placement.service == s)
            for r, role in enumerate(service.roles):
                used = asked.topology.gpu[of_service.node[of_service.role == r]]
                assert set(used.tolist()) <= set(role.parts[0].types)
    first, two = (run_algorithm4(asked) for _ in range(2))
    assert (first.node == two.node).all()
    assert measure_placement(asked, first).split_units == 0


@pytest.mark.parametrize("seed", range(6))
def test_out_and_in_again_is_the_start(seed):
    """From a state that holds no high-priority subgroup it could have freed instead."""
    asked = random_problem(seed, fill=0.4)
    start = run_algorithm4(asked)
    grown = [
        replace(service, wanted=tuple(2 * n for n in service.wanted)) for service in asked.services
    ]
    out = run_algorithm4(problem(asked.topology, *grown), start)
    back = run_algorithm4(asked, out)
    for s, service in enumerate(asked.services):
        roles = len(service.roles)
        assert placed_replicas(back, s, roles) == placed_replicas(start, s, roles)
        before, after = start.rows(start.service == s), back.rows(back.service == s)
        tiers = asked.tiers[asked.topology.s1[out.node[out.service == s]]]
        if len(set(tiers.tolist())) == 1 and not any(g.service == s for g in out.unplaced):
            assert sorted(after.node.tolist()) == sorted(before.node.tolist())


def test_everything_in_is_nothing_left():
    asked = random_problem(1)
    out = run_algorithm4(asked)
    none = [replace(service, wanted=(0,) * len(service.roles)) for service in asked.services]
    back = run_algorithm4(problem(asked.topology, *none), out)
    assert len(back) == 0
