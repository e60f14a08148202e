"""Choice of layers to replicate: Algorithm 1 of CoCoServe and the optimum, by their speed-up.

The formulas are missing from the text of the source. They are rebuilt from its description (section
4.1, equations 1 to 4). p_i is the number of copies of layer i, which split the batch evenly. delta
is the number of maximal runs of consecutive layers replicated on a device, summed over devices.
gamma is the time of one scatter and gather over that of one layer.

    homogeneous:    S = n / (sum_i 1 / p_i + gamma delta)
    heterogeneous:  S = sum_i 1 / v_home(i) / (sum_i max over copies of 1 / (p_i v_d) + gamma delta)

This is the speed-up of one pass. Throughput and latency under load come from the simulator. The
source measured 4.3 times the throughput at an S of 1.6, because the unreplicated instance queued.
"""

from dataclasses import dataclass

import numpy as np
import scipy

from simulation.arrays import BoolArray, FloatArray, IntArray
from simulation.errors import SimulationError


@dataclass(frozen=True, slots=True, eq=False)
class ModuleProblem:
    """One instance with ``n`` layers, and the ``D`` devices that they may be copied to."""

    home: IntArray  # [n] device of each layer's original
    layer_bytes: float
    free_bytes: FloatArray  # [D] memory for copies, after a safety margin
    vacancy: FloatArray  # [D] idle share of the device, 0 to 1
    speed: FloatArray  # [D] relative speed; all equal in a homogeneous cluster
    gamma: float  # seconds of one scatter and gather over seconds of one layer at speed 1

    @property
    def fitting_copies(self) -> IntArray:
        """Return the number of layer copies that fit on each device, ``[D]``."""
        return np.floor(np.maximum(self.free_bytes, 0.0) / self.layer_bytes).astype(np.int64)


def runs(replicated: BoolArray) -> int:
    """Return delta: the number of runs of layers in ``replicated [n, D]``, over all devices.

    A run is a maximal series of consecutive layers that are copied to a device.
    """
    before = np.zeros_like(replicated)
    before[1:] = replicated[:-1]
    return int((replicated & ~before).sum())


def speedup(problem: ModuleProblem, replicated: BoolArray) -> float:
    """Return the speed-up S; ``replicated[i, d]`` is True if device d has a copy of layer i."""
    n = problem.home.size
    copies = replicated.copy()
    copies[np.arange(n), problem.home] = True
    parallel = copies.sum(axis=1)
    slowest = np.where(copies, problem.speed[None, :], np.inf).min(axis=1)
    compute = (1.0 / (parallel * slowest)).sum()
    return float(
        (1.0 / problem.speed[problem.home]).sum() / (compute + problem.gamma * runs(replicated))
    )


@dataclass(frozen=True, slots=True, eq=False)
class Replication:
    """The layers copied to each device, and the speed-up that they give."""

    method: str
    replicated: BoolArray  # [n, D] whether a device has a copy of a layer, besides the original
    speedup: float
    bound: float | None = None  # no replication is faster than this; None: not proven


def algorithm1(problem: ModuleProblem, *, vacancy_threshold: float = 0.0) -> Replication:
    """Return the copies that the greedy Algorithm 1 chooses.

    Devices are tried in order of falling free share, if it is at least ``vacancy_threshold``, and
    layers in the order of ``_by_continuity``. A copy stays only if it raises ``speedup``. The first
    layer of a run of consecutive layers pays for the run's scatter and gather alone. If they cost
    more than one layer saves, the result is therefore empty, although a long run might pay.
    ``optimum`` finds such runs.
    """
    n, devices = problem.home.size, problem.free_bytes.size
    replicated = np.zeros((n, devices), np.bool_)
    best = speedup(problem, replicated)
    for d in np.argsort(-problem.vacancy, kind="stable"):
        if problem.vacancy[d] < vacancy_threshold:
            continue
        for i in _by_continuity(problem, replicated, int(d))[: problem.fitting_copies[d]]:
            replicated[i, d] = True
            after = speedup(problem, replicated)
            if after > best:
                best = after
            else:
                replicated[i, d] = False
    return Replication("algorithm 1", replicated, best)


