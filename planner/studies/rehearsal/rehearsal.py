"""Every policy that can be run, rehearsed on the days before the window (methods.md X1, X5): its
one parameter is chosen there, and so is the policy to take."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import cached_property, partial

import numpy as np

from planner.errors import EXPECTED
from planner.policies.base import Policy
from planner.policies.making import Plan
from planner.studies.plain import moment
from planner.studies.planning.inputs import Planned
from planner.studies.planning.planning import plan_window
from planner.studies.progress import Progress, part, silent
from planner.studies.random_streams import Stream, generator
from planner.studies.rehearsal.harder import Harder, lengthened, outlasting
from planner.studies.rehearsal.strays import FEW, STRAYS, by_what_it_sees, repeats, unlike, unseen
from planner.studies.rehearsal.tuning import Trial, tuned
from planner.studies.replay.earlier import Earlier
from planner.studies.replay.equal import FlatFleets
from planner.studies.replay.pressure import PressureTests
from planner.studies.replay.replay import run_policy
from planner.studies.traffic.busier import times
from planner.studies.values import PolicyRun, Study

SETTLED = 24  # start-ups after which a fleet no longer shows what it began with (assumed)


@dataclass(frozen=True, slots=True)
class RehearsalWindow:
    start: datetime
    end: datetime
    requests: int


@dataclass(frozen=True, slots=True)
class Tried:
    """One value of a policy's parameter on the days before; figures are of the windows replayed,
    which end with the first that is missed. ``room``: whether it does on a day as busy as there has
    to be room for; None where that was not tried."""

    value: float | None
    cost_usd: float
    gpu_hours: float
    energy_kwh: float
    carbon_kg: float
    ttft_ms: float | None  # p95 of the slowest interactive tier, of the worst window
    e2e_ms: float | None
    attainment: tuple[dict[str, float | None], ...]  # by window
    meets: bool
    tokens_in_time: int
    room: bool | None = None


@dataclass(frozen=True, slots=True)
class Part:
    """One policy's rehearsal: what was chosen for it, and what it came to there."""

    policy: str
    label: str
    parameter: str | None  # None: it has none, or the scenario sets it
    value: float | None
    shortfall: float  # of the worst tier and window, below what is wanted with the reserve
    chosen: Tried
    tried: tuple[Tried, ...]

    @property
    def meets(self) -> bool:
        return self.chosen.meets

    @property
    def does(self) -> bool:
        """With room for growth, where any is asked for."""
        return self.meets and self.chosen.room is not False


@dataclass(frozen=True, slots=True)
class Room:
    """Room for growth: ``times`` the requests of the busiest window rehearsed, as seen on ``days``
    days before. ``label`` would be the cheapest without, at ``cost_usd`` on the windows rehearsed;
    ``had``: whether any policy has it."""

    times: float
    days: int
    label: str
    cost_usd: float
    had: bool


@dataclass(frozen=True, slots=True, eq=False)
class Rehearsal:
    """What was rehearsed where. ``wanted`` of each tier had to be attained, which leaves
    ``reserve`` of what it may miss over; ``attainable`` says whether any fleet meets every tier
    there."""

    windows: tuple[RehearsalWindow, ...]
    reserve: float
    wanted: dict[str, float]
    attainable: bool
    policies: tuple[Part, ...]
    notes: tuple[str, ...]
    longer: tuple[Harder, ...] = ()  # with longer answers, up to the cheapest that does
    room: Room | None = None  # for growth, where the days before tell of any

    def of(self, policy: str) -> Part | None:
        return next((part for part in self.policies if part.policy == policy), None)


