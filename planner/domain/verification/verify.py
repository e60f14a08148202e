"""Verify a plan by simulation, and correct it if needed.

Capacities are corrected on requests from before the window: down if a tier misses its target,
up if a tier exceeds it. The corrected plan is judged on the requests of the window. The
causes of its misses are found by counterfactual replays.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from planner.domain.formats import signed_percent
from planner.domain.planning.inputs import PlannedWindow
from planner.domain.planning.planning import plan_load
from planner.domain.progress import Progress, part
from planner.domain.replay.policy_context import SharedInputs
from planner.domain.replay.replay import ReplayOptions, run_policy
from planner.domain.study import PolicyRun, Study
from planner.domain.verification.correction import (
    NEAR_TARGET,
    Correction,
    TierStanding,
    tier_standings,
)
from planner.domain.verification.correction_rounds import Miss, Round, misses
from planner.domain.verification.correction_windows import TestWindow, correction_windows
from planner.domain.verification.miss_causes import (
    ANY_SIZE,
    FAULTS,
    FORECAST,
    ROUTING,
    SIZE,
    START_UP,
    Cause,
    causes,
)
from planner.errors import Infeasible
from planner.policies.choice import policy_of
from simulation.arrays import FloatArray

AGREED, NEAREST, GAVE_UP, NO_PLAN = "agreed", "nearest", "gave up", "no plan"
WINDOW_TRIES = 4  # most plans tried on the window, of those that met the SLO before it
ROUNDS = 8  # most rounds of planning and replay
TOLD = 0.0005  # smallest share of a tier for which a cause is reported
OUTCOMES = {
    AGREED: "",
    NEAREST: "There every tier is met, as near to its share as whole replicas allowed.",
    GAVE_UP: "There no plan that was tried meets every tier.",
    NO_PLAN: "There a tier is missed, and with the sizes that asks for no plan is feasible.",
}
NAMES = {
    FAULTS: "faults",
    START_UP: "start-up",
    FORECAST: "the forecast",
    ROUTING: "routing",
    SIZE: "sizes",
}


@dataclass(frozen=True, slots=True)
class TierOutcome:
    """Attainment of a tier on the window's requests, with the first and the corrected plan.

    Nothing was corrected on these requests.
    """

    tier: str
    target: float
    first: float | None
    attainment: float | None
    near: bool  # met by at most half a point


@dataclass(frozen=True, slots=True)
class Verification:
    """Result of a verification, as it is reported."""

    outcome: str
    rounds: tuple[Round, ...]
    corrected_on: tuple[str, ...]
    judged: tuple[TierOutcome, ...]
    gpu_hours_first: float
    gpu_hours: float
    cost_usd_first: float
    cost_usd: float
    window_tries: int  # above 1: cheaper plans held before the window but not in it
    missed: tuple[Miss, ...]  # by the final plan, on the window
    causes_first: tuple[Cause, ...]  # causes of misses of the first plan
    causes: tuple[Cause, ...]  # causes of misses of the final plan
    sentence: str


@dataclass(frozen=True, slots=True, eq=False)
class VerifiedPlan:
    """The final plan with its replay, and the study with corrected capacities.

    ``first`` is the replay of the plan before the correction.
    """

    study: Study
    planned: PlannedWindow
    first: PolicyRun
    run: PolicyRun
    rounds: tuple[Round, ...]
    corrected_on: tuple[str, ...]
    outcome: str  # a key of OUTCOMES
    window_tries: int  # plans replayed on the window until one held
    causes_first: tuple[Cause, ...]
    causes: tuple[Cause, ...]

    @property
    def judged(self) -> tuple[TierOutcome, ...]:
        """Return each tier's attainment in the window, with the first and with the final plan."""
        rows = []
        for tier in self.study.hardware.tiers:
            first, last = (
                run.summary.slo_attainment.get(tier.name) for run in (self.first, self.run)
            )
            if not tier.deferrable and last is not None:
                near_target = 0.0 <= last - tier.attainment <= NEAR_TARGET
                rows.append(TierOutcome(tier.name, tier.attainment, first, last, near_target))
        return tuple(rows)

    @property
    def report(self) -> Verification:
        """Return the result of the verification for the report."""
        first, last = self.first.summary, self.run.summary
        return Verification(
            self.outcome,
            self.rounds,
            self.corrected_on,
            self.judged,
            first.gpu_hours,
            last.gpu_hours,
            first.cost_usd,
            last.cost_usd,
            self.window_tries,
            misses(self.study, self.run),
            self.causes_first,
            self.causes,
            _sentence(self),
        )


