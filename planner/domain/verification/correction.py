"""Correct replica capacities by the SLO attainment of a replay, in rounds.

A capacity is lowered by a factor if a tier misses its target, and raised if a tier exceeds it. The
search stays between the largest factor that met the targets and the smallest that missed one. A
plan is corrected on other requests than those on which it is judged.
"""

from dataclasses import dataclass, field, replace

import numpy as np
import polars as pl

from planner.domain.planning.inputs import PlannedWindow
from planner.domain.planning.planning import plan_window
from planner.domain.progress import Progress
from planner.domain.random_streams import Stream, generator
from planner.domain.replay.backtest_windows import past_studies
from planner.domain.replay.detail import ALL
from planner.domain.study import PolicyRun, Study
from planner.domain.traffic.window import words_of
from planner.errors import Infeasible
from planner.inputs.scenario.build import Hardware
from planner.optimizer.problem import BOTH, DECODE, PREFILL
from simulation.arrays import FloatArray
from simulation.fleet import Tier
from simulation.trace import Trace

NEAR_TARGET = 0.005  # attainment this close above a tier's target needs no correction
PRECISION = 0.02  # the search ends if the two factors differ by less than this share
FACTOR_GROWTH = 1.25  # of the factor after targets were met, until one misses
MAX_FACTOR = 4.0
# Until a factor meets the targets, a miss lowers it by a multiple of the missed share.
STEP_PER_MISS = 2.0
MIN_STEP, MAX_STEP = 0.03, 0.3
MIN_SHARE_OF_WORST = (
    0.5  # stages with at least this share of the worst stage's misses are corrected
)
EQUAL_ATTAINMENT = 0.002  # misses up to this attainment count as met (methods.md X4: 0.2 points)
PERFECT = "perfect"  # forecast method that knows the demand
MAX_WINDOWS = 2  # a plan that is corrected on one day alone meets its targets on half of the days
MIN_REQUESTS = 100  # fewer requests of a tier and model say little about attainment


@dataclass(frozen=True, slots=True)
class TierStanding:
    """A model's attainment at the interactive tier with the smallest margin above its target."""

    tier: str
    margin: float  # attainment minus the tier's target; negative: missed
    missed_ttft: float  # share of requests that missed the TTFT limit
    missed_other: float  # share of requests that missed only another limit

    @property
    def near_target(self) -> bool:
        """Return whether the tier meets its target, and exceeds it by at most ``NEAR_TARGET``."""
        return 0.0 <= self.margin <= NEAR_TARGET


def tier_standings(tiers: tuple[Tier, ...], run: PolicyRun) -> dict[str, TierStanding]:
    """Return each model's attainment at its tightest interactive tier, by the name of the model.

    That is the tier with the smallest margin: attainment minus target.
    Tiers with fewer than ``MIN_REQUESTS`` requests of the model do not count. ``run`` must have a
    row for each request.
    """
    interactive = {tier.name: tier for tier in tiers if not tier.deferrable}
    groups = run.detail.groups.filter(
        pl.col("model") != ALL,
        pl.col("tier").is_in(list(interactive)),
        pl.col("arrived") >= MIN_REQUESTS,
        region=ALL,
    )
    by_model: dict[str, TierStanding] = {}
    for row in groups.iter_rows(named=True):
        model, tier = row["model"], interactive[row["tier"]]
        standing = _standing(run, model, tier, row["attainment"])
        if model not in by_model or standing.margin < by_model[model].margin:
            by_model[model] = standing
    return by_model


def _standing(run: PolicyRun, model: str, tier: Tier, attainment: float) -> TierStanding:
    """Return the ``attainment`` of a tier by a model as its margin and the shares of misses."""
    requests = run.detail.requests
    assert requests is not None
    limit_ms = np.inf if tier.ttft_s is None else 1000 * tier.ttft_s
    ttft_ms = requests.filter(model=model, tier=tier.name)["ttft_ms"].fill_null(np.inf).to_numpy()
    missed_ttft = float(np.mean(ttft_ms > limit_ms))
    return TierStanding(
        tier=tier.name,
        margin=attainment - tier.attainment,
        missed_ttft=missed_ttft,
        missed_other=max(1.0 - attainment - missed_ttft, 0.0),  # TBT or E2E
    )


