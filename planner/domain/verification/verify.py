"""Verify a plan by simulation, and correct it if needed.

Capacities are corrected on requests from before the window: down if a tier misses its target,
up if a tier exceeds it. The corrected plan is judged on the requests of the window. The
causes of its misses are found by counterfactual replays.

An attempt is a set of factors on capacities, with plans of the earlier windows and their replays. A
trial is a plan of the window itself and its replay.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from planner.domain.formats import signed_percent
from planner.domain.planning.inputs import PlannedWindow
from planner.domain.planning.planning import plan_load
from planner.domain.progress import Progress, part
from planner.domain.replay.replay import ReplayOptions
from planner.domain.study import PolicyRun, Study
from planner.domain.verification.correction import (
    NEAR_TARGET,
    Correction,
    Miss,
    Round,
    TestWindow,
    TierStanding,
    correction_windows,
    misses,
    tier_standings,
)
from planner.domain.verification.miss_causes import (
    ANY_SIZE,
    FAULTS,
    FORECAST,
    ROUTING,
    SIZE,
    START_UP,
    Cause,
    causes,
    replay_plan,
)
from planner.errors import Infeasible
from simulation.arrays import FloatArray

AGREED, NEAREST, GAVE_UP, NO_PLAN = "agreed", "nearest", "gave up", "no plan"  # outcomes
MAX_WINDOW_TRIES = 4  # most plans that are tried on the window
MAX_ROUNDS = 8  # most replays of the earlier windows
REPORTED_SHARE = 0.0005  # smallest share of a tier's requests for which a cause is reported
OUTCOMES = {
    AGREED: "",
    NEAREST: "There every tier is met, as near to its share as whole replicas allowed.",
    GAVE_UP: "There no plan that was tried meets every tier.",
    NO_PLAN: "There a tier is missed, and with the sizes that asks for no plan is feasible.",
}
CAUSE_NAMES = {
    FAULTS: "faults",
    START_UP: "start-up",
    FORECAST: "the forecast",
    ROUTING: "routing",
    SIZE: "sizes",
}


@dataclass(frozen=True, slots=True)
class TierOutcome:
    """The attainment of a tier on the window's requests, with the first and the final plan.

    Capacities were corrected on other requests.
    """

    tier: str
    target: float
    first: float | None  # with the first plan; None: no requests
    attainment: float | None  # with the final plan
    near: bool  # the final plan meets the target, and exceeds it by at most half a point


@dataclass(frozen=True, slots=True)
class Verification:
    """The result of a verification, as it is stored and shown."""

    outcome: str
    rounds: tuple[Round, ...]
    corrected_on: tuple[str, ...]
    judged: tuple[TierOutcome, ...]
    gpu_hours_first: float
    gpu_hours: float
    cost_usd_first: float
    cost_usd: float
    window_tries: int  # above 1: cheaper plans met the SLO before the window, but not in it
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
    window_tries: int  # plans replayed on the window until one met the SLO
    causes_first: tuple[Cause, ...]
    causes: tuple[Cause, ...]

    @property
    def tier_outcomes(self) -> tuple[TierOutcome, ...]:
        """Return each tier's attainment in the window, with the first and with the final plan."""
        rows = []
        for tier in self.study.hardware.tiers:
            first = self.first.summary.slo_attainment.get(tier.name)
            last = self.run.summary.slo_attainment.get(tier.name)
            if not tier.deferrable and last is not None:
                near_target = 0.0 <= last - tier.attainment <= NEAR_TARGET
                rows.append(TierOutcome(tier.name, tier.attainment, first, last, near_target))
        return tuple(rows)

    @property
    def report(self) -> Verification:
        """Return the result of the verification, to be stored and shown."""
        first, last = self.first.summary, self.run.summary
        return Verification(
            outcome=self.outcome,
            rounds=self.rounds,
            corrected_on=self.corrected_on,
            judged=self.tier_outcomes,
            gpu_hours_first=first.gpu_hours,
            gpu_hours=last.gpu_hours,
            cost_usd_first=first.cost_usd,
            cost_usd=last.cost_usd,
            window_tries=self.window_tries,
            missed=misses(self.study, self.run),
            causes_first=self.causes_first,
            causes=self.causes,
            sentence=_sentence(self),
        )


