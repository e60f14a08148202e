"""Measured slowdowns in place of the physical model: by hand, and where nobody measured."""

from dataclasses import replace

import numpy as np
import pytest

from bench.provision.exact_placement import exact_placement
from simulation.errors import SimulationError
from simulation.provisioning.interference import (
    GEMM_MEMORY_BOUND,
    SHARED_KINDS,
    Demand,
    InterferenceTable,
    interference_matrix,
    measured_at_share,
)
from simulation.provisioning.levels import model_level, plan_level
from simulation.provisioning.placement import latency_at, place_plan
from simulation.provisioning.problem import OperatorProblem, evaluate
from simulation.provisioning.workload import phase_problem
from tests.simulation.provisioning.test_workload import service, timing


def two(table: InterferenceTable | None) -> tuple[OperatorProblem, Demand]:
    """A product and an attention of 0.1 s each, one request/s: each works 10% of the time."""
    latency = np.full((2, 1, 1), 0.1)
    problem = OperatorProblem(
        names=("gemm", "attention"), edges=((0, 1),), batches=np.array([1]),
        parallel=np.array([1]), latency_s=latency, transfer_s=np.zeros_like(latency), rate=1.0,
        slo_s=1.0, max_replicas=2,
    )  # fmt: skip
    kinds = np.array(
        [[k == "gemm" for k in SHARED_KINDS], [k == "attention_decode" for k in SHARED_KINDS]]
    )
    share = np.full((2, 1, 1), 0.4)
    demand = Demand(np.ones((2, 1, 1)), share, share, kinds=kinds.astype(float), table=table)
    return problem, demand


def placed(table: InterferenceTable | None):
    problem, demand = two(table)
    plan = evaluate(problem, "by hand", np.array([[0, 0, 1], [0, 0, 1]]))
    return problem, demand, plan, place_plan(problem, demand, plan, 10.0)


def test_slowdowns_by_hand():
    """Alone nothing; beside the other for 10% of the time it takes 3 times as long: 0.2 more, and
    longer meets more of the other, which takes 4% of the device."""
    table = InterferenceTable("g", "measured", {("gemm", "attention_decode"): 3.0})
    problem, demand, plan, placement = placed(table)
    assert placement.devices == 1
    # The pair the other way was not measured: 0.4 + 0.4 of arithmetic do not hinder each other.
    assert placement.slowdown == pytest.approx([1 + 0.2 / 0.96, 1.0])
    assert placed(None)[3].slowdown == pytest.approx([1.0, 1.0])
    # What was not measured adds what the physical model says of the two.
    busy = replace(demand, compute=np.full((2, 1, 1), 0.9))
    slowed = place_plan(problem, busy, plan, 10.0).slowdown
    assert slowed == pytest.approx([1 + 0.2 / 0.91, 1 + 0.1 * 0.8 / 0.91])
    assert latency_at(problem, demand, plan, placement) == pytest.approx(placement.latency_s)
    assert exact_placement(problem, demand, plan, 10.0).slowdown == pytest.approx(
        [1 + 0.2 / 0.96, 1.0]
    )


def test_a_measured_pair_that_does_not_get_along_stands_apart():
    problem, demand = two(InterferenceTable("g", "", {("gemm", "attention_decode"): 60.0}))
    plan = evaluate(problem, "by hand", np.array([[0, 0, 1], [0, 0, 1]]))
    tight = replace(problem, slo_s=plan.latency_s * 1.5)
    assert place_plan(tight, demand, plan, 10.0).devices == 2
    assert place_plan(tight, replace(demand, table=None), plan, 10.0).devices == 1


@pytest.mark.parametrize("level", ["operator", "module"])
def test_no_interference_at_all_needs_no_more_devices(level):
    free = {(a, b): 1.0 for a in SHARED_KINDS for b in SHARED_KINDS}
    harsh = dict.fromkeys(free, 4.0)
    needed = []
    for pairs in (free, harsh):
        table = InterferenceTable("g", "", pairs)
        phase = phase_problem(service("decode", 60.0, 0.08), timing, interference=table)
        assert phase.demand.kinds.sum(axis=1) == pytest.approx(1.0)
        needed.append(plan_level(level, phase, 72e9, coarser=[model_level(phase, 72e9)]).devices)
    assert needed[0] <= needed[1]


def test_shares_of_the_gpu_are_read_between_those_measured():
    table = InterferenceTable("g", "", {}, {"gemm": ((0.25, 0.5), (4.0, 1.8))})
    read = measured_at_share(table, "gemm", [0.1, 0.25, 0.375, 0.5, 1.0])
    assert np.isnan(read[0])
    assert read[1:] == pytest.approx([4.0, 2.9, 1.8, 1.0])
    assert np.isnan(measured_at_share(table, "experts", [0.5])).all()
    with pytest.raises(SimulationError, match="above 0"):
        InterferenceTable("g", "", {("gemm", "gemm"): 0.0})


def test_products_that_wait_for_memory_count_as_others_unless_measured():
    gemm, waiting, decode = (
        SHARED_KINDS.index(kind) for kind in ("gemm", GEMM_MEMORY_BOUND, "attention_decode")
    )
    table = InterferenceTable("g", "", {("gemm", "attention_decode"): 2.0, ("gemm", "gemm"): 1.9})
    assert table.matrix[waiting, decode] == 2.0
    assert table.matrix[waiting, waiting] == table.matrix[gemm, waiting] == 1.9
    assert np.isnan(table.matrix[decode, waiting])  # as the pair of decode beside a product
    pairs = table.pairs | {(GEMM_MEMORY_BOUND, "attention_decode"): 1.5}
    measured = replace(table, pairs=pairs).matrix
    assert measured[waiting, decode] == 1.5 and measured[gemm, decode] == 2.0
    assert np.isnan(measured[waiting, waiting])


def test_a_published_table_is_never_faster_than_the_physical_model():
    """Two operators that both saturate the bandwidth take twice as long, whatever is published."""
    published = InterferenceTable("g", "", {("gemm", "attention_decode"): 1.4}, published=True)
    kinds = two(published)[1].kinds
    free, full = np.full(2, 0.4), np.ones(2)
    beside = interference_matrix(published, kinds, free, free)
    assert beside[0, 1] == pytest.approx(0.4)
    assert interference_matrix(published, kinds, free, full)[0, 1] == pytest.approx(1.0)
    measured = replace(published, published=False)
    assert interference_matrix(measured, kinds, free, full)[0, 1] == pytest.approx(0.4)