@dataclass(slots=True)
class Bracket:
    """The search of the largest factor on a capacity with which plans meet their SLO targets.

    The larger the capacity that is assumed, the fewer replicas a plan has.
    """

    factor: float = 1.0  # to try next
    largest_met: float | None = None  # factor that met the targets; None: none yet
    smallest_missed: float | None = None  # factor that missed a target; None: none yet

    @property
    def may_find_larger_factor(self) -> bool:
        """Return whether the search can still find a larger factor that meets the targets."""
        if self.largest_met is None:
            return True
        if self.smallest_missed is not None and self.smallest_missed <= self.largest_met * (
            1.0 + PRECISION
        ):
            return False
        return self.largest_met < MAX_FACTOR

    def record_met(self) -> None:
        """Record that every tier met its target at this factor, and move to a larger one."""
        self.largest_met = self.factor
        # Attainment need not be monotone in the factor: drop a miss that this result contradicts.
        if self.smallest_missed is not None and self.smallest_missed <= self.largest_met:
            self.smallest_missed = None
        self.factor = self._between() or min(self.factor * FACTOR_GROWTH, MAX_FACTOR)

    def record_missed(self, shortfall: float) -> None:
        """Record that a tier missed its target by ``shortfall``, a share; lower the factor."""
        self.smallest_missed = self.factor
        # Drop a factor that this miss contradicts, as in ``record_met``.
        if self.largest_met is not None and self.largest_met >= self.smallest_missed:
            self.largest_met = None
        step = float(np.clip(STEP_PER_MISS * shortfall, MIN_STEP, MAX_STEP))
        self.factor = self._between() or self.factor * (1.0 - step)

    def _between(self) -> float | None:
        """Return the geometric mean of the largest met and the smallest missed factor, if known."""
        if self.largest_met is None or self.smallest_missed is None:
            return None
        return float(np.sqrt(self.largest_met * self.smallest_missed))


@dataclass(slots=True)
class Correction:
    """A search of factors on capacities, one per model and stage (PREFILL, DECODE or BOTH)."""

    hardware: Hardware
    brackets: dict[tuple[int, int], Bracket] = field(default_factory=dict)  # by model and stage
    settled: set[str] = field(default_factory=set)  # models near their targets

    def __post_init__(self) -> None:
        for m, g in self.hardware.profiles:
            self.brackets.setdefault((m, int(self.hardware.stages[g])), Bracket())

    @property
    def factors(self) -> FloatArray:
        """Return the factors on capacity, ``[model, GPU column]``; 1 where there is no profile."""
        factors = np.ones((len(self.hardware.models), len(self.hardware.columns)))
        for m, g in self.hardware.profiles:
            factors[m, g] = self.brackets[m, int(self.hardware.stages[g])].factor
        return factors

    @property
    def factors_by_name(self) -> dict[str, float]:
        """Return the current factors by model, with the role of a prefill or decode pool."""
        roles = {BOTH: "", PREFILL: " prefill", DECODE: " decode"}
        names = [model.name for model in self.hardware.models]
        return {
            names[m] + roles[stage]: bracket.factor for (m, stage), bracket in self.brackets.items()
        }

    def learn(self, standings: dict[str, TierStanding]) -> bool:
        """Change the factors of models that are not near their targets in a replay.

        ``standings`` are by model name. Models without one had too few requests, and keep their
        factors. Return whether any model has factors left to try.
        """
        factors_left = False
        for m, model in enumerate(self.hardware.models):
            standing = standings.get(model.name)
            if standing is None or model.name in self.settled:
                continue
            if standing.near_target:
                self.settled.add(model.name)
                continue
            factors_left |= self._record_standing(m, standing)
        return factors_left

    def _record_standing(self, m: int, standing: TierStanding) -> bool:
        """Lower the factors of model ``m`` after a miss, or else raise them.

        A miss lowers only the factors of the stages with most misses. Return whether factors are
        left to try.
        """
        in_search = {
            stage: bracket
            for (model, stage), bracket in self.brackets.items()
            if model == m and bracket.may_find_larger_factor
        }
        if standing.margin < 0:
            # Late first tokens are due to prefill, late others to decode. A stage that computes
            # both is always to blame.
            missed = {BOTH: 1.0, PREFILL: standing.missed_ttft, DECODE: standing.missed_other}
            most_missed = max((missed[stage] for stage in in_search), default=0.0)
            for stage, bracket in in_search.items():
                if missed[stage] >= MIN_SHARE_OF_WORST * most_missed:
                    bracket.record_missed(-standing.margin)
        else:
            for bracket in in_search.values():
                bracket.record_met()
        return any(bracket.may_find_larger_factor for bracket in in_search.values())

    def settle(self) -> None:
        """Set the factors of models that are not settled to the largest that met their targets."""
        names = [model.name for model in self.hardware.models]
        for (m, _), bracket in self.brackets.items():
            if names[m] not in self.settled and bracket.largest_met is not None:
                bracket.factor = bracket.largest_met