def verify(
    study: Study,
    planned_window: PlannedWindow,
    *,
    seed: int,
    progress: Progress,
    rounds: int = MAX_ROUNDS,
) -> VerifiedPlan:
    """Correct replica capacities on earlier windows, and replay the corrected plan in the window.

    Capacities are corrected until every model exceeds its SLO targets in those windows by at most
    half a point, or as near as whole replicas allow, in at most ``rounds`` replays. If the
    corrected plan misses a target in the window by more than half a point, the next dearer
    correction is tried. The first plan is kept if no plan is feasible with corrected capacities.
    """
    first = replay_plan(study, planned_window, seed, part(progress, 0.0, 0.1))
    earlier = correction_windows(study, planned_window, seed, part(progress, 0.1, 0.2))
    attempts, outcome = _try_corrections(study, earlier, seed, rounds, part(progress, 0.2, 0.6))
    rounds_run = [attempt.round for attempt in attempts]
    unchanged = _Trial(study, planned_window, first)
    trials, conflict = _try_on_window(
        unchanged, _best_attempts(attempts), seed, part(progress, 0.6, 0.7)
    )
    if conflict is not None:
        note = f"With these sizes there is no plan: {conflict}"
        rounds_run[-1] = replace(rounds_run[-1], note=note)
        outcome = NO_PLAN
    best = min(trials or [unchanged], key=lambda trial: trial.shortfall)
    causes_first = causes(study, planned_window, first, seed, part(progress, 0.7, 0.85))
    causes_last = causes_first
    if best is not unchanged:
        causes_last = causes(best.study, best.planned, best.run, seed, part(progress, 0.85, 1.0))
    return VerifiedPlan(
        study=best.study,
        planned=best.planned,
        first=first,
        run=best.run,
        rounds=tuple(rounds_run),
        corrected_on=tuple(window.words for window in earlier),
        outcome=outcome,
        window_tries=len(trials),
        causes_first=causes_first,
        causes=causes_last,
    )


@dataclass(frozen=True, slots=True, eq=False)
class _Trial:
    """A plan of the window, and its replay there."""

    study: Study
    planned: PlannedWindow
    run: PolicyRun

    @property
    def shortfall(self) -> float:
        """Return how far the worst interactive tier is below its target, as a share; 0: none is."""
        tiers = self.study.hardware.tiers
        targets = {tier.name: tier.attainment for tier in tiers if not tier.deferrable}
        shortfalls = [
            targets[name] - share
            for name, share in self.run.summary.slo_attainment.items()
            if share is not None and name in targets
        ]
        return max([0.0, *shortfalls])


@dataclass(frozen=True, slots=True, eq=False)
class _Attempt:
    """Capacity factors, and the result of the plans made with them in the earlier windows."""

    factors: FloatArray  # [model, GPU column]
    standings: dict[str, TierStanding]  # worst tier of each model, by its name
    round: Round

    @property
    def shortfall(self) -> float:
        """Return how far the worst model is below a tier's target, as a share; 0: none is."""
        return max([0.0, *(-standing.margin for standing in self.standings.values())])

    @property
    def near_targets(self) -> bool:
        """Return whether every model meets its targets by half a point at most."""
        return all(standing.near_target for standing in self.standings.values())


def _try_on_window(
    unchanged: _Trial, attempts: Sequence[_Attempt], seed: int, progress: Progress
) -> tuple[list[_Trial], Infeasible | None]:
    """Plan and replay the window with the factors of each attempt, until a plan meets all targets.

    ``unchanged`` is the plan without a correction. Return (trials, conflict): the plans that were
    replayed, and why the last infeasible plan failed (None: all plans were feasible).
    """
    trials: list[_Trial] = []
    conflict = None
    planning, replaying = part(progress, 0.0, 0.5), part(progress, 0.5, 1.0)
    for attempt in attempts:
        trial = unchanged
        if (attempt.factors != 1.0).any():
            sizes = unchanged.study.sizes.scaled(attempt.factors)
            study, planned = replace(unchanged.study, sizes=sizes), unchanged.planned
            try:
                plan = plan_load(study.plan_input, planned.load, planning)
            except Infeasible as problem:
                conflict = problem
                continue
            planned = replace(planned, plan=plan)
            trial = _Trial(study, planned, replay_plan(study, planned, seed, replaying))
        trials.append(trial)
        if trial.shortfall <= NEAR_TARGET:
            break
    return trials, conflict


