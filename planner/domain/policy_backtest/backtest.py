"""Backtest every deployable policy on earlier windows (methods.md X1, X5).

The backtest chooses the one parameter of each policy. The recommended policy is chosen from
its results.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from threading import RLock

from planner.domain.parallel import replays_at_once
from planner.domain.policy_backtest.perturbed_days import STRAYS
from planner.domain.policy_backtest.stress_tests import (
    Harder,
    outlasting,
)
from planner.domain.policy_backtest.tuning import (
    Trial,
    Tuning,
    TuningState,
)
from planner.domain.policy_backtest.window import (
    Stage,
    shares_of,
)
from planner.domain.progress import (
    Progress,
    part,
    silent,
)
from planner.domain.replay.backtest_windows import Earlier
from planner.domain.replay.equal_attainment import FlatFleets
from planner.domain.run_parts import (
    IN_PROCESS,
    Part,
    Parts,
)
from planner.domain.serialise import moment
from planner.domain.traffic.day_growth import Growth
from planner.errors import EXPECTED
from planner.policies.base import Policy
from simulation.arrays import IntArray

UNREHEARSED = " was not rehearsed on the days before"


@dataclass(frozen=True, slots=True)
class RehearsalWindow:
    """Window of the backtest, with its number of requests."""

    start: datetime
    end: datetime
    requests: int


@dataclass(frozen=True, slots=True)
class Tried:
    """Results of one parameter value of a policy on the backtest windows.

    The figures cover the windows replayed, which end with the first that is missed. ``costs_usd``
    has one cost per window. ``instance_usd`` is the cost of one replica that runs throughout all
    of them, at the mean price. ``room`` says whether the value passes the busier day that tests
    headroom for growth; None if it was not tried or there is no such day.
    """

    value: float | None
    cost_usd: float
    gpu_hours: float
    energy_kwh: float
    carbon_kg: float
    ttft_ms: float | None  # P95 of the slowest interactive tier in the worst window
    e2e_ms: float | None
    attainment: tuple[dict[str, float | None], ...]  # by window
    meets: bool
    tokens_in_time: int
    costs_usd: tuple[float, ...]
    instance_usd: float
    room: bool | None = None


@dataclass(frozen=True, slots=True)
class PolicyBacktest:
    """Backtest of one policy: the chosen value and its results."""

    policy: str
    label: str
    parameter: str | None  # None: no parameter, or set by the scenario
    value: float | None
    shortfall: float  # of the worst tier and window from its goal
    chosen: Tried
    tried: tuple[Tried, ...]

    @property
    def meets(self) -> bool:
        return self.chosen.meets

    @property
    def does(self) -> bool:
        """Whether it meets every goal, with headroom for growth if that was tested."""
        return self.meets and self.chosen.room is not False


@dataclass(frozen=True, slots=True)
class Room:
    """Headroom for growth that a policy needs.

    ``times`` is the factor on the requests of the busiest backtest window, for the model that may
    grow most. It was seen on ``days`` earlier days. ``models`` has the factor of each model.
    ``label`` is the policy that would be cheapest without headroom, at ``cost_usd`` on the
    backtest windows. ``had`` says whether any policy has the headroom.
    """

    times: float
    days: int
    label: str
    cost_usd: float
    had: bool
    models: tuple[Growth, ...]


Leading = Callable[
    [Sequence[PolicyBacktest]], Collection[str]
]  # names of the policies that would be recommended now


def everyone(parts: Sequence[PolicyBacktest]) -> Collection[str]:
    """Return the names of all policies, so that headroom for growth is tested for each."""
    return [rehearsed.policy for rehearsed in parts]


@dataclass(frozen=True, slots=True, eq=False)
class Rehearsal:
    """Windows and results of a backtest.

    Each tier had to attain ``wanted``. This leaves the share ``reserve`` of the requests that it
    may miss. ``attainable`` says whether any fleet meets every tier on the windows.
    """

    windows: tuple[RehearsalWindow, ...]
    reserve: float
    wanted: dict[str, float]
    attainable: bool
    policies: tuple[PolicyBacktest, ...]
    notes: tuple[str, ...]
    longer: tuple[Harder, ...] = ()  # longer outputs, up to the cheapest policy that passes
    unforeseen: tuple[Harder, ...] = ()  # the same with more requests than forecast
    room: Room | None = None  # for growth, if earlier days show any
    days: bool = True  # earlier days, not the stretch right before the window

    def without_notes_on(self, titles: Iterable[str]) -> Rehearsal:
        """Return the backtest without its notes on policies that the comparison leaves out.

        The comparison gives the reason already.
        """
        beginnings = tuple(f"{title}{UNREHEARSED}: " for title in titles)
        return replace(
            self, notes=tuple(note for note in self.notes if not note.startswith(beginnings))
        )

    def of(self, policy: str) -> PolicyBacktest | None:
        return next((part for part in self.policies if part.policy == policy), None)


@dataclass(eq=False)
class _Teller:
    """Progress report of a search of unknown length.

    It reports a constant share, because each report is also a chance to cancel.
    """

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
    """Return the policies with their tuned parameters, and the backtest.

    Oracle baselines are not backtested. A policy that cannot be built on an earlier window is
    returned unchanged, with a note.

    Headroom for growth is tested for the policies that ``leading`` names. This repeats with the
    new leaders until all leaders have been tested. Headroom costs at least nothing, so a policy
    that is dearer without it cannot lead with it.
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
        # A policy with a single value has to tell how far it misses, so never cut its replays.
        bars = goals.wanted if policy.free is not None else None
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

    # Longest searches first, so that workers sharing the parts end at about the same time.
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
    """Make headroom for growth for all leading policies, as ``rehearse`` describes.

    ``can`` says whether any fleet meets every tier.
    """
    while True:
        lead = leading([_backtest_of(tuning, can) for tuning in tunings.values()])
        # In a fixed order: ``lead`` may be a set, and all workers must hand out the same parts.
        untried = [its for name, its in tunings.items() if name in lead and not its.settled]
        if not untried:
            break
        make_room(untried)


def _room(parts: Sequence[PolicyBacktest], earlier: Earlier, seed: int) -> Room | None:
    """Return the headroom with the cheapest policy that meets every tier, with or without it."""
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
