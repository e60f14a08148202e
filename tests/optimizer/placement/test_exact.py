"""The exact placement: against brute force over nodes, and never worse than what it stands beside.

The brute force puts every instance on every node, or leaves a unit out, and lets ``measure`` say
what that is worth: it knows nothing of slots or subgroups.
"""

from itertools import product

import numpy as np
import pytest

from planner.optimizer.placement import measure_placement, place_blind, place_exact, run_algorithm4
from planner.optimizer.placement.problem import Placement, UnplacedUnits
from tests.optimizer.placement.cases import mixed, moe, pd, problem, random_problem, tree


def instances(service, shape):
    for r, role in enumerate(service.roles):
        for replica in range(shape[r]):
            for p, part in enumerate(role.parts):
                for _ in range(part.count):
                    yield r, replica, p, part.gpus, part.types


def brute_force(asked):
    """The fewest penalty points over all ways to put instances on nodes."""
    topology = asked.topology
    room = topology.gpus - asked.taken
    units = [
        (s, shape)
        for s, service in enumerate(asked.services)
        for shape, number in service.shapes
        for _ in range(number)
    ]
    best = np.inf

    def extend(u, used, rows, gaps):
        nonlocal best
        if u == len(units):
            placed = Placement.from_rows(rows, tuple(gaps))
            best = min(best, measure_placement(asked, placed).points)
            return
        s, shape = units[u]
        extend(u + 1, used, rows, [*gaps, UnplacedUnits(s, shape, 1, "")])
        rows_ = list(instances(asked.services[s], shape))
        nodes = [
            [n for n in range(len(topology)) if topology.gpu[n] in types and used[n] + g <= room[n]]
            for *_, g, types in rows_
        ]
        seen = set()
        for chosen in product(*nodes):
            after = used.copy()
            np.add.at(after, list(chosen), [g for *_, g, _ in rows_])
            if (after > room).any():
                continue
            kind = tuple(
                sorted((r, i, p, n) for (r, i, p, *_), n in zip(rows_, chosen, strict=True))
            )
            if kind in seen:
                continue
            seen.add(kind)
            more = [
                (s, u, r, i, p, len(rows) + j, n, g)
                for j, ((r, i, p, g, _), n) in enumerate(zip(rows_, chosen, strict=True))
            ]
            extend(u + 1, after, rows + more, gaps)

    extend(0, np.zeros(len(topology), np.int64), [], [])
    return best


TINY = {
    "two groups, one type": problem(tree(1, 2, nodes=2, types=(4,), gpus=4), pd(counts=(2, 2))),
    "under one switch": problem(
        tree(2, 2, nodes=1, types=(4,), gpus=4), pd(counts=(1, 2), p=2, d=2, affinity="s1")
    ),
    "under one switch where none has room": problem(
        tree(1, 3, nodes=1, types=(3,), gpus=4), pd(counts=(1, 1), p=4, d=4, affinity="s1")
    ),
    "more than there is": problem(
        tree(1, 2, nodes=1, types=(2,), gpus=4),
        pd("first", (1, 1), p=2, d=4, priority=1),
        pd("second", (1, 1), p=2, d=2),
    ),
    "two types and a fallback": problem(
        tree(2, 1, nodes=2, types=(2, 2), gpus=4, mixed_s1=1),
        pd(counts=(1, 1), pt=(0,), dt=(1, 0), p=4, d=2, affinity="s1"),
        mixed(counts=2, gpus=2, types=(1, 0)),
    ),
    "only split places are left": problem(
        tree(2, 1, nodes=1, types=(2,), gpus=4), pd(counts=(1, 1), p=4, d=2, affinity="none")
    ),
    "some GPUs are taken": problem(
        tree(1, 2, nodes=2, types=(4,), gpus=4),
        pd(counts=(1, 1), p=2, d=2, affinity="s1"),
        mixed(counts=1, gpus=4),
        taken=(2, 3, 0, 4),
    ),
    "attention and FFN": problem(
        tree(1, 2, nodes=2, types=(4,), gpus=4), moe(affinity="s2", attention=1)
    ),
}