def verify(
    study: Study, planned: PlannedWindow, *, seed: int, progress: Progress, rounds: int = ROUNDS
) -> VerifiedPlan:
    """Correct the capacities on earlier windows, and test the corrected plan on the window.

    Capacities are corrected until every model meets its targets on ``correction_windows``, by at
    most half a point, or as near as whole replicas allow. This takes at most ``rounds`` replays. If
    the plan then misses a target of the window by more than half a point, the next dearer plan that
    met them is tried. That choice uses the window, and the report says so.

    If no plan is feasible with the corrected capacities, the first plan is kept. ``outcome`` says
    so.
    """
    first = _replay(study, planned, seed, part(progress, 0.0, 0.1))
    grounds = correction_windows(study, planned, seed, part(progress, 0.1, 0.2))
    tried, outcome = _try_corrections(study, grounds, seed, rounds, part(progress, 0.2, 0.6))
    rounds_run = [attempt.round for attempt in tried]
    unchanged = _Trial(study, planned, first)
    trials, conflict = _try_on_window(
        unchanged, _best_attempts(tried), seed, part(progress, 0.6, 0.7)
    )
    if conflict is not None:
        note = f"With these sizes there is no plan: {conflict}"
        rounds_run[-1] = replace(rounds_run[-1], note=note)
        outcome = NO_PLAN
    nearest = min(trials or [unchanged], key=lambda trial: trial.shortfall)
    of_first = causes(study, planned, first, seed, part(progress, 0.7, 0.85))
    of_last = of_first
    if nearest.run is not first:
        of_last = causes(
            nearest.study, nearest.planned, nearest.run, seed, part(progress, 0.85, 1.0)
        )
    return VerifiedPlan(
        study=nearest.study,
        planned=nearest.planned,
        first=first,
        run=nearest.run,
        rounds=tuple(rounds_run),
        corrected_on=tuple(ground.words for ground in grounds),
        outcome=outcome,
        window_tries=len(trials),
        causes_first=of_first,
        causes=of_last,
    )


@dataclass(frozen=True, slots=True, eq=False)
class _Trial:
    """A plan of the window, and its replay there."""

    study: Study
    planned: PlannedWindow
    run: PolicyRun

    @property
    def shortfall(self) -> float:
        """Return the largest shortfall of an interactive tier from its target, as a fraction."""
        targets = {t.name: t.attainment for t in self.study.hardware.tiers if not t.deferrable}
        shortfalls = [
            targets[name] - share
            for name, share in self.run.summary.slo_attainment.items()
            if share is not None and name in targets
        ]
        return max([0.0, *shortfalls])


@dataclass(frozen=True, slots=True, eq=False)
class _Attempt:
    """Capacity factors, and how well the plans made with them did before the window.

    Factors are ``[model, GPU column]``. ``standings`` has each model's worst tier.
    """

    factors: FloatArray
    standings: dict[str, TierStanding]
    round: Round

    @property
    def shortfall(self) -> float:
        """Return the largest shortfall of a model from a tier's target, as a fraction."""
        return max((max(-standing.spare, 0.0) for standing in self.standings.values()), default=0.0)


