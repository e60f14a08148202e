"""Plan a service at each level: by whole replicas, by modules and by operators.

Operator times come from imported kernel measurements, or else from peaks and efficiency factors.
Interference is the slowdown of operators that share a GPU. It comes from measurements in the
imported files, else from ours (H100, H200), else from a published table (A100), else from the
physical model.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Literal, get_args

import numpy as np

from planner.domain.random_streams import Stream, generator
from planner.errors import CatalogueError, ScenarioError
from planner.inputs import catalogue
from planner.inputs.catalogue.estimate_calibration import efficiencies
from planner.inputs.catalogue.hardware import gpu_known_as
from planner.inputs.catalogue.interference import (
    EVEN_SHARE,
    INTERFERENCE_FILE,
    INTERFERENCE_SOURCE,
    published_interference,
)
from planner.inputs.catalogue.power import power_model
from planner.inputs.profiles.kernel_files import KernelFile, Sharing, read_kernels
from planner.inputs.scenario.user_facts import UserFacts
from simulation.arrays import IntArray
from simulation.errors import SimulationError
from simulation.performance.kernel_tables import Kernels, kernels
from simulation.performance.memory import MEMORY_SHARE
from simulation.performance.roofline import OperatorTiming
from simulation.performance.specs import GpuSpec
from simulation.provisioning.device_sharing import with_batch_wait
from simulation.provisioning.interference import InterferenceTable
from simulation.provisioning.level import Level
from simulation.provisioning.level_confirmation import Confirmation
from simulation.provisioning.levels import ALGORITHM1, LEVELS, PRINTED, model_level, plan_level
from simulation.provisioning.replay import LevelReplay, Requests, can_replay, draw_requests
from simulation.provisioning.workload import (
    Order,
    PhaseLoad,
    PhaseProblem,
    phase_problem,
    with_max_replicas,
)

BATCHES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
PARALLEL = (1, 2, 4, 8)
REPLICAS = (64, 512, 2048)  # limits on replicas per operator; the first sufficient one is used
DRAWN = 4_000  # requests whose lengths ``Judge.log_normal`` draws
DRAWS = 1_000_003  # distance between the seeds of two draws of requests
REPLICA_MARGIN = 1.5  # a limit suffices at this many times the mean busy replicas of one GPU
FREE, COUNTED = "free", "counted"  # whether the time to fill a batch counts as latency
BatchWait = Literal["free", "counted"]
Orders = Literal["fcfs", "shortest", "best"]
AUTO, MODELLED = "auto", "modelled"
Source = Literal["auto", "modelled"]
SOURCES: tuple[Source, ...] = get_args(Source)  # named in the API's schema (settings)
# Kinds of operators in efficiency factors and interference, by the kernel names of a file.
KIND_OF = {"norm": "elementwise", "activation": "elementwise", "rope": "elementwise"}


@dataclass(frozen=True, slots=True, eq=False)
class Measurements:
    """Measured operator times and interference on one GPU type; None if not measured."""

    kernels: Kernels | None = None
    interference: InterferenceTable | None = None
    times: float = 1.0  # factor on operator times, to match the scenario's own profile


NO_MEASUREMENTS = Measurements()


def measured_on(
    user_facts: UserFacts, gpus: Iterable[str], *, timing: str = AUTO, interference: str = AUTO
) -> dict[str, Measurements]:
    """Return the measurements of each GPU type in ``gpus``, by its name.

    They come from the user's kernel files in ``user_facts``. If ``timing`` or ``interference`` is
    ``modelled``, those measurements are left out. Raises CatalogueError if a file was removed.
    """
    shapes = {name: catalogue.model(name).shape for name in catalogue.models()}
    shapes |= {name: spec.shape for name, spec in user_facts.models.items()}
    specs = {name: catalogue.gpu(name) for name in catalogue.gpus()} | dict(user_facts.gpus)
    files: dict[Path, KernelFile] = {}
    measured = {}
    for gpu in dict.fromkeys(gpus):
        uploads = user_facts.kernels.get(gpu, ())
        for upload in uploads:
            if not upload.path.exists():
                raise CatalogueError(
                    f"The measured kernels of {upload.name} have been removed since. Start the run "
                    "again."
                )
            if upload.path not in files:
                files[upload.path] = read_kernels(
                    upload.path,
                    shapes={name: shape for name, shape in shapes.items() if shape is not None},
                    gpus=specs,
                    name=upload.name,
                    format=upload.format,
                )
        gpu_files = [files[upload.path] for upload in uploads]
        kernel_rows = [row for file in gpu_files for row in file.by_gpu.get(gpu, [])]
        sharing_rows = [row for file in gpu_files for row in file.sharing if row.gpu == gpu]
        source = "; ".join(upload.source for upload in uploads)
        table = None
        if interference == AUTO:
            table = _interference_of(gpu, sharing_rows, source)
        times = kernels(gpu, source, kernel_rows) if kernel_rows and timing == AUTO else None
        measured[gpu] = Measurements(times, table)
    return measured


def _interference_of(
    gpu: str, uploaded: Sequence[Sharing], source: str
) -> InterferenceTable | None:
    """Return the interference on a GPU type: uploaded, else shipped, else published; else None.

    ``uploaded`` are the user's measured rows on that type, from ``source``.
    """
    if uploaded:
        return interference_table(gpu, source, uploaded)
    name = gpu_known_as(gpu)
    shipped = [row for row in _shipped_interference().sharing if row.gpu == name]
    if shipped:
        return interference_table(gpu, INTERFERENCE_SOURCE, shipped)
    return published_interference(gpu)


@cache
def _shipped_interference() -> KernelFile:
    """Return the measured slowdowns on shared GPUs that are part of this product."""
    return read_kernels(INTERFERENCE_FILE, shapes={}, gpus={}, name=INTERFERENCE_FILE.name)


def interference_table(gpu: str, source: str, sharing: Sequence[Sharing]) -> InterferenceTable:
    """Return the slowdowns of operators that share a GPU, from the measured rows in ``sharing``.

    A slowdown is the median of all rows with the same two kinds of operators. If several divisions
    of the GPU's SMs were measured, the one nearest to half is used. Rows without a second operator
    give the slowdowns of an operator that runs alone on a share of the SMs. ``source`` is named in
    results.
    """
    # Slowdowns by kinds of the operator and of the other one ("": none), and by share of SMs.
    slowdowns: dict[tuple[str, str], dict[float, list[float]]] = {}
    for row in sharing:
        other = row.concurrent_with.partition(":")[0] if row.concurrent_with else ""
        pair = KIND_OF.get(row.op, row.op), KIND_OF.get(other, other)
        slowdowns.setdefault(pair, {}).setdefault(row.sm_share, []).append(row.slowdown)
    # Operators that run alone on a share: median slowdown by kind, then by share of SMs.
    alone: dict[str, dict[float, float]] = {}
    for (kind, other), by_share in slowdowns.items():
        if not other:
            alone[kind] = {share: float(np.median(by_share[share])) for share in sorted(by_share)}
    curves = {kind: (tuple(curve), tuple(curve.values())) for kind, curve in alone.items()}
    # Operators that share: median slowdown by pair of kinds, at the share nearest to half.
    pairs, reserved = {}, {}
    for (kind, other), by_share in slowdowns.items():
        if not other:
            continue
        share = min(by_share, key=lambda share: abs(share - EVEN_SHARE))
        pairs[kind, other] = float(np.median(by_share[share]))
        if share in alone.get(kind, {}):
            # What the other operator adds, beyond having only this share of the GPU.
            reserved[kind, other] = pairs[kind, other] / alone[kind][share]
    return InterferenceTable(gpu, source, pairs, curves, reserved)


@dataclass(frozen=True, slots=True)
class Rules:
    """Options for planning by replicas, modules and operators.

    With ``batch_wait`` "counted", latency includes the time to fill a batch, and the largest batch
    is chosen with each plan. With ``shared``, a GPU may run several operators at once. ``order`` is
    the order in which waiting prompts are served. "best" is the order that needs fewer GPUs in the
    replay.
    """

    levels: tuple[str, ...]
    method: str = "greedy"
    batch_wait: str = FREE
    shared: bool = True
    proofs: bool = True  # compute lower bounds on GPUs
    epsilon: float = 0.0  # tolerance of Algorithm 1, as a share of the limit
    order: Orders = "fcfs"


@dataclass(frozen=True, slots=True, eq=False)
class Judge:
    """The requests to replay a plan with, and the target that it must attain.

    ``isl`` and ``osl`` are lengths in tokens. ``attainment`` is the share of replayed requests that
    must meet the limit. ``seed`` is that of the replays.
    """

    isl: IntArray
    osl: IntArray
    attainment: float
    seed: int

    @classmethod
    def log_normal(
        cls, isl: tuple[float, float], osl: tuple[float, float], attainment: float, seed: int
    ) -> Judge:
        """Return a judge with log-normal lengths.

        ``isl`` and ``osl`` are each (mean, standard deviation over the mean), in tokens.
        """
        rng = generator(seed, Stream.LENGTHS)
        lengths = []
        for mean, variation in (isl, osl):
            # The sigma of a log-normal distribution with this coefficient of variation.
            sigma = np.sqrt(np.log1p(variation**2))
            draws = rng.lognormal(0.0, sigma, DRAWN)
            lengths.append(np.maximum(mean * draws / draws.mean(), 1).astype(np.int64))
        input_tokens, output_tokens = lengths
        return cls(input_tokens, output_tokens, attainment, seed)


def usable_bytes(gpu: GpuSpec) -> float:
    """Return the memory of one GPU that an engine may use, in bytes."""
    return MEMORY_SHARE * gpu.memory_bytes


def solve_levels(
    service: PhaseLoad,
    weights: str,
    rules: Rules,
    measured: Measurements = NO_MEASUREMENTS,
    judge: Judge | None = None,
) -> tuple[PhaseProblem, dict[str, Level]]:
    """Return the planning problem of a service, and its plan at each level.

    Levels are "model" (whole replicas), "module" and "operator". There are no plans if whole
    replicas cannot meet the limit. With a ``judge``, plans meet the limit for the required share of
    replayed requests. Without one, they meet it on average. ``weights`` is the precision.
    """
    device_bytes = usable_bytes(service.gpu)
    phase = with_ample_replicas(problem_of(service, weights, measured=measured))
    if rules.batch_wait == FREE and judge is not None and can_replay(phase):
        return _confirmed_levels(phase, device_bytes, rules, judge)
    if rules.batch_wait == FREE:
        levels = _level_chain(phase, device_bytes, rules)
    else:
        levels = _levels_with_batch_wait(phase, device_bytes, rules)
    return phase, {name: levels[name] for name in LEVELS if name in levels}


def _levels_with_batch_wait(
    phase: PhaseProblem, device_bytes: float, rules: Rules
) -> dict[str, Level]:
    """Return the best plan at each level if latency includes the time to fill a batch, by level.

    The largest batch is chosen with each plan. Levels without a plan are left out.
    """
    levels: dict[str, Level] = {}
    for name in dict.fromkeys((*rules.levels, "model")):

        def plan_within(limited: PhaseProblem, name: str = name) -> Level | None:
            """Return the plan at this level for the problem with a limit on the batch."""
            only_this_level = replace(rules, levels=(name,), proofs=False)
            return _level_chain(limited, device_bytes, only_this_level).get(name)

        level_and_batch = with_batch_wait(phase, plan_within)
        if level_and_batch is not None:
            level, batch = level_and_batch
            method = f"{level.method}, batches of at most {batch}"
            levels[name] = replace(level, method=method)
    return levels


def _confirmed_levels(
    phase: PhaseProblem, device_bytes: float, rules: Rules, judge: Judge
) -> tuple[PhaseProblem, dict[str, Level]]:
    """Return the problem with the best order of waiting prompts, and its replayed plans by level.

    The best order needs the fewest devices; among equals, it is first come, first served ("fcfs").
    A phase without queues (all sequences decode together) has that order. ``device_bytes`` is the
    usable memory of a GPU.
    """
    draws = draw_replay_requests(phase, judge)
    orders: tuple[Order, ...] = ("fcfs",)
    if phase.queues:
        orders = ("fcfs", "shortest") if rules.order == "best" else (rules.order,)
    problems: dict[Order, PhaseProblem] = {}
    levels_by_order: dict[Order, dict[str, Level]] = {}
    for order in orders:
        problem = replace(phase, service=replace(phase.service, order=order))
        replay = LevelReplay(problem, draws, device_bytes)
        confirmation = Confirmation(problem, replay, judge.attainment)
        levels = _level_chain(problem, device_bytes, rules, confirmation)
        problems[order] = problem
        levels_by_order[order] = {name: levels[name] for name in LEVELS if name in levels}

    def fewest_devices(order: Order) -> float:
        """Return the fewest devices of any level whose replay meets the attainment target."""
        confirmed = [
            level.devices for level in levels_by_order[order].values()
            if level.replayed is not None and level.replayed.attainment >= judge.attainment
        ]  # fmt: skip
        return min(confirmed, default=np.inf)

    best = min(orders, key=fewest_devices)
    levels = levels_by_order[best]
    if best != "fcfs" and "fcfs" in orders:
        # For comparison, each plan also states the devices that it would need in order of arrival.
        first_come = levels_by_order["fcfs"]
        for name in levels.keys() & first_come.keys():
            levels[name] = replace(levels[name], fcfs_devices=first_come[name].devices)
    return problems[best], levels


def draw_replay_requests(phase: PhaseProblem, judge: Judge) -> list[Requests]:
    """Draw two sets of requests with the lengths of ``judge`` for the replays of ``phase``."""
    return [
        draw_requests(judge.isl, judge.osl, phase, seed=judge.seed + DRAWS * i) for i in range(2)
    ]


def with_ample_replicas(phase: PhaseProblem) -> PhaseProblem:
    """Return ``phase`` with a limit on an operator's replicas that does not restrict plans.

    It is the smallest of ``REPLICAS`` that exceeds the mean busy replicas of one GPU by the factor
    ``REPLICA_MARGIN``, for every operator, or else the largest.
    """
    problem = phase.problem
    batches_per_s = problem.rate / problem.batches[:, None]  # [batch, 1]
    busy_replicas = (
        batches_per_s * problem.latency_s
    )  # [operator, batch, parallel], by Little's law
    busy_on_one_gpu = busy_replicas[:, :, 0].min(axis=1)  # [operator], at the best batch
    needed = REPLICA_MARGIN * float(busy_on_one_gpu.max()) + 1.0
    large_enough = [limit for limit in REPLICAS if limit >= needed]
    return with_max_replicas(phase, large_enough[0] if large_enough else REPLICAS[-1])


def _level_chain(
    phase: PhaseProblem,
    device_bytes: float,
    rules: Rules,
    confirmation: Confirmation | None = None,
) -> dict[str, Level]:
    """Return the plans at each of ``rules.levels``, by level.

    They are made from the coarsest level (whole replicas) to the finest (operators). A coarser plan
    is also valid at a finer level, so each level has the best of all plans so far. With a
    ``confirmation``, replays confirm the plans. ``device_bytes`` is the usable memory of a GPU.
    """
    whole = confirmation.whole_replicas() if confirmation else model_level(phase, device_bytes)
    levels = {} if whole is None else {"model": whole}
    if rules.method in (ALGORITHM1, PRINTED):
        return levels | _source_plans(phase, device_bytes, rules, confirmation)
    coarser = list(levels.values())
    for name in ("module", "operator"):
        # Operators are compared with a plan by modules, even if none is wanted.
        if name not in rules.levels and "operator" not in rules.levels:
            continue
        level = _best_level(name, phase, device_bytes, rules, coarser, confirmation)
        if level is not None:
            coarser.append(level)
            if name in rules.levels:
                levels[name] = level
    return levels


def _source_plans(
    phase: PhaseProblem, device_bytes: float, rules: Rules, confirmation: Confirmation | None
) -> dict[str, Level]:
    """Return the plans by Algorithm 1 of the source at each of ``rules.levels``, by level.

    They are taken as they are: no coarser plan replaces one.
    """
    plans: dict[str, Level] = {}
    for name in ("module", "operator"):
        if name not in rules.levels:
            continue
        level = plan_level(
            name, phase, device_bytes, method=rules.method, shared=rules.shared,
            proofs=rules.proofs, epsilon=rules.epsilon,
        )  # fmt: skip
        if level is not None:
            plans[name] = confirmation.replayed(level) if confirmation else level
    return plans


def _best_level(
    name: str,
    phase: PhaseProblem,
    device_bytes: float,
    rules: Rules,
    coarser: Sequence[Level],
    confirmation: Confirmation | None,
) -> Level | None:
    """Return the best plan at the level ``name``, which may be one of the ``coarser`` levels.

    A level that is not wanted is planned by the fast method, and without proofs.
    """
    is_wanted = name in rules.levels
    method = rules.method if is_wanted else "greedy"
    plan_of = partial(  # of a problem
        plan_level, name, device_bytes=device_bytes, method=method, shared=rules.shared,
        coarser=tuple(coarser), proofs=rules.proofs and is_wanted, epsilon=rules.epsilon,
    )  # fmt: skip
    if confirmation is None:
        return plan_of(phase)
    level = confirmation.level(name, coarser, plan_of)
    if level is not None and name == "operator" and rules.shared:
        # Operators that are confined to shares of a GPU may be better in a replay.
        return confirmation.operators_in_shares([*coarser, level], plan_of) or level
    return level


def problem_of(
    service: PhaseLoad,
    weights: str,
    *,
    max_replicas: int = REPLICAS[0],
    measured: Measurements = NO_MEASUREMENTS,
) -> PhaseProblem:
    """Return the planning problem of one phase (prefill or decode) of a service.

    An operator may run on p GPUs, for each p of ``PARALLEL`` that fits in a node and divides the
    number of attention heads. ``weights`` is the precision. Raises ScenarioError if the problem
    cannot be built.
    """
    gpu = service.gpu
    parallel = [p for p in PARALLEL if p <= gpu.gpus_per_node and service.shape.heads % p == 0]
    try:
        phase = phase_problem(
            service,
            timing_of(gpu, measured),
            batches=BATCHES,
            parallel=parallel,
            weights=weights,
            power=power_model(gpu) if gpu.tdp_w else None,
            interference=measured.interference,
        )
    except SimulationError as error:
        raise ScenarioError(f"gpus: {error}") from None
    return with_max_replicas(phase, max_replicas)


def timing_of(gpu: GpuSpec, measured: Measurements = NO_MEASUREMENTS) -> OperatorTiming:
    """Return how operators are timed: by measured kernels, else by GPU peaks times efficiency."""
    return OperatorTiming(gpu, efficiencies(), measured.kernels, measured.times)