def random_tiny(seed):
    rng = np.random.default_rng(seed)
    topology = tree(2, 2, nodes=1, types=(2, 2), gpus=4, mixed_s2=int(rng.integers(3)))
    p, d = rng.choice([1, 2, 4], 2).tolist()
    affinity = ("s1", "s2", "none")[rng.integers(3)]
    first = pd(counts=(1, int(rng.integers(1, 3))), p=p, d=d, pt=(0, 1), dt=(1,), affinity=affinity)
    second = mixed(counts=int(rng.integers(1, 3)), gpus=int(rng.choice([2, 4])), types=(0, 1))
    return problem(topology, first, second, taken=rng.integers(0, 3, 4))


@pytest.mark.parametrize("case", [*TINY, *range(12)])
def test_as_good_as_brute_force(case):
    asked = TINY[case] if case in TINY else random_tiny(case)
    exact = place_exact(asked, gap=0.0)
    best = brute_force(asked)
    assert exact.measures.points == pytest.approx(best, abs=1e-6)
    assert exact.bound <= best + 1e-6


@pytest.mark.parametrize("seed", range(10))
def test_never_worse_than_the_algorithm_or_the_baseline(seed):
    asked = random_problem(seed, fill=0.6 + 0.05 * seed)
    exact = place_exact(asked, time_limit_s=5.0)
    for other in (run_algorithm4(asked), place_blind(asked, seed)):
        assert exact.measures.points <= measure_placement(asked, other).points + 1e-6
        assert exact.bound <= measure_placement(asked, other).points + 1e-6


def test_the_algorithm_is_better_than_the_baseline_on_random_trees():
    """Not a law, a finding: Algorithm 4 can leave out what a flat pool would split."""
    better = []
    for seed in range(20):
        asked = random_problem(seed, fill=0.7)
        points = [
            measure_placement(asked, p).points for p in (run_algorithm4(asked), place_blind(asked))
        ]
        better.append(points[0] <= points[1])
    assert np.mean(better) >= 0.9


@pytest.mark.parametrize("seed", range(4))
def test_a_regular_tree_is_proven(seed):
    """Many switches are alike, which makes the proof hard."""
    rng = np.random.default_rng(seed)
    topology = tree(4, 2, nodes=2, types=(10, 6), mixed_s1=1, mixed_s2=1)
    services = [
        pd("a", (3, 6), p=4, d=2, affinity="s1", ratio=(1, 2)),
        pd("b", (2, 2), p=8, d=4, dt=(1, 0), affinity="s2", priority=1),
        mixed("c", int(rng.integers(3, 9)), 2, (0, 1)),
    ]
    asked = problem(topology, *services)
    exact = place_exact(asked, gap=0.0)
    assert exact.gap <= 1e-4


def test_the_same_problem_gives_the_same_placement():
    exact_first, two = (place_exact(random_problem(3)).placement for _ in range(2))
    assert (exact_first.node == two.node).all()
    assert (exact_first.service == two.service).all()


def test_sizes_that_do_not_divide_one_another_keep_their_bound():
    """3 and 5 GPUs on nodes of 8: slots are a relaxation, and the gap says so."""
    asked = problem(tree(1, 2, nodes=2, types=(4,)), mixed("a", 5, 3), mixed("b", 4, 5))
    exact = place_exact(asked, gap=0.0)
    assert exact.bound <= 3000.0 + 1e-6  # 4 nodes of 5 + 3 leave one instance of 3 out
    assert exact.measures.unplaced_units == 1  # 35 of 32 GPUs; 5 + 3 fill a node
    assert exact.gap <= 1e-4


def test_priority_decides_who_is_left_out():
    asked = problem(
        tree(1, 1, nodes=2, types=(2,), gpus=4),
        pd("low", (1, 1), p=4, d=4),
        pd("high", (1, 1), p=4, d=4, priority=2),
    )
    for placement in (run_algorithm4(asked), place_exact(asked).placement):
        assert [(gap.service, gap.number) for gap in placement.unplaced] == [(0, 1)]
        assert set(placement.service.tolist()) == {1}


def test_a_large_network_stays_within_the_bound():
    """Valid, no better than the bound, no worse than Algorithm 4."""
    for seed in range(2):
        asked = random_problem(seed, nodes=96, fill=0.9)
        exact = place_exact(asked, time_limit_s=1.5)
        used = asked.taken + exact.placement.used_gpus(len(asked.topology))
        assert (used <= asked.topology.gpus).all()
        assert exact.bound <= exact.measures.points + 1e-6
        assert (
            exact.measures.points <= measure_placement(asked, run_algorithm4(asked)).points + 1e-6
        )
        assert exact.measures.split_units == 0