def _try_on_window(
    unchanged: _Trial, attempts: Sequence[_Attempt], seed: int, progress: Progress
) -> tuple[list[_Trial], Infeasible | None]:
    """Plan and replay the window with the factors of each attempt, until a plan meets targets.

    ``unchanged`` is the plan without a correction, with its replay. Return all trials, and the last
    reason why there was no plan.
    """
    trials: list[_Trial] = []
    conflict = None
    study, planned = unchanged.study, unchanged.planned
    for attempt in attempts:
        again = replace(study, sizes=study.sizes.times(attempt.factors))
        if (attempt.factors == 1.0).all():
            trials.append(unchanged)
        else:
            try:
                plan = plan_load(again.plan_input, planned.load, part(progress, 0.0, 0.5))
            except Infeasible as problem:
                conflict = problem
                continue
            replanned = replace(planned, plan=plan)
            run = _replay(again, replanned, seed, part(progress, 0.5, 1.0))
            trials.append(_Trial(again, replanned, run))
        if trials[-1].shortfall <= NEAR_TARGET:
            break
    return trials, conflict


def _best_attempts(tried: Sequence[_Attempt]) -> list[_Attempt]:
    """Return attempts that met every tier, cheapest first, else the one with least shortfall.

    At most ``WINDOW_TRIES`` are returned.
    """
    met = sorted(
        (attempt for attempt in tried if not attempt.shortfall),
        key=lambda attempt: attempt.round.cost_usd,
    )
    return met[:WINDOW_TRIES] or [min(tried, key=lambda attempt: attempt.shortfall)]


def _try_corrections(
    study: Study, grounds: tuple[TestWindow, ...], seed: int, rounds: int, progress: Progress
) -> tuple[list[_Attempt], str]:
    """Try different capacity factors, the first time 1; return all attempts and the outcome.

    Factors that lead to a plan that was tried already are not replayed again.
    """
    correction = Correction(study.hardware)
    tried: dict[bytes, _Attempt] = {}

    def attempt() -> _Attempt:
        """Plan and replay all windows with the current factors, unless that plan is known."""
        step = part(progress, len(tried) / rounds, (len(tried) + 1) / rounds)
        windows = [_plan_again(ground, correction.factors, step) for ground in grounds]
        key = b"".join(window.planned.plan.target.tobytes() for window in windows)
        if key not in tried:
            replaying = part(step, 0.2, 1.0)
            runs = [
                _replay(window.study, window.planned, seed, replaying, requests=True)
                for window in windows
            ]
            worst = _worst_standings([tier_standings(study.hardware.tiers, run) for run in runs])
            report = _round_report(len(tried) + 1, correction.named, runs, study)
            tried[key] = _Attempt(correction.factors, worst, report)
        return tried[key]

    note = ""
    try:
        for _ in range(2 * rounds):
            if not correction.learn(attempt().standings) or len(tried) >= rounds - 1:
                break
        correction.settle()
        attempt()
    except Infeasible as problem:
        if not tried:
            raise
        note = f"No plan with the corrected sizes: {problem}"
    attempts = list(tried.values())
    if note:
        attempts[-1] = replace(attempts[-1], round=replace(attempts[-1].round, note=note))
    if any(all(standing.near for standing in one.standings.values()) for one in attempts):
        return attempts, AGREED
    if any(one.shortfall == 0.0 for one in attempts):
        return attempts, NEAREST
    return attempts, NO_PLAN if note else GAVE_UP


def _plan_again(ground: TestWindow, factors: FloatArray, progress: Progress) -> TestWindow:
    """Return the window ``ground`` with a new plan, for capacities times ``factors``."""
    study = replace(ground.study, sizes=ground.study.sizes.times(factors))
    plan = plan_load(study.plan_input, ground.planned.load, part(progress, 0.0, 0.2))
    return replace(ground, study=study, planned=replace(ground.planned, plan=plan))


def _replay(
    study: Study, planned: PlannedWindow, seed: int, progress: Progress, *, requests: bool = False
) -> PolicyRun:
    """Simulate a plan in its window; with ``requests``, keep one row per request."""
    return run_policy(
        study,
        policy_of("lt-i"),
        seed=seed,
        progress=progress,
        shared=SharedInputs(planned),
        options=ReplayOptions(requests=requests),
    )