@dataclass(eq=False)
class _Stage:
    """An earlier window with what its policies share."""

    study: Study
    whole: Earlier  # of the study that is rehearsed for
    seed: int
    _strayed: dict[float, Study] = field(default_factory=dict, init=False)  # by share

    @cached_property
    def tests(self) -> PressureTests:
        return PressureTests(self.study)

    @cached_property
    def planned(self) -> Planned:
        return plan_window(self.study.plan_input, silent)

    def replay(self, policy: Policy, alive: Progress) -> PolicyRun:
        """Where the window is short beside the time that a start takes, a policy that goes by what
        it sees is played a second time, from the fleet that the first left it with: the first may
        have lived off what it began with."""
        run = self._played(self.study, policy, alive)
        short = self.study.window.duration_s < SETTLED * self.study.hardware.startup_s
        same = len(run.fleet.pools) == len(self.study.hardware.pool_index)
        if short and same and by_what_it_sees(policy):
            return self._played(_left(self.study, run), policy, alive)
        return run

    def stray(self, policy: Policy, alive: Progress, share: float) -> PolicyRun:
        """With ``share`` times the requests."""
        return self._played(self.strayed(share), policy, alive)

    @cached_property
    def doubt(self) -> float:
        """The forecast's 90% quantile over what of it is planned for, at least 1: what a plan has
        room for already is not asked of it twice. With too little history for it, the most that
        any policy is tried with."""
        try:
            made = self.planned.forecasts
        except EXPECTED:
            return STRAYS[-1]
        high = sum(float(np.nansum(one.high)) for one in made)
        planned = sum(float(np.nansum(one.planned)) for one in made)
        return float(np.clip(high / planned, 1.0, STRAYS[-1])) if planned > 0 else 1.0

    def lengthened(self, policy: Policy, alive: Progress) -> PolicyRun:
        """With longer answers from half of the window on."""
        one = self.study
        trace = lengthened(one.trace, one.window.duration_s / 2)
        return self._played(replace(one, trace=trace), policy, alive)

    def strayed(self, share: float) -> Study:
        if share not in self._strayed:
            one, rng = self.study, generator(self.seed, Stream.STRAYS)
            trace = times(one.trace, share, one.window.bin_s, rng)
            self._strayed[share] = replace(one, trace=trace)
        return self._strayed[share]

    def _played(self, study: Study, policy: Policy, alive: Progress) -> PolicyRun:
        return run_policy(
            study,
            policy,
            seed=self.seed,
            progress=alive,
            planned=self.planned if policy.traits.plan == Plan() else None,
            tests=self.tests,
            earlier=self.whole,
            detailed=False,
        )


def _shares(policy: Policy, stages: Sequence[_Stage]) -> tuple[float, ...]:
    """How many times the requests of the first window ``policy`` has to do with as well, beyond
    what the other windows show already."""
    nearest, *others = (len(one.study.trace) / one.study.window.duration_s for one in stages)
    if repeats(policy):
        return unlike([other / nearest for other in others])
    if by_what_it_sees(policy):
        return unseen([other / nearest for other in others])
    decisions = sum(len(one.study.window.period_starts_s) for one in stages)
    if policy.traits.plan is None or decisions >= FEW or stages[0].doubt <= 1.0:
        return ()
    return (stages[0].doubt,)


def _left(study: Study, run: PolicyRun) -> Study:
    """The study with what ``run`` ended with as today's fleet."""
    today = np.zeros_like(study.today)
    up = np.rint(run.series.ready[:, -1] + run.series.starting[:, -1])
    for place, count in zip(study.hardware.pool_index, up, strict=True):
        today[place] = int(count)
    return replace(study, hardware=replace(study.hardware, today=today))


