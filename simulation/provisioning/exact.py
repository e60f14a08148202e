"""Find the plan with the fewest slots or devices under the limit, with a proof (methods.md A5).

The integer program has a binary per choice of an operator and a start time per operator. Times are
in units of the limit, so that the solver's tolerance is meaningful.

If choices have ``needs``, the program minimizes devices: the sum of needs of the scarcest resource
(memory, arithmetic, traffic or power). No placement uses fewer devices, because interference only
adds to latencies.
"""

from collections.abc import Sequence

import numpy as np
import scipy

from simulation.errors import SimulationError
from simulation.provisioning.frontier import Frontier, frontiers
from simulation.provisioning.problem import OperatorPlan, OperatorProblem, evaluate

TOLERANCE = 1e-6  # of the solver
INFEASIBLE = 2  # status of SciPy's solver


def exact_plan(
    problem: OperatorProblem,
    options: Sequence[Frontier] | None = None,
    *,
    slo_share: float = 1.0,
    slot_price: float = 1.0,
) -> OperatorPlan | None:
    """Return the plan of least cost; None if no plan meets ``slo_share`` of the latency limit.

    A slot (a GPU of one replica) costs ``slot_price``. If ``options`` have ``needs``, a device
    costs 1 too. ``options`` are the choices of each operator, by default the frontiers of
    ``problem``. ``bound`` of the plan is the proven least cost, rounded up.
    """
    options = frontiers(problem) if options is None else options
    if any(not option.slots.size for option in options):
        return None  # an operator that is stable with no number of replicas
    count = len(options)
    first = np.r_[0, np.cumsum([option.slots.size for option in options])]  # of each operator
    binaries = int(first[-1])
    slots = slot_price * np.concatenate([option.slots for option in options])
    # Variables: a binary for each choice, the start time of each operator, and the devices.
    result = scipy.optimize.milp(
        np.r_[slots, np.zeros(count), 1.0],
        constraints=_constraints(problem, options, slo_share),
        integrality=np.r_[np.ones(binaries), np.zeros(count + 1)],
        bounds=scipy.optimize.Bounds(0.0, np.r_[np.ones(binaries + count), np.inf]),
        # The exact method needs a proof, so no gap is allowed.
        options={"mip_rel_gap": 0.0},
    )
    if result.status == INFEASIBLE:
        return None
    if result.x is None:
        raise SimulationError(f"The operator program found no answer: {result.message}")
    # The choice whose binary is 1, as its position among the operator's choices
    picks = [int(result.x[first[v] : first[v + 1]].argmax()) for v in range(count)]
    choice = np.array([option.choice[i] for option, i in zip(options, picks, strict=True)])
    plan = evaluate(problem, "exact", choice, int(np.ceil(result.mip_dual_bound - TOLERANCE)))
    if not plan.feasible and slo_share == 1.0:
        # The solver allows a plan that misses the limit by its tolerance.
        return exact_plan(problem, options, slo_share=1.0 - 2 * TOLERANCE, slot_price=slot_price)
    return plan


def _constraints(
    problem: OperatorProblem, options: Sequence[Frontier], slo_share: float
) -> "scipy.optimize.LinearConstraint":
    """Return the constraints of the program: one choice per operator, the limit, and the devices.

    The variables are a binary for each choice, the start time of each operator as a share of the
    limit, and the number of devices. ``slo_share`` is the latest end.
    """
    sizes = np.array([option.slots.size for option in options])
    binaries, count = int(sizes.sum()), len(options)
    owner = np.repeat(np.arange(count), sizes)  # operator of each choice
    sojourn = np.concatenate([option.sojourn_s for option in options]) / problem.slo_s
    # Rows by operator: its number of picked choices, their sojourn, and its start time
    pick = scipy.sparse.csr_array((np.ones(binaries), (owner, np.arange(binaries))))
    takes = scipy.sparse.csr_array((sojourn, (owner, np.arange(binaries))))
    start = scipy.sparse.eye_array(count, format="csr")
    before = np.array([first for first, _ in problem.edges], np.int64)
    after = np.array([second for _, second in problem.edges], np.int64)
    needs = np.concatenate(
        [
            np.zeros((n, 1)) if option.needs is None else option.needs
            for option, n in zip(options, sizes, strict=True)
        ]
    ).T  # [K, binaries] use of each resource by choice
    devices = scipy.sparse.csr_array(-np.ones((len(needs), 1)))
    blocks = [
        # Each operator has one choice.
        [pick, scipy.sparse.csr_array((count, count)), None],
        # It ends within the limit.
        [takes, start, None],
        # It ends before the operators after it start.
        [takes[before], start[before] - start[after], None],
        # The devices suffice for each resource.
        [scipy.sparse.csr_array(needs), None, devices],
    ]
    high = [np.ones(count), np.full(count, slo_share), np.zeros(before.size), np.zeros(len(needs))]
    low = [np.ones(count), *(np.full(bounds.size, -np.inf) for bounds in high[1:])]
    rows = [row for row, bounds in zip(blocks, high, strict=True) if bounds.size]
    return scipy.optimize.LinearConstraint(
        scipy.sparse.block_array(rows, format="csr"), np.concatenate(low), np.concatenate(high)
    )