def _by_continuity(problem: ModuleProblem, replicated: BoolArray, d: int) -> list[int]:
    """Return the layers that may be copied to device ``d``, in order of preference.

    Layers with the fewest copies come first. Among them, layers of the longest run of such layers
    come first, and then layers with a low index. ``replicated [n, D]`` are the copies so far.
    """
    copies = replicated.sum(axis=1)
    order: list[tuple[int, int, int]] = []  # copies, length of the run (negative), layer
    allowed = (problem.home != d) & ~replicated[:, d]
    start = 0  # of the run: consecutive layers, all or none allowed, with equal numbers of copies
    for end in range(1, allowed.size + 1):
        run_ends = end == allowed.size
        if run_ends or allowed[end] != allowed[start] or copies[end] != copies[start]:
            if allowed[start]:
                order += [(int(copies[start]), start - end, layer) for layer in range(start, end)]
            start = end
    return [layer for _, _, layer in sorted(order)]


def optimum(problem: ModuleProblem, *, time_limit_s: float = 10.0) -> Replication:
    """Return the copies with the largest speed-up by an integer program, and its bound.

    It minimizes the time of a pass, in times of one layer at home: 1 / p for a layer with p copies,
    and ``gamma`` for each run of consecutive copied layers. If the time limit ends the search
    early, the better of its plan and that of ``algorithm1`` is returned. Raises ``SimulationError``
    if the devices have different speeds.
    """
    if np.ptp(problem.speed) > 0:
        raise SimulationError("The exact replication plan needs devices of equal speed.")
    n, devices = problem.home.size, problem.free_bytes.size
    cost, constraint, upper = _integer_program(problem)
    result = scipy.optimize.milp(
        cost,
        constraints=constraint,
        integrality=np.r_[np.ones(n * devices), np.zeros(cost.size - n * devices)],
        bounds=scipy.optimize.Bounds(0.0, upper),
        options={"time_limit": time_limit_s, "mip_rel_gap": 0.0},
    )
    greedy = algorithm1(problem)
    # The objective is the change of the time of a pass, which is n without copies.
    bound = None if result.mip_dual_bound is None else n / (n + result.mip_dual_bound)
    if result.x is None:
        return Replication("algorithm 1", greedy.replicated, greedy.speedup, bound)
    replicated = result.x[: n * devices].reshape(n, devices) > 0.5
    gained = speedup(problem, replicated)
    # A time limit may leave the solver with a worse plan than the greedy one.
    if greedy.speedup > gained:
        return Replication("algorithm 1", greedy.replicated, greedy.speedup, bound)
    return Replication("exact", replicated, gained, max(gained, bound or gained))


def _integer_program(
    problem: ModuleProblem,
) -> tuple[FloatArray, "scipy.optimize.LinearConstraint", FloatArray]:
    """Return the cost of each variable, the constraints, and the upper bound of each variable.

    There are three blocks of variables: layer i is copied to device d, a run begins there, and
    layer i has a further copy k. Variables of a block are in order of layers, then d or k. A run
    costs ``gamma``. Copy k saves 1 / (k + 1) - 1 / (k + 2). That falls with k, so the solver uses a
    layer's further copies in their order.
    """
    n, devices = problem.home.size, problem.free_bytes.size
    saved = np.array([1.0 / (k + 1) - 1.0 / (k + 2) for k in range(devices - 1)])
    cost = np.r_[np.zeros(n * devices), np.full(n * devices, problem.gamma), -np.tile(saved, n)]
    upper = np.ones(cost.size)
    upper[np.arange(n) * devices + problem.home] = 0.0  # the home of a layer has the original
    high = np.r_[problem.fitting_copies, np.full(n * devices, np.inf), np.zeros(n)]
    matrix = _constraint_matrix(n, devices)
    constraint = scipy.optimize.LinearConstraint(matrix, np.zeros(high.size), high)
    return cost, constraint, upper


def _constraint_matrix(n: int, devices: int) -> "scipy.sparse.csr_array":
    """Return the constraints for ``n`` layers as a matrix, over the variables of the program.

    Its three columns of blocks are the three blocks of variables of ``_integer_program``: copies,
    begins of runs, and further copies.
    """
    eye, kron = scipy.sparse.eye_array, scipy.sparse.kron
    all_copies = eye(n * devices)
    copy_of_layer_before = kron(eye(n, k=-1), eye(devices))
    copies_of_layer = kron(eye(n), np.ones((1, devices)))
    further_copies_of_layer = kron(eye(n), np.ones((1, devices - 1)))
    rows = [
        # The copies on a device fit into its memory.
        [kron(np.ones((1, n)), eye(devices)), None, None],
        # A run begins if the layer is copied and the one before it is not.
        [copy_of_layer_before - all_copies, all_copies, None],
        # A layer has as many further copies as devices with one.
        [copies_of_layer, None, -further_copies_of_layer],
    ]
    return scipy.sparse.block_array(rows, format="csr")