@dataclass(frozen=True, slots=True)
class Miss:
    """A model and home region with attainment below a tier's target."""

    model: str
    region: str
    tier: str
    attainment: float
    target: float
    short: float  # target minus attainment
    arrived: int


@dataclass(frozen=True, slots=True)
class Round:
    """A replay during the correction, with the capacities used and the attainment reached."""

    round: int
    sizes: dict[str, float]  # by model (and role), relative to the first capacity
    attainment: dict[str, float | None]  # lowest over the replayed windows
    gpu_hours: float
    cost_usd: float
    missed: tuple[Miss, ...]
    note: str = ""


def misses(study: Study, run: PolicyRun) -> tuple[Miss, ...]:
    """Return the models and home regions that miss the target of a tier, the worst first.

    Each model and region has only its worst interactive tier. Those with fewer than
    ``MIN_REQUESTS`` requests are left out unless there are no others.
    """
    targets = _missed_targets(study, run)
    of_pairs = (pl.col("model") != ALL) & (pl.col("region") != ALL)
    groups = run.detail.groups.filter(of_pairs, pl.col("tier").is_in(list(targets)))
    all_misses = []
    for row in groups.iter_rows(named=True):
        target, share = targets[row["tier"]], row["attainment"]
        if target - share > EQUAL_ATTAINMENT:
            miss = Miss(
                row["model"], row["region"], row["tier"], attainment=share, target=target,
                short=target - share, arrived=row["arrived"],
            )  # fmt: skip
            all_misses.append(miss)
    all_misses.sort(key=lambda miss: -miss.short)
    of_enough_requests = [miss for miss in all_misses if miss.arrived >= MIN_REQUESTS]
    worst: dict[tuple[str, str], Miss] = {}  # by model and region
    for miss in of_enough_requests or all_misses:
        worst.setdefault((miss.model, miss.region), miss)
    return tuple(worst.values())


def _missed_targets(study: Study, run: PolicyRun) -> dict[str, float]:
    """Return the targets of the interactive tiers that miss them in ``run``, by name."""
    missed = {}
    for tier in study.hardware.tiers:
        share = run.summary.slo_attainment.get(tier.name)
        if not tier.deferrable and share is not None and share < tier.attainment - EQUAL_ATTAINMENT:
            missed[tier.name] = tier.attainment
    return missed


@dataclass(frozen=True, slots=True, eq=False)
class TestWindow:
    """An earlier window on which capacities are corrected, with a plan of it.

    ``words`` describe its requests.
    """

    study: Study
    planned: PlannedWindow
    words: str


def correction_windows(
    study: Study, planned_window: PlannedWindow, seed: int, progress: Progress
) -> tuple[TestWindow, ...]:
    """Return up to ``MAX_WINDOWS`` earlier windows on which capacities are corrected.

    Each has enough requests and a feasible plan, and ends before the first decision of ``study``.
    Without such a window, return the window of ``study`` with its requests drawn again (an oracle).
    """
    windows, clock = [], study.traffic.clock
    for earlier in past_studies(study, history_s=0.0)[:MAX_WINDOWS]:
        if len(earlier.trace) < MIN_REQUESTS:
            continue
        try:
            # A perfect forecast: capacities shall not make up for the forecast errors of one day.
            perfect_plan = plan_window(earlier.plan_input, progress, method=PERFECT)
        except Infeasible:
            continue
        start, end = words_of(earlier.window.start_s, clock), words_of(earlier.window.end_s, clock)
        words = f"the requests from {start} to {end}, before the window"
        windows.append(TestWindow(earlier, perfect_plan, words))
    if windows:
        return tuple(windows)
    redrawn = replace(study, trace=redraw_arrivals(study.trace, study.window.bin_s, seed))
    if not study.window.after_traffic:
        planned_window = plan_window(study.plan_input, progress, method=PERFECT)
    return (TestWindow(redrawn, planned_window, "the window's requests redrawn (oracle)"),)


def redraw_arrivals(trace: Trace, bin_s: float, seed: int) -> Trace:
    """Return a trace with as many requests in each bin of ``bin_s`` seconds, drawn from that bin.

    Requests are drawn with replacement, and arrive at random times of their bin.
    """
    rng = generator(seed, Stream.VERIFYING)
    bins = np.floor(trace.arrival_s / bin_s)  # bin of each request, in rising order
    first = np.searchsorted(bins, bins)  # index of the first request in the same bin
    count = np.searchsorted(bins, bins, side="right") - first  # requests in the same bin
    drawn = first + np.floor(rng.random(len(trace)) * count).astype(np.int64)  # row of the trace
    arrival_s = np.sort((bins + rng.random(len(trace))) * bin_s)
    return replace(trace.rows(np.sort(drawn)), arrival_s=arrival_s)