def rehearse(
    policies: Sequence[Policy], earlier: Earlier, *, seed: int, progress: Progress
) -> tuple[list[Policy], Rehearsal]:
    """``policies`` as they are to be run, those with a free parameter turned to what was chosen,
    and the rehearsal itself. What is sized in hindsight or told what came has none; what cannot be
    made on an earlier window is run as it is, with a note."""
    stages = [_Stage(one, earlier, seed) for one in earlier.studies]
    goals = earlier.goals(seed)
    busy = None if earlier.busier is None else _Stage(earlier.busier.study, earlier, seed)
    out: list[Policy] = []
    parts: list[Part] = []
    notes: list[str] = []
    turns: dict[str, Policy] = {}
    for i, policy in enumerate(policies):
        out.append(policy)
        if policy.traits.knows_what_came or not stages:
            continue
        step = part(progress, i / len(policies), (i + 1) / len(policies))
        step(0.0, f"Rehearsing: {policy.title}")
        alive = partial(_still, step, policy.title)
        windows = [partial(stage.replay, alive=alive) for stage in stages]
        strays = [partial(stages[0].stray, alive=alive, share=s) for s in _shares(policy, stages)]
        busier = None if busy is None else partial(busy.replay, alive=alive)
        try:
            turned, best, tried = tuned(policy, windows, goals.wanted, strays, busier)
        except EXPECTED as problem:
            notes.append(f"{policy.title} was not rehearsed on the days before: {problem}")
            continue
        out[-1] = turns[policy.key] = turned
        parts.append(_part(policy, best, tried, goals.can, busy is not None))
    last = partial(_still, part(progress, 1.0, 1.0), "harder days")
    windows_told = tuple(
        RehearsalWindow(
            moment(one.study.window.start_s), moment(one.study.window.end_s), len(one.study.trace)
        )
        for one in stages
    )
    roomy = any(one.does for one in parts)
    did = [
        (turns[one.policy], one.chosen.cost_usd)
        for one in parts
        if (one.does if roomy else one.meets)
    ]
    return out, Rehearsal(
        windows_told, earlier.reserve, goals.wanted, goals.can, tuple(parts), tuple(notes),
        outlasting(did, partial(stages[0].lengthened, alive=last)) if did else (),
        _room(parts, earlier, seed),
    )  # fmt: skip


def _room(parts: Sequence[Part], earlier: Earlier, seed: int) -> Room | None:
    """What room for growth is held against: the cheapest that met every tier, be it without."""
    if earlier.busier is None:
        return None
    costs = [(one.cost_usd, its.label) for its in parts for one in its.tried if one.meets]
    flat = next((its for its in parts if its.policy == "flat-before" and its.meets), None)
    if flat is not None:
        least = earlier.flat(seed, room=False)
        if (least != earlier.flat(seed)).any():
            fleets = [FlatFleets(one, least, seed) for one in earlier.studies]
            costs.append((sum(one.replay(least).cost_usd for one in fleets), flat.label))
    if not costs:
        return None
    usd, label = min(costs)
    rise = earlier.busier.rise
    return Room(rise.times, rise.days, label, usd, any(its.does for its in parts))


def _still(progress: Progress, title: str, done: float, what: str) -> None:
    """How far a policy's search is nobody knows; that it goes on is told."""
    progress(0.5, f"Rehearsing: {title}")


def _part(policy: Policy, best: Trial, tried: Sequence[Trial], can: bool, busy: bool) -> Part:
    knob = policy.free
    return Part(
        policy=policy.key,
        label=policy.title,
        parameter=None if knob is None else knob.field,
        value=best.value,
        shortfall=best.shortfall,
        chosen=_told(best, can, busy),
        tried=tuple(_told(trial, can, busy) for trial in tried),
    )


def _worst(values: Iterable[float | None]) -> float | None:
    return max((value for value in values if value is not None), default=None)


def _told(trial: Trial, can: bool, busy: bool) -> Tried:
    its = trial.summaries
    return Tried(
        value=trial.value,
        cost_usd=trial.cost_usd,
        gpu_hours=sum(one.gpu_hours for one in its),
        energy_kwh=sum(one.energy_kwh for one in its),
        carbon_kg=sum(one.carbon_kg for one in its),
        ttft_ms=_worst(trial.ttft_ms),
        e2e_ms=_worst(trial.e2e_ms),
        attainment=tuple(one.slo_attainment for one in its),
        meets=can and trial.meets,
        tokens_in_time=sum(one.tokens_in_time for one in its),
        room=trial.lacks == 0.0 if busy and trial.meets else None,
    )
