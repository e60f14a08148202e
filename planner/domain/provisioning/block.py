"""Plan a block of operators that the user chose by every method, and replay the plans."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from planner.domain.provisioning.algorithm1_comparison import WORDS
from planner.domain.provisioning.levels import Judge, draws_of
from planner.errors import ScenarioError
from simulation.errors import SimulationError
from simulation.performance.memory import MEMORY_SHARE
from simulation.provisioning.level import ReplayedLatency
from simulation.provisioning.operator_block import (
    Block,
    BlockPlan,
    Choices,
    block_of,
    length_factors,
    plans_of,
    replay_block,
)
from simulation.provisioning.replay import LevelReplay, can_replay
from simulation.provisioning.workload import PhaseProblem


@dataclass(frozen=True, slots=True)
class BlockOptions:
    """The operators of a block by name, and the choices for each."""

    operators: tuple[str, ...]
    choices: Choices

    @property
    def batches(self) -> tuple[int, ...]:
        """Return the batch sizes, with 1, from which the block's part of a pass is computed."""
        return tuple(sorted({1, *self.choices.batches}))


@dataclass(frozen=True, slots=True)
class BlockChoice:
    """The configuration of one operator."""

    operator: str
    replicas: int
    batch: int
    gpus: int
    sm_share: float  # share of the multiprocessors of each of its GPUs


@dataclass(frozen=True, slots=True)
class BlockMethod:
    """The plan of one method; None: no plan within the limit, or no replay."""

    method: str
    gpus: float | None  # equation 8, counted in shares of GPUs
    above: float | None  # excess over the method with the fewest, as a share
    latency_ms: float | None
    devices: int | None  # GPUs after placement by share and memory
    mean_ms: float | None  # this and the next two: of requests in the replay
    p95_ms: float | None
    attainment: float | None
    operators: tuple[BlockChoice, ...]


@dataclass(frozen=True, slots=True)
class BlockFigures:
    """The results of all methods on a block."""

    operators: tuple[str, ...]
    slo_ms: float | None  # the block's part of the limit
    plans: float | None  # number of possible plans
    replicas: int | None  # most replicas of an operator
    methods: tuple[BlockMethod, ...]
    refused: str  # why there is no plan; "": there are plans


def check_operators(options: BlockOptions | None, phases: Iterable[PhaseProblem]) -> None:
    """Check the operator names; raise ScenarioError for one that no phase has."""
    operator_names = dict.fromkeys(name for phase in phases for name in phase.problem.names)
    for name in options.operators if options else ():
        if name not in operator_names:
            raise ScenarioError(
                f"block: no operator is named {name!r}; there are: {', '.join(operator_names)}."
            )


def block_figures(
    phase: PhaseProblem, options: BlockOptions, judge: Judge | None, epsilon: float
) -> BlockFigures | None:
    """Return the results of all methods for a phase; None: it has none of the operators."""
    operators = tuple(name for name in phase.problem.names if name in options.operators)
    if not operators:
        return None
    room = MEMORY_SHARE * phase.service.gpu.memory_bytes
    replay, times = None, None
    if judge is not None and can_replay(phase):
        replay = LevelReplay(phase, draws_of(phase, judge), room)
        times = length_factors(phase, replay)
    try:
        block = block_of(phase, operators, options.choices, room, times)
    except SimulationError as error:
        return BlockFigures(operators, None, None, None, (), str(error))
    plans = plans_of(block, epsilon)
    # Several methods may find the same plan: replay it once.
    replayed_by_plan: dict[bytes, tuple[ReplayedLatency, int]] = {}
    for plan_found in plans:
        if (
            replay is not None
            and plan_found.plan is not None
            and plan_found.key not in replayed_by_plan
        ):
            replayed_by_plan[plan_found.key] = replay_block(block, plan_found, replay)
    fewest = min(
        (plan_found.plan.slots for plan_found in plans if plan_found.plan is not None), default=0
    )
    return BlockFigures(
        operators,
        block.problem.slo_s * 1e3,
        block.plans,
        block.problem.max_replicas,
        tuple(
            _method(block, plan_found, fewest, replayed_by_plan.get(plan_found.key))
            for plan_found in plans
        ),
        "",
    )


def _method(
    block: Block, plan_found: BlockPlan, fewest: int, replayed: tuple[ReplayedLatency, int] | None
) -> BlockMethod:
    """Return the figures of one plan of the block."""
    name = WORDS[plan_found.method]
    plan = plan_found.plan
    if plan is None:
        return BlockMethod(name, None, None, None, None, None, None, None, ())
    replayed_by_plan, devices = replayed or (None, None)
    return BlockMethod(
        method=name,
        gpus=plan.slots * block.unit,
        above=plan.slots / fewest - 1.0,
        latency_ms=plan.latency_s * 1e3,
        devices=devices,
        mean_ms=None if replayed_by_plan is None else replayed_by_plan.mean_s * 1e3,
        p95_ms=None if replayed_by_plan is None else replayed_by_plan.p95_s * 1e3,
        attainment=None if replayed_by_plan is None else replayed_by_plan.attainment,
        operators=tuple(
            BlockChoice(
                operator,
                int(plan.replicas[v]),
                int(plan.batch[v]),
                int(block.gpus[plan_found.places[v]]),
                float(block.share[plan_found.places[v]]),
            )
            for v, operator in enumerate(block.problem.names)
        ),
    )
