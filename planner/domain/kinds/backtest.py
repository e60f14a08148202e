"""Compare forecasters by the cost of their plans on past traffic (methods.md F10).

Each forecaster drives the same planner. All are compared at equal SLO attainment. If there are too
many requests to simulate, coverage replaces the attainment: the share of demand (tokens) that is
within the plan's capacity.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import partial

from pydantic import Field

from forecasting.errors import ForecastError
from planner.domain.forecaster_backtest.equal_attainment import MAX_TRIALS
from planner.domain.forecaster_backtest.evaluation import (
    baseline_names,
    baseline_row,
    confirm_by_replay,
    evaluate_forecaster,
)
from planner.domain.forecaster_backtest.figures import (
    SAME_AS_NOW,
    Baseline,
    Forecaster,
    ForecasterFigures,
    flat_table,
    verdict,
)
from planner.domain.forecaster_backtest.replay import PERFECT, LevelPlanner
from planner.domain.options import PolicyKey, RunOptions, Seed
from planner.domain.outcome import Inputs, Outcome
from planner.domain.preparation import study_of, with_seed
from planner.domain.progress import Progress, part
from planner.domain.results.basis import Frame, frame_of
from planner.domain.run_parts import IN_PROCESS, Part, Parts
from planner.domain.serialise import KEY, MERGED
from planner.domain.study import Study
from planner.domain.traffic.groups import by_model_and_region
from planner.domain.traffic.window import DAY_S
from planner.errors import EXPECTED, Infeasible, ScenarioError
from planner.inputs.scenario.schema import Scenario
from planner.inputs.scenario.schema.planning import Method
from planner.policies.choice import policy_of

REPLAY, COVERAGE = "replay", "coverage"  # what is equal between the compared plans
METHOD_WORDS = {
    REPLAY: "SLO attainment is from simulations.",
    COVERAGE: "SLO attainment was not simulated. Coverage replaces it: the share of tokens "
    "within the plan's capacity.",
}
CONFIRMED_WORDS = (
    "Too many requests to simulate for every plan: coverage replaces SLO attainment: the share "
    "of tokens within the plan's capacity. The cheapest forecaster, last-value and the policies "
    "without a forecast are simulated once."
)
MOST_REPLAYED = 60_000_000  # requests over all replays, so that these take minutes
REPLAYS_PER_FORECASTER = MAX_TRIALS + 1
# One forecaster of each kind, few enough for a run of minutes.
DEFAULT: tuple[Method, ...] = (
    "auto", SAME_AS_NOW, "seasonal-naive", "moving-maximum", "regression", "arima"
)  # fmt: skip
REACTIVE = "hpa-concurrency"


class Options(RunOptions):
    methods: tuple[Method, ...] = Field((), title="Forecasters", min_length=1, max_length=20)
    """Forecast methods. last-value is always included. Default: six methods and the scenario's."""
    days: int | None = Field(None, title="Days", ge=1, le=56)
    """Days of past traffic, up to the end of the window. Default: the window."""
    by_coverage: bool = Field(False, title="By coverage")
    """Match attainment by the share of covered demand, without simulations."""
    reactive: PolicyKey = Field(
        REACTIVE,
        title="Reactive policy",
        description=f"Reactive policy to compare with. Default: {REACTIVE}.",
    )
    seed: Seed | None = Field(None, title="Seed")
    """Seed of the simulation. Default: the scenario's."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class BacktestResult:
    """The result of ``backtest``."""

    kind: str = "backtest"
    frame: Frame = field(metadata={MERGED: True})
    verdict: str
    goals: dict[str, float]  # target attainment by interactive tier
    matched_on: str  # REPLAY or COVERAGE
    best: str | None  # cheapest forecaster that can be deployed
    methods: dict[str, ForecasterFigures]
    baselines: dict[str, Baseline] = field(metadata={KEY: "beside"})  # policies without a forecast
    left_out: tuple[str, ...]
    method_words: str = field(metadata={KEY: "how"})
    seconds: float


def run(inputs: Inputs, options: Options, progress: Progress, parts: Parts = IN_PROCESS) -> Outcome:
    """Compare the plans of all forecasters on a past window, at equal SLO attainment.

    Policies without a forecast are included. Raises ScenarioError if the window is after the
    traffic, or if no interactive tier has demand.
    """
    begun = time.perf_counter()
    inputs = with_seed(inputs, options.seed)
    scenario = _scenario_of_past_window(inputs.scenario, options.days)
    inputs = replace(inputs, scenario=scenario)
    study = study_of(inputs, part(progress, 0.0, 0.1))
    target_attainment = _target_attainment(study)
    methods: tuple[str, ...] = options.methods or (*DEFAULT, scenario.forecast.method)
    # The verdict needs the last value and the perfect forecast as references.
    names = list(dict.fromkeys([*methods, SAME_AS_NOW, PERFECT]))
    replayed_requests = len(study.trace) * REPLAYS_PER_FORECASTER * len(names)
    by_replay = not options.by_coverage and replayed_requests <= MOST_REPLAYED
    evaluate = partial(_forecaster_or_reason, study, scenario.seed, by_replay=by_replay)
    backtests = [Part(f"Backtest: {name}", partial(evaluate, name)) for name in names]
    outcomes: list[Forecaster | Baseline | str] = [
        *parts.map(backtests, part(progress, 0.1, 0.7), at_once=1)
    ]
    rows = _forecasters(outcomes)
    if not rows:
        raise Infeasible(" ".join(_left_out_sentences(outcomes)))
    # A perfect forecast cannot be deployed.
    costs = {name: row.usd for name, row in rows.items() if row.usd is not None and name != PERFECT}
    best = min(costs, key=lambda name: costs[name], default=None)
    if not options.by_coverage:
        # By coverage, nothing is simulated yet: confirm the two plans that the verdict compares.
        to_confirm = () if by_replay else (best, SAME_AS_NOW)
        simulations = _simulations(
            study,
            scenario.seed,
            {name: row for name, row in rows.items() if name in to_confirm},
            baseline_names(options.reactive, tune=by_replay),
            tune=by_replay,
        )
        outcomes += parts.map(simulations, part(progress, 0.7, 1.0))
        rows = _forecasters(outcomes)
    parts.close()
    baselines = [outcome for outcome in outcomes if isinstance(outcome, Baseline)]
    matched_on = REPLAY if by_replay else COVERAGE
    is_confirmed = not by_replay and not options.by_coverage
    result = BacktestResult(
        frame=frame_of(study),
        verdict=verdict([*rows.values()], baselines),
        goals=target_attainment,
        matched_on=matched_on,
        best=best,
        methods={name: ForecasterFigures.of(row) for name, row in rows.items()},
        baselines={row.name: row for row in baselines},
        left_out=tuple(_left_out_sentences(outcomes)),
        method_words=CONFIRMED_WORDS if is_confirmed else METHOD_WORDS[matched_on],
        seconds=time.perf_counter() - begun,
    )
    tables = {"methods": flat_table([*result.methods.values()])}
    if baselines:
        tables["beside"] = flat_table([*result.baselines.values()])
    return Outcome(result, tables)


def _target_attainment(study: Study) -> dict[str, float]:
    """Return the target attainment of each interactive tier, by name.

    Raises ScenarioError if the window is after the traffic, or if no interactive tier has demand.
    """
    if study.window.after_traffic:
        raise ScenarioError(
            "horizon.start: a backtest needs past traffic, and the window is in the future. Leave "
            "it out, or give days."
        )
    targets = {tier.name: tier.attainment for tier in study.hardware.tiers if not tier.deferrable}
    if not by_model_and_region(study.traffic, set(targets)):
        raise ScenarioError("traffic: no interactive tier has any demand; nothing is forecast.")
    return targets


def _forecasters(outcomes: Sequence[Forecaster | Baseline | str]) -> dict[str, Forecaster]:
    """Return the forecasters among the outcomes by method; a later outcome replaces a former."""
    return {row.facts.method: row for row in outcomes if isinstance(row, Forecaster)}


def _left_out_sentences(outcomes: Sequence[Forecaster | Baseline | str]) -> list[str]:
    """Return the sentences among the outcomes, on forecasters and policies that are left out."""
    return [outcome for outcome in outcomes if isinstance(outcome, str)]


def _simulations(
    study: Study, seed: int, rows: Mapping[str, Forecaster], baselines: Sequence[str], *, tune: bool
) -> list[Part[Forecaster | Baseline | str]]:
    """Return parts of the run that simulate forecasters and policies without a forecast.

    ``rows`` are the forecasters, ``baselines`` the names of the policies. With ``tune``, the
    parameters of the policies are tuned on the window itself.
    """
    confirm = partial(_confirm_by_simulation, study, seed)
    simulate = partial(_baseline_or_reason, study, seed, tune=tune)
    return [
        *(Part(f"Simulate: {name}", partial(confirm, row)) for name, row in rows.items()),
        *(Part(f"Tune: {policy_of(name).title}", partial(simulate, name)) for name in baselines),
    ]


def _forecaster_or_reason(
    study: Study, seed: int, name: str, progress: Progress, *, by_replay: bool
) -> Forecaster | str:
    """Return the result of the forecaster ``name``, or a sentence on why it has none.

    With ``by_replay``, its plans are simulated; otherwise only their coverage is computed.
    """
    try:
        level_planner = LevelPlanner.of(study, name, seed, part(progress, 0.0, 0.1))
        return evaluate_forecaster(
            level_planner, by_replay=by_replay, progress=part(progress, 0.1, 1.0)
        )
    except (ForecastError, Infeasible) as problem:
        return f"{name} is left out: {problem}"


def _confirm_by_simulation(
    study: Study, seed: int, row: Forecaster, progress: Progress
) -> Forecaster:
    """Return the result of a forecaster with a simulation of its plan at equal coverage."""
    level_planner = LevelPlanner.of(study, row.facts.method, seed, part(progress, 0.0, 0.1))
    return confirm_by_replay(level_planner, row, part(progress, 0.1, 1.0))


def _baseline_or_reason(
    study: Study, seed: int, name: str, progress: Progress, *, tune: bool
) -> Baseline | str:
    """Return the result of a policy without a forecast, or a sentence on why it has none.

    With ``tune``, its parameter is tuned on the window itself.
    """
    try:
        return baseline_row(study, name, seed, tune=tune, progress=progress)
    except EXPECTED as problem:
        return f"{policy_of(name).title} is left out: {problem}"


def _scenario_of_past_window(scenario: Scenario, days: int | None) -> Scenario:
    """Return the scenario with a past window of ``days`` days; None keeps the window's length.

    The window keeps its end. If it is after the traffic, it ends with the traffic instead.
    """
    horizon = scenario.horizon
    changes: dict[str, object] = {}
    if horizon.start == "end":  # a window after the traffic
        changes["start"] = None
    if days is not None:
        changes["duration_s"] = days * DAY_S
        # The window ends where it did, so a longer one starts earlier.
        if isinstance(horizon.start, datetime) and horizon.duration_s is not None:
            added_s = days * DAY_S - horizon.duration_s
            changes["start"] = horizon.start - timedelta(seconds=added_s)
    return scenario.model_copy(update={"horizon": horizon.model_copy(update=changes)})