def _worst_standings(by_window: Sequence[dict[str, TierStanding]]) -> dict[str, TierStanding]:
    """Return each model's worst standing over several windows, by model.

    The worst has the smallest margin above its target.
    """
    worst: dict[str, TierStanding] = {}
    for standings in by_window:
        for model, standing in standings.items():
            if model not in worst or standing.spare < worst[model].spare:
                worst[model] = standing
    return worst


def _round_report(
    number: int, sizes: dict[str, float], runs: list[PolicyRun], study: Study
) -> Round:
    """Return the report of one round of the correction, summed over its windows.

    Attainment is the lowest of all windows.
    """
    attained = [run.summary.slo_attainment for run in runs]
    shares = {tier: [by_tier[tier] for by_tier in attained] for tier in attained[0]}
    return Round(
        number,
        sizes=sizes,
        attainment={
            tier: min((share for share in of_runs if share is not None), default=None)
            for tier, of_runs in shares.items()
        },
        gpu_hours=sum(run.summary.gpu_hours for run in runs),
        cost_usd=sum(run.summary.cost_usd for run in runs),
        missed=tuple(miss for run in runs for miss in misses(study, run)),
    )


def _sentence(verified: VerifiedPlan) -> str:
    """Return the text of the result, followed by the causes of the misses."""
    rows = verified.judged
    shares = ", ".join(
        f"{row.tier} {row.attainment:.1%} (target {row.target:.1%})"
        for row in rows
        if row.attainment is not None
    )
    first, last = verified.first.summary, verified.run.summary
    sentences = [f"Replayed on the window's requests, which did not correct the sizes: {shares}."]
    if verified.run is verified.first:
        sentences.append("The sizes are unchanged.")
    else:
        more = last.gpu_hours / first.gpu_hours - 1.0 if first.gpu_hours else 0.0
        were = ", ".join(f"{row.first:.1%}" for row in rows if row.first is not None)
        on = " and ".join(verified.corrected_on)
        sentences.append(
            f"Sizes were corrected on {on}, and the plan takes {signed_percent(more)} GPU-hours "
            f"(SLO attainment with the first sizes: {were})."
        )
    sentences.append(OUTCOMES[verified.outcome])
    if verified.window_tries > 1 and all(
        row.attainment is None or row.attainment >= row.target - NEAR_TARGET for row in rows
    ):
        sentences.append(
            f"Cheaper plans met the SLO there but not in the window: of {verified.window_tries} "
            "tried on "
            "it this one was chosen, in hindsight."
        )
    elif verified.window_tries > 1:
        sentences.append(
            f"None of {verified.window_tries} plans that met the SLO there meets it in the window."
        )
    sentences += [
        _cause_words(row.tier, verified.causes)
        for row in rows
        if row.attainment is not None and row.attainment < row.target
    ]
    return " ".join(sentence for sentence in sentences if sentence)


def _cause_words(tier: str, causes: Sequence[Cause]) -> str:
    """Return the causes of a tier's misses in percentage points, the largest first."""
    tier_causes = sorted(
        (cause for cause in causes if cause.tier == tier), key=lambda cause: -cause.share
    )
    worth_telling = [cause for cause in tier_causes if cause.share >= TOLD]
    if not worth_telling:
        return ""
    missed = sum(cause.share for cause in tier_causes)
    points = "; ".join(
        f"{100 * min(cause.share, missed):.1f} points are {_cause_clause(cause)}"
        for cause in worth_telling
    )
    return f"Of the {100 * missed:.1f} points of {tier} that are missed, {points}."


def _cause_clause(cause: Cause) -> str:
    """Return a cause as a clause, such as "due to start-up (met with instant starts ...)"."""
    if cause.cause == ANY_SIZE:
        return f"met {cause.changed}"
    return f"due to {NAMES[cause.cause]} (met {cause.changed})"