def _best_attempts(tried: Sequence[_Attempt]) -> list[_Attempt]:
    """Return up to ``MAX_WINDOW_TRIES`` attempts that met the SLO of every tier, cheapest first.

    If there are none, return the attempt with the smallest shortfall alone.
    """
    met = [attempt for attempt in tried if not attempt.shortfall]
    met.sort(key=lambda attempt: attempt.round.cost_usd)
    return met[:MAX_WINDOW_TRIES] or [min(tried, key=lambda attempt: attempt.shortfall)]


def _try_corrections(
    study: Study,
    earlier_windows: tuple[TestWindow, ...],
    seed: int,
    rounds: int,
    progress: Progress,
) -> tuple[list[_Attempt], str]:
    """Plan and replay the earlier windows with one set of capacity factors after another.

    The first factors are 1. Return (attempts, outcome), where the outcome is a key of ``OUTCOMES``.
    Raises Infeasible if there is no plan with the first factors.
    """
    correction = Correction(study.hardware)
    # By the plans of all windows, as bytes, so that equal plans are not replayed again.
    tried: dict[bytes, _Attempt] = {}

    def attempt() -> _Attempt:
        """Return the attempt with the current factors, replayed unless its plan was tried."""
        step = part(progress, len(tried) / rounds, (len(tried) + 1) / rounds)
        windows = [_plan_again(earlier, correction.factors, step) for earlier in earlier_windows]
        key = b"".join(window.planned.plan.target.tobytes() for window in windows)
        if key not in tried:
            number, replaying = len(tried) + 1, part(step, 0.2, 1.0)
            tried[key] = _replay_windows(study, windows, correction, number, seed, replaying)
        return tried[key]

    note = ""
    try:
        # Factors may lead to a plan that was tried before, which counts as no replay. So the number
        # of factors is limited, too.
        for _ in range(2 * rounds):
            # ``learn`` changes the factors by the result of the attempt.
            factors_left = correction.learn(attempt().standings)
            if not factors_left or len(tried) >= rounds - 1:
                break
        correction.settle()  # to the best factors found; the last round tries them
        attempt()
    except Infeasible as problem:
        if not tried:
            raise
        note = f"No plan with the corrected sizes: {problem}"
    attempts = list(tried.values())
    if note:
        attempts[-1] = replace(attempts[-1], round=replace(attempts[-1].round, note=note))
    return attempts, _outcome(attempts, NO_PLAN if note else GAVE_UP)


def _outcome(attempts: Sequence[_Attempt], failure: str) -> str:
    """Return the key of the best of ``attempts`` in ``OUTCOMES``; ``failure``: a tier is missed."""
    if any(attempt.near_targets for attempt in attempts):
        return AGREED
    return NEAREST if any(attempt.shortfall == 0.0 for attempt in attempts) else failure


def _replay_windows(
    study: Study,
    windows: list[TestWindow],
    correction: Correction,
    number: int,
    seed: int,
    progress: Progress,
) -> _Attempt:
    """Return attempt ``number``: the replays of the plans of ``windows``, with their factors."""
    options = ReplayOptions(requests=True)  # a row per request
    runs = [
        replay_plan(window.study, window.planned, seed, progress, options) for window in windows
    ]
    worst = _worst_standings([tier_standings(study.hardware.tiers, run) for run in runs])
    report = _round_report(number, correction.factors_by_name, runs, study)
    return _Attempt(correction.factors, worst, report)


def _plan_again(earlier: TestWindow, factors: FloatArray, progress: Progress) -> TestWindow:
    """Return the window with a new plan, for capacities times ``factors [model, GPU column]``."""
    study = replace(earlier.study, sizes=earlier.study.sizes.scaled(factors))
    plan = plan_load(study.plan_input, earlier.planned.load, part(progress, 0.0, 0.2))
    return replace(earlier, study=study, planned=replace(earlier.planned, plan=plan))


