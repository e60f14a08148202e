"""Every policy that can be run, rehearsed on the days before the window (methods.md X1, X5): its
one parameter is chosen there, and so is the policy to take."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from threading import RLock

from planner.errors import EXPECTED
from planner.policies.base import Policy
from planner.studies.parts import IN_PROCESS, Part, Parts
from planner.studies.plain import moment
from planner.studies.progress import Progress, part, silent
from planner.studies.rehearsal.harder import Harder, outlasting
from planner.studies.rehearsal.stage import Stage, shares_of
from planner.studies.rehearsal.strays import STRAYS
from planner.studies.rehearsal.tuning import Trial, Tuning, TuningState
from planner.studies.replay.earlier import Earlier
from planner.studies.replay.equal import FlatFleets
from planner.studies.side_by_side import replays_at_once
from planner.studies.traffic.busier import Growth
from simulation.arrays import IntArray

UNREHEARSED = " was not rehearsed on the days before"


@dataclass(frozen=True, slots=True)
class RehearsalWindow:
    start: datetime
    end: datetime
    requests: int


@dataclass(frozen=True, slots=True)
class Tried:
    """One value of a policy's parameter on the days before; figures are of the windows replayed,
    which end with the first that is missed. ``costs_usd`` are by window, ``instance_usd`` is what
    one instance costs all the time on all of them, at the mean price of its own. ``room``: whether
    it does on a day as busy as there has to be room for; None where that was not tried, or there is
    none."""

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
    costs_usd: tuple[float, ...]
    instance_usd: float
    room: bool | None = None


@dataclass(frozen=True, slots=True)
class PolicyBacktest:
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
        """With room for growth, where any is asked for and that was tried."""
        return self.meets and self.chosen.room is not False


@dataclass(frozen=True, slots=True)
class Room:
    """Room for growth: ``times`` the requests of the busiest window rehearsed, as seen on ``days``
    days before, of the model that may grow most, and of each under ``models``. ``label`` would be
    the cheapest without, at ``cost_usd`` on the windows rehearsed; ``had``: whether any policy has
    it."""

    times: float
    days: int
    label: str
    cost_usd: float
    had: bool
    models: tuple[Growth, ...]


Leading = Callable[
    [Sequence[PolicyBacktest]], Collection[str]
]  # names of those about to be recommended


def everyone(parts: Sequence[PolicyBacktest]) -> Collection[str]:
    """Room for growth is tried with all of them."""
    return [rehearsed.policy for rehearsed in parts]


@dataclass(frozen=True, slots=True, eq=False)
class Rehearsal:
    """What was rehearsed where. ``wanted`` of each tier had to be attained, which leaves
    ``reserve`` of what it may miss over; ``attainable`` says whether any fleet meets every tier
    there."""

    windows: tuple[RehearsalWindow, ...]
    reserve: float
    wanted: dict[str, float]
    attainable: bool
    policies: tuple[PolicyBacktest, ...]
    notes: tuple[str, ...]
    longer: tuple[Harder, ...] = ()  # with longer answers, up to the cheapest that does
    unforeseen: tuple[Harder, ...] = ()  # likewise, with more requests than any forecast tells
    room: Room | None = None  # for growth, where the days before tell of any
    days: bool = True  # at the same time of day: not the stretch right before the window

    def without_notes_on(self, titles: Iterable[str]) -> Rehearsal:
        """Of policies that are left out of the comparison too, which says why once."""
        beginnings = tuple(f"{title}{UNREHEARSED}: " for title in titles)
        return replace(
            self, notes=tuple(note for note in self.notes if not note.startswith(beginnings))
        )

    def of(self, policy: str) -> PolicyBacktest | None:
        return next((part for part in self.policies if part.policy == policy), None)


@dataclass(eq=False)
class _Teller:
    """How far a search is nobody knows; that it goes on is told, or the user may not cancel it."""

    step: Progress
    title: str

    def __call__(self, done: float, what: str) -> None:
        self.step(0.5, f"Rehearsing: {self.title}")


@dataclass(frozen=True, slots=True, eq=False)
class Tuned:
    """What the backtest of one policy found, and the static fleets that it searched on the way."""

    state: TuningState
    flats: dict[tuple[int, bool], IntArray]


def rehearse(
    policies: Sequence[Policy],
    earlier: Earlier,
    *,
    seed: int,
    progress: Progress,
    leading: Leading = everyone,
    parts: Parts = IN_PROCESS,
) -> tuple[list[Policy], Rehearsal]:
    """``policies`` as they are to be run, those with a free parameter turned to what was chosen,
    and the rehearsal itself. What is sized in hindsight or told what came has none; what cannot be
    made on an earlier window is run as it is, with a note.

    Room for growth is tried with the policies that are ``leading`` as things stand, and again with
    those that lead then, until all that lead have been tried: room costs no less than none, so what
    is dearer without it would not lead with it either.
    """
    making = RLock()
    stages = [Stage(study, earlier, seed, making) for study in earlier.studies]
    goals = earlier.goals(seed)
    busy = None
    if earlier.busier is not None:
        busy = Stage(earlier.busier.study, earlier, seed, making)
    able = [policy for policy in policies if stages and not policy.traits.knows_what_came]
    tellers = {policy.key: _Teller(silent, policy.title) for policy in able}

    def tuning_of(policy: Policy, found: TuningState | None = None) -> Tuning:
        alive = tellers[policy.key]
        bars = goals.wanted if policy.free is not None else None  # of one value, how far it misses
        return Tuning(
            policy,
            [partial(stage.replay, alive=alive) for stage in stages],
            goals.wanted,
            [
                partial(stages[0].stray, alive=alive, share=share, bars=bars)
                for share in shares_of(policy, stages)
            ],
            None if busy is None else partial(busy.replay, alive=alive, bars=bars),
            found,
        )

    def tuned(policy: Policy, report: Progress) -> Tuned | str:
        tellers[policy.key].step = report
        tellers[policy.key](0.0, "")
        try:
            return Tuned(tuning_of(policy).state, earlier.flats)
        except EXPECTED as problem:
            return f"{policy.title}{UNREHEARSED}: {problem}"

    # The most to try first: then workers that share the parts end at about the same time.
    longest_first = sorted(able, key=lambda policy: -len(policy.free.values) if policy.free else 0)
    computed = parts.map(
        [Part(f"Backtest: {policy.title}", partial(tuned, policy)) for policy in longest_first],
        part(progress, 0.0, 0.7),
        at_once=replays_at_once(max((len(stage.study.trace) for stage in stages), default=0)),
    )
    outcomes = {policy.key: out for policy, out in zip(longest_first, computed, strict=True)}
    tunings: dict[str, Tuning] = {}
    notes: list[str] = []
    for policy in able:
        outcome = outcomes[policy.key]
        if isinstance(outcome, str):
            notes.append(outcome)
        else:
            tunings[policy.key] = tuning_of(policy, outcome.state)
            earlier.remember(outcome.flats)

    def make_room(several: Sequence[Tuning]) -> None:
        def grown(tuning: Tuning, report: Progress) -> TuningState:
            tellers[tuning.policy.key].step = report
            tuning.make_room()
            return tuning.state

        steps = [
            Part(f"Growth test: {tuning.policy.title}", partial(grown, tuning))
            for tuning in several
        ]
        for tuning, state in zip(
            several, parts.map(steps, part(progress, 0.85, 0.85)), strict=True
        ):
            tuning.resume(state)

    with_room(tunings, goals.can, leading, make_room)
    last = part(progress, 1.0, 1.0)
    did = list(tunings.values()) if goals.can else []
    longer = outlasting(
        did,
        lambda tuning: make_room([tuning]),
        lambda its, report: stages[0].lengthened(its, _Teller(report, its.title)),
        days=earlier.days,
        parts=parts,
        progress=last,
    )
    most = STRAYS[-1]
    unforeseen = outlasting(
        did,
        lambda tuning: make_room([tuning]),
        lambda its, report: stages[0].stray(its, _Teller(report, its.title), most),
        most,
        days=earlier.days,
        parts=parts,
        progress=last,
    )
    windows_told = tuple(
        RehearsalWindow(
            moment(stage.study.window.start_s),
            moment(stage.study.window.end_s),
            len(stage.study.trace),
        )
        for stage in stages
    )
    backtests = tuple(_backtest_of(tuning, goals.can) for tuning in tunings.values())
    turned = [
        tunings[policy.key].turned if policy.key in tunings else policy for policy in policies
    ]
    return turned, Rehearsal(
        windows_told, earlier.reserve, goals.wanted, goals.can, backtests, tuple(notes), longer,
        unforeseen, _room(backtests, earlier, seed), earlier.days,
    )  # fmt: skip


def with_room(
    tunings: Mapping[str, Tuning],
    can: bool,
    leading: Leading,
    make_room: Callable[[Sequence[Tuning]], None],
) -> None:
    """Room for growth made for all that lead, as ``rehearse`` says; whether any fleet ``can`` meet
    every tier."""
    while True:
        lead = leading([_backtest_of(tuning, can) for tuning in tunings.values()])
        # In a fixed order: ``lead`` may be a set, and all workers must hand out the same parts.
        untried = [its for name, its in tunings.items() if name in lead and not its.settled]
        if not untried:
            break
        make_room(untried)


def _room(parts: Sequence[PolicyBacktest], earlier: Earlier, seed: int) -> Room | None:
    """What room for growth is held against: the cheapest that met every tier, be it without."""
    if earlier.busier is None:
        return None
    costs = [(trial.cost_usd, its.label) for its in parts for trial in its.tried if trial.meets]
    flat = next((its for its in parts if its.policy == "flat-before" and its.meets), None)
    if flat is not None:
        least = earlier.flat(seed, room=False)
        if (least != earlier.flat(seed)).any():
            fleets = [FlatFleets(study, least, seed) for study in earlier.studies]
            costs.append((sum(fleet.replay(least).cost_usd for fleet in fleets), flat.label))
    if not costs:
        return None
    usd, label = min(costs)
    rise = earlier.busier.rise
    had = any(its.chosen.room for its in parts)
    return Room(rise.times, rise.days, label, usd, had, rise.models)


def _backtest_of(tuning: Tuning, can: bool) -> PolicyBacktest:
    policy, best = tuning.policy, tuning.best
    knob = policy.free
    return PolicyBacktest(
        policy=policy.key,
        label=policy.title,
        parameter=None if knob is None else knob.field,
        value=best.value,
        shortfall=best.shortfall,
        chosen=_tried(best, can),
        tried=tuple(_tried(trial, can) for trial in tuning.tried),
    )


def _worst(values: Iterable[float | None]) -> float | None:
    return max((value for value in values if value is not None), default=None)


def _tried(trial: Trial, can: bool) -> Tried:
    its = trial.summaries
    return Tried(
        value=trial.value,
        cost_usd=trial.cost_usd,
        gpu_hours=sum(summary.gpu_hours for summary in its),
        energy_kwh=sum(summary.energy_kwh for summary in its),
        carbon_kg=sum(summary.carbon_kg for summary in its),
        ttft_ms=_worst(trial.ttft_ms),
        e2e_ms=_worst(trial.e2e_ms),
        attainment=tuple(summary.slo_attainment for summary in its),
        meets=can and trial.meets,
        tokens_in_time=sum(summary.tokens_in_time for summary in its),
        costs_usd=trial.costs_usd,
        instance_usd=trial.instance_usd,
        room=None if trial.lacks is None or not trial.meets else trial.lacks == 0.0,
    )
