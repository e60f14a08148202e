"""Plan operators by Algorithm 1 of the source, our greedy method and the exact optimum."""

from dataclasses import dataclass, replace

from planner.domain.provisioning.levels import Judge, draw_replay_requests, usable_bytes
from simulation.provisioning.energy import energy_of_pass
from simulation.provisioning.level import Level, ReplayedLatency
from simulation.provisioning.levels import ALGORITHM1, PRINTED, plan_level
from simulation.provisioning.replay import LevelReplay, can_replay
from simulation.provisioning.workload import PhaseProblem

WORDS = {
    ALGORITHM1: "Algorithm 1 of Cui et al., corrected",
    PRINTED: "Algorithm 1 of Cui et al., as published",
    "greedy": "Headroom's greedy",
    "exact": "exact optimum",
}


@dataclass(frozen=True, slots=True)
class OperatorChoice:
    """The configuration of one operator."""

    operator: str
    replicas: int
    batch: int
    gpus: int  # GPUs per replica
    pass_j: float  # energy of a pass of its batch (equation 9)


@dataclass(frozen=True, slots=True)
class Method:
    """The operator plan of one method, with its replay.

    Figures of the plan are None if there is none, figures of the replay if it is not replayed.
    """

    method: str
    slots: int | None = None  # GPUs of all replicas of all operators (equation 8)
    gpus: int | None = None  # after placement
    least_gpus: int | None = None  # proven bound
    latency_ms: float | None = None
    power_w: float | None = None
    mean_ms: float | None = None  # mean and p95 latency of the replayed requests
    p95_ms: float | None = None
    attainment: float | None = None
    operators: tuple[OperatorChoice, ...] = ()

    @property
    def gap(self) -> float | None:
        """Return the share of GPUs above the proven bound; None without a plan or a bound."""
        if self.gpus is None or self.least_gpus is None:
            return None
        return (self.gpus - self.least_gpus) / self.gpus


def methods_of(phase: PhaseProblem, judge: Judge | None, epsilon: float) -> tuple[Method, ...]:
    """Return the operator plan of every method for ``phase``, placed on GPUs and replayed.

    A plan is reported even if whole replicas need fewer GPUs. ``judge`` has the requests to replay;
    None: plans are not replayed. ``epsilon`` is the tolerance of Algorithm 1, as a share of the
    limit.
    """
    device_bytes = usable_bytes(phase.service.gpu)
    replay = None
    if judge is not None and can_replay(phase):
        replay = LevelReplay(phase, draw_replay_requests(phase, judge)[:1], device_bytes)
    replayed: dict[bytes, ReplayedLatency] = {}  # methods often find the same plan
    methods = []
    for name in WORDS:
        level = plan_level("operator", phase, device_bytes, method=name, epsilon=epsilon)
        if level is not None and level.plan is not None and replay is not None:
            key = level.plan.key
            if key not in replayed:
                replayed[key] = replay.latency_of(level)
            level = replace(level, replayed=replayed[key])
        methods.append(_figures(WORDS[name], phase, level))
    return tuple(methods)


def _figures(name: str, phase: PhaseProblem, level: Level | None) -> Method:
    """Return the figures of the plan that the method ``name`` found, and of its replay.

    ``level`` is that plan placed on devices; None if the method found none. Then all figures are
    empty. Those of the replay are empty if the plan was not replayed.
    """
    if level is None or level.plan is None:
        return Method(name)
    plan, replayed = level.plan, level.replayed
    joules = energy_of_pass(phase.problem, phase.power, plan)
    method = Method(
        name,
        slots=plan.slots,
        gpus=level.devices,
        least_gpus=level.least_devices,
        # Replayed latencies already include the time before the first iteration.
        latency_ms=1e3 * (level.latency_s + phase.service.start_s),
        power_w=level.power_w,
        operators=tuple(
            OperatorChoice(
                operator=operator,
                replicas=int(plan.replicas[v]),
                batch=int(plan.batch[v]),
                gpus=int(plan.parallel[v]),
                pass_j=float(joules[v]),
            )
            for v, operator in enumerate(phase.problem.names)
        ),
    )
    if replayed is None:
        return method
    mean_ms, p95_ms = 1e3 * replayed.mean_s, 1e3 * replayed.p95_s
    return replace(method, mean_ms=mean_ms, p95_ms=p95_ms, attainment=replayed.attainment)