def _worst_standings(by_window: Sequence[dict[str, TierStanding]]) -> dict[str, TierStanding]:
    """Return each model's standing with the smallest margin over all windows, by model name."""
    worst: dict[str, TierStanding] = {}
    for standings in by_window:
        for model, standing in standings.items():
            if model not in worst or standing.margin < worst[model].margin:
                worst[model] = standing
    return worst


def _round_report(
    number: int, sizes: dict[str, float], runs: list[PolicyRun], study: Study
) -> Round:
    """Return the report of round ``number``: summed cost of the runs, and lowest attainment.

    ``sizes`` are the capacity factors by model, and ``runs`` the replays of the earlier windows.
    """

    def lowest_attainment(tier: str) -> float | None:
        """Return the lowest attainment of a tier in any run; None without requests."""
        shares = [run.summary.slo_attainment[tier] for run in runs]
        return min((share for share in shares if share is not None), default=None)

    tiers = list(runs[0].summary.slo_attainment)
    return Round(
        number,
        sizes=sizes,
        attainment={tier: lowest_attainment(tier) for tier in tiers},
        gpu_hours=sum(run.summary.gpu_hours for run in runs),
        cost_usd=sum(run.summary.cost_usd for run in runs),
        missed=tuple(miss for run in runs for miss in misses(study, run)),
    )


def _sentence(verified: VerifiedPlan) -> str:
    """Return the result of the verification in sentences, with the causes of misses at the end."""
    rows = [row for row in verified.tier_outcomes if row.attainment is not None]
    shares = [f"{row.tier} {row.attainment:.1%} (target {row.target:.1%})" for row in rows]
    sentences = [
        f"Replayed on the window's requests, which did not correct the sizes: {', '.join(shares)}.",
        _correction_sentence(verified),
        OUTCOMES[verified.outcome],
    ]
    if verified.window_tries > 1:
        sentences.append(_choice_sentence(verified))
    sentences += [
        _cause_words(row.tier, verified.causes)
        for row in rows
        if row.attainment is not None and row.attainment < row.target
    ]
    return " ".join(sentence for sentence in sentences if sentence)


def _correction_sentence(verified: VerifiedPlan) -> str:
    """Return a sentence on how the sizes were corrected, and at which cost."""
    if verified.run is verified.first:
        return "The sizes are unchanged."
    first, last = verified.first.summary, verified.run.summary
    extra = last.gpu_hours / first.gpu_hours - 1.0 if first.gpu_hours else 0.0
    first_shares = [row.first for row in verified.tier_outcomes if row.first is not None]
    return (
        f"Sizes were corrected on {' and '.join(verified.corrected_on)}, and the plan takes "
        f"{signed_percent(extra)} GPU-hours (SLO attainment with the first sizes: "
        f"{', '.join(f'{share:.1%}' for share in first_shares)})."
    )


def _choice_sentence(verified: VerifiedPlan) -> str:
    """Return a sentence on the choice among several plans that were tried on the window."""
    tries = verified.window_tries
    misses_a_tier = any(
        row.attainment is not None and row.attainment < row.target - NEAR_TARGET
        for row in verified.tier_outcomes
    )
    if not misses_a_tier:
        return (
            "Cheaper plans met the SLO there but not in the window. This plan was chosen from "
            f"{tries} simulated on the window, so it uses future data."
        )
    return f"None of {tries} plans that met the SLO there meets it in the window."


def _cause_words(tier: str, causes: Sequence[Cause]) -> str:
    """Return a sentence with the causes of a tier's misses in percentage points, largest first.

    "" if no cause is large enough.
    """
    tier_causes = [cause for cause in causes if cause.tier == tier]
    missed = sum(cause.share for cause in tier_causes)
    clauses = []
    for cause in sorted(tier_causes, key=lambda cause: -cause.share):
        if cause.share >= REPORTED_SHARE:
            why = f"met {cause.changed}"
            if cause.cause != ANY_SIZE:
                why = f"due to {CAUSE_NAMES[cause.cause]} ({why})"
            clauses.append(f"{100 * min(cause.share, missed):.1f} points are {why}")
    if not clauses:
        return ""
    return f"Of the {100 * missed:.1f} points of {tier} that are missed, {'; '.join(clauses)}."
