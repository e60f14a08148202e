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
    frontier_of: Sequence[Frontier] | None = None,
    *,
    slo_share: float = 1.0,
    slot_price: float = 1.0,
) -> OperatorPlan | None:
    """Return the plan of least cost; None if no plan meets ``slo_share`` of the latency limit.

    A slot (a GPU of one replica) costs ``slot_price``. If the choices have ``needs``, a device
    costs 1 too. ``frontier_of`` has the choices of each operator; default: the frontiers of
    ``problem``. ``bound`` of the plan is the proven least cost, rounded up. Raises SimulationError
    if the solver finds no answer.
    """
    frontier_of = frontiers(problem) if frontier_of is None else frontier_of
    if any(not frontier.slots.size for frontier in frontier_of):
        return None  # an operator that is stable with no number of replicas
    operators = len(frontier_of)
    slots = np.concatenate([frontier.slots for frontier in frontier_of])
    # Variables: a binary for each choice, the start time of each operator, and the devices.
    result = scipy.optimize.milp(
        c=np.r_[slot_price * slots, np.zeros(operators), 1.0],  # cost of each variable
        constraints=_constraints(problem, frontier_of, slo_share),
        integrality=np.r_[np.ones(slots.size), np.zeros(operators + 1)],
        bounds=scipy.optimize.Bounds(0.0, np.r_[np.ones(slots.size + operators), np.inf]),
        # The exact method needs a proof, so no gap is allowed.
        options={"mip_rel_gap": 0.0},
    )
    if result.status == INFEASIBLE:
        return None
    if result.x is None:
        raise SimulationError(f"The operator program found no answer: {result.message}")
    ends = np.cumsum([frontier.slots.size for frontier in frontier_of])
    binaries_by_operator = np.split(result.x[: slots.size], ends[:-1])
    chosen = [
        frontier.choice[binaries.argmax()]
        for frontier, binaries in zip(frontier_of, binaries_by_operator, strict=True)
    ]
    choice = np.array(chosen)
    plan = evaluate(problem, "exact", choice, int(np.ceil(result.mip_dual_bound - TOLERANCE)))
    if not plan.feasible and slo_share == 1.0:
        # The solver allows a plan that misses the limit by its tolerance: solve for a tighter one.
        tighter_share = 1.0 - 2 * TOLERANCE
        return exact_plan(problem, frontier_of, slo_share=tighter_share, slot_price=slot_price)
    return plan


def _constraints(
    problem: OperatorProblem, frontier_of: Sequence[Frontier], slo_share: float
) -> "scipy.optimize.LinearConstraint":
    """Return the constraints of the program: one choice per operator, the limit, and the devices.

    The variables are a binary for each choice, the start time of each operator as a share of the
    limit, and the number of devices. ``slo_share`` is the latest end, as a share of the limit.
    """
    csr_array = scipy.sparse.csr_array
    operators = len(frontier_of)
    operator = np.repeat(np.arange(operators), [frontier.slots.size for frontier in frontier_of])
    column = np.arange(operator.size)  # of each choice
    sojourn = np.concatenate([frontier.sojourn_s for frontier in frontier_of]) / problem.slo_s
    # Rows by operator: its number of chosen choices, their sojourn, and its start time
    chosen = csr_array((np.ones(operator.size), (operator, column)))
    takes = csr_array((sojourn, (operator, column)))
    start = scipy.sparse.eye_array(operators, format="csr")
    before = np.array([earlier for earlier, _ in problem.edges], np.int64)
    after = np.array([later for _, later in problem.edges], np.int64)
    needs_by_operator = [
        np.zeros((frontier.slots.size, 1)) if frontier.needs is None else frontier.needs
        for frontier in frontier_of
    ]
    needs = np.concatenate(needs_by_operator).T  # [resource, choice]
    blocks = [
        # Each operator has one choice.
        [chosen, csr_array((operators, operators)), None],
        # It ends within the limit.
        [takes, start, None],
        # It ends before the operators after it start.
        [takes[before], start[before] - start[after], None],
        # The devices suffice for each resource.
        [csr_array(needs), None, csr_array(-np.ones((len(needs), 1)))],
    ]
    upper = [
        np.ones(operators),
        np.full(operators, slo_share),
        np.zeros(before.size),
        np.zeros(len(needs)),
    ]
    # Exactly one choice per operator; the other rows have no lower bound.
    lower = [np.ones(operators), *(np.full(bound.size, -np.inf) for bound in upper[1:])]
    nonempty_rows = [block for block, bound in zip(blocks, upper, strict=True) if bound.size]
    matrix = scipy.sparse.block_array(nonempty_rows, format="csr")
    return scipy.optimize.LinearConstraint(matrix, np.concatenate(lower), np.concatenate(upper))
