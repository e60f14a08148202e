"""The five commands as functions: a scenario and its traces in, a document and tables out."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import polars as pl

from forecasting.backtest import backtest
from forecasting.demand import DemandSeries
from forecasting.selection import forecaster
from planner.errors import Infeasible, ScenarioError
from planner.scenario.build import build_hardware
from planner.scenario.known import NOTHING, Known
from planner.scenario.schema import Policy, Scenario
from planner.scenario.schema.policies import ALL, SEPARATOR, label_of, policy_names, policy_of
from planner.studies.commands.profile_error import profile_errors
from planner.studies.commands.verify import verify
from planner.studies.pd.stated import stated_ratios
from planner.studies.planning.figures import plan_more
from planner.studies.planning.planning import Planned, plan_window
from planner.studies.planning.worth import worth_document
from planner.studies.progress import Progress, part
from planner.studies.replay.policies import PLANS
from planner.studies.replay.replay import (
    PolicyRun,
    Study,
    check_policy,
    prepare,
    run_policy,
)
from planner.studies.results import documents as doc
from planner.studies.results import tables
from planner.studies.results.comparison import PolicyComparison
from planner.studies.results.comparison import compare as compare_runs
from planner.studies.sizing.sizing import size
from planner.studies.traffic.ahead import requests_ahead
from planner.studies.traffic.forecasts import forecast_window
from planner.studies.traffic.sources import StoredTrace
from planner.studies.traffic.traffic import Traffic, build_traffic
from planner.studies.traffic.window import Window, resolve_window
from simulation.errors import SimulationError

Traces = dict[str, StoredTrace]
REQUESTS = "requests"  # the table of every request, too long for a page or a CSV
MAX_STEPS = 10_000  # bins forecast ahead of one series


@dataclass(frozen=True, slots=True, eq=False)
class Outcome:
    """What a run keeps: figures as a document, arrays as tables."""

    document: doc.Document
    tables: dict[str, pl.DataFrame]


def forecast_series(
    series: Sequence[DemandSeries],
    *,
    horizon_s: float,
    method: str,
    origins: int,
    progress: Progress,
) -> Outcome:
    """Forecast what follows each series, with the errors of a backtest over its last ``origins``
    (0: none)."""
    begun = time.perf_counter()
    listed, rows = [], []
    for i, one in enumerate(series):
        progress(i / len(series), f"Forecasting {one.key}")
        steps = max(1, round(horizon_s / one.bin_s))
        if steps > MAX_STEPS:
            raise ScenarioError(
                f"{one.key}: a horizon of {horizon_s:g} s is {steps:,} bins of {one.bin_s:g} s and "
                f"{MAX_STEPS:,} are allowed; choose a shorter horizon or wider bins."
            )
        fitted = forecaster(method, horizon_bins=steps).fit(one)
        ahead = fitted.predict(steps)
        errors: dict[str, float | None] = dict.fromkeys(("wape", "peak_wape", "mase", "coverage80"))
        if origins:
            make = partial(forecaster, method, horizon_bins=steps)
            tested = backtest(one, make, steps, origins)
            errors = {name: doc.clean(getattr(tested, name)) for name in errors}
        rows.append((one, ahead.mean, ahead.quantile(0.1), ahead.quantile(0.9)))
        listed.append(
            {
                "model": one.key.model,
                "region": one.key.region,
                "tier": one.key.tier,
                "method": ahead.method,
                "order": ahead.order,
                "unit": one.unit,
                "bin_s": one.bin_s,
                "start": doc.moment(ahead.start_s),
                **errors,
                "fit_seconds": ahead.fit_seconds,
                "forecast": [doc.clean(amount) for amount in ahead.mean.tolist()],
            }
        )
    return Outcome(
        {"kind": "forecast", "series": listed, "seconds": time.perf_counter() - begun},
        {"series": tables.series_table(rows)},
    )


def forecast(
    scenario: Scenario, traces: Traces, *, known: Known = NOTHING, progress: Progress
) -> Outcome:
    """The forecast a plan of this scenario would stand on, period by period, with its errors."""
    begun = time.perf_counter()
    hardware = build_hardware(scenario, known)
    progress(0.0, "Reading the traffic")
    traffic = build_traffic(scenario, traces)
    window = resolve_window(scenario, traffic.demand, traffic.clock)
    found = forecast_window(
        hardware,
        traffic,
        window,
        method=scenario.forecast.method,
        quantile=scenario.forecast.quantile,
        progress=part(progress, 0.1, 1.0),
    )
    if not found:
        raise ScenarioError("traffic: no interactive tier has any demand; nothing to forecast.")
    seconds = time.perf_counter() - begun
    series = doc.forecast_document(found)
    return Outcome(
        {
            "kind": "forecast",
            "scenario": scenario.name,
            "window": doc.window_document(window, traffic),
            "series": series,
            "forecast": {"series": series, "seconds": seconds},
            "notes": [*_gaps(traffic, window), *traffic.notes],
            "seconds": seconds,
        },
        {
            "demand": tables.demand_table(traffic.demand),
            "forecast": tables.forecast_table(found),
        },
    )


def plan(
    scenario: Scenario,
    traces: Traces,
    *,
    verified: bool = False,
    known: Known = NOTHING,
    progress: Progress,
) -> Outcome:
    """Replicas over time; raises Infeasible with the conflict in words. ``verified`` replays the
    plan and corrects sizes until both agree (planner.studies.commands.verify)."""
    begun = time.perf_counter()
    study = study_of(scenario, traces, known, part(progress, 0.0, 0.4))
    planned = _planned(study, part(progress, 0.4, 0.5 if verified else 0.7))
    verification: doc.Document = {}
    if verified:
        found = verify(study, planned, seed=scenario.seed, progress=part(progress, 0.5, 0.7))
        study, planned = found.study, found.planned
        verification = {"verification": found.document()}
    errors = profile_errors(study, planned, part(progress, 0.7, 0.85))
    worth = worth_document(study, planned, part(progress, 0.85, 1.0))
    figures = _figures(study, planned) | {"worth": worth}
    return Outcome(
        {
            "kind": "plan",
            **frame(study),
            **figures,
            **verification,
            "pd_ratios": stated_ratios(study.hardware, study.traffic.lengths),
            "plan": figures,
            "profile_error": errors,
            "forecast": {"series": doc.forecast_document(planned.forecasts)},
            "seconds": time.perf_counter() - begun,
        },
        {
            "demand": tables.demand_table(study.traffic.demand),
            "forecast": tables.forecast_table(planned.forecasts),
            "plan": tables.plan_table(planned.plan, study.hardware, study.sizes.theta_tps),
        },
    )


def simulate(
    scenario: Scenario,
    traces: Traces,
    *,
    policy: str,
    seed: int | None = None,
    requests: bool = False,
    known: Known = NOTHING,
    progress: Progress,
) -> Outcome:
    """One policy replayed on the scenario's requests; ``seed`` stands in for the scenario's, with
    ``requests`` a table has a row per request."""
    begun = time.perf_counter()
    scenario = _seeded(scenario, seed)
    study = study_of(scenario, traces, known, part(progress, 0.0, 0.3))
    run = run_policy(
        study,
        _policy(scenario, policy),
        seed=scenario.seed,
        progress=part(progress, 0.3, 1.0),
        requests=requests,
    )
    comparison = compare_runs([run])
    return Outcome(
        {
            "kind": "simulate",
            "policy": run.name,
            **frame(study),
            **doc.policy_document(run),
            **doc.comparison_document(comparison),
            "headline": f"{run.label}: {run.summary.gpu_hours:,.1f} GPU-hours.",
            "seconds": time.perf_counter() - begun,
        },
        {
            "demand": tables.demand_table(study.traffic.demand),
            **_replayed(comparison),
            **({} if run.detail.requests is None else {REQUESTS: run.detail.requests}),
        },
    )


def compare(
    scenario: Scenario,
    traces: Traces,
    *,
    policies: Sequence[str] = (),
    seed: int | None = None,
    known: Known = NOTHING,
    progress: Progress,
) -> Outcome:
    """Forecast, plan, and replay every policy (the scenario's, or those named) side by side;
    ``seed`` stands in for the scenario's."""
    begun = time.perf_counter()
    scenario = _seeded(scenario, seed)
    study = study_of(scenario, traces, known, part(progress, 0.0, 0.15))
    wanted, left_out = _wanted(scenario, study, policies)
    planned = _planned(study, part(progress, 0.15, 0.3))
    errors = profile_errors(study, planned, part(progress, 0.3, 0.4))
    runs: list[PolicyRun] = []
    for i, policy in enumerate(wanted):
        step = 0.6 / len(wanted)
        try:
            runs.append(
                run_policy(
                    study,
                    policy,
                    seed=scenario.seed,
                    progress=part(progress, 0.4 + step * i, 0.4 + step * (i + 1)),
                    planned=planned if policy.name in PLANS else None,
                )
            )
        except Infeasible as problem:  # of a yardstick; the plan itself has been made above
            left_out.append(f"{label_of(policy)} is left out: {problem}")
        except (ScenarioError, SimulationError) as problem:
            if list(policies) != [ALL]:
                raise
            left_out.append(f"{label_of(policy)} is left out: {problem}")
    if not runs:
        raise Infeasible(" ".join(left_out))
    comparison = compare_runs(runs, scenario.objective.baseline, left_out)
    figures = _figures(study, planned)
    return Outcome(
        {
            "kind": "compare",
            **frame(study),
            "forecast": {"series": doc.forecast_document(planned.forecasts)},
            "plan": figures,
            "pd_ratios": stated_ratios(study.hardware, study.traffic.lengths),
            "profile_error": errors,
            **doc.comparison_document(comparison),
            "seconds": time.perf_counter() - begun,
        },
        {
            "demand": tables.demand_table(study.traffic.demand),
            "forecast": tables.forecast_table(planned.forecasts),
            "plan": tables.plan_table(planned.plan, study.hardware, study.sizes.theta_tps),
            **_replayed(comparison),
        },
    )


def _figures(study: Study, planned: Planned) -> doc.Document:
    more = plan_more(planned.plan, study.hardware, study.scenario, study.sizes)
    return doc.plan_document(planned.plan, study.hardware) | more


def _replayed(comparison: PolicyComparison) -> dict[str, pl.DataFrame]:
    return {
        "replicas": tables.replicas_table(comparison),
        "policies": tables.policies_table(comparison),
        "tiers": tables.tiers_table(comparison),
        "groups": tables.groups_table(comparison),
    }


def study_of(scenario: Scenario, traces: Traces, known: Known, progress: Progress) -> Study:
    """Hardware, traffic, sizes and requests of a scenario's window."""
    hardware = build_hardware(scenario, known, spot=True)
    progress(0.0, "Reading the traffic")
    traffic = build_traffic(scenario, traces)
    window = resolve_window(scenario, traffic.demand, traffic.clock)
    sizes = size(hardware, traffic, scenario.seed, part(progress, 0.2, 0.9))
    progress(0.9, "Preparing the requests")
    if window.ahead:
        requests, notes = requests_ahead(scenario, traffic, window)
        traffic = replace(traffic, notes=traffic.notes + notes)
    else:
        requests = traffic.requests(window.start_s, window.end_s, scenario.seed)
    return prepare(scenario, hardware, traffic, window, sizes, requests)


def _seeded(scenario: Scenario, seed: int | None) -> Scenario:
    return scenario if seed is None else scenario.model_copy(update={"seed": seed})


def _planned(study: Study, progress: Progress) -> Planned:
    return plan_window(
        study.scenario,
        study.hardware,
        study.traffic,
        study.window,
        study.sizes,
        current=study.today,
        progress=progress,
    )


def _wanted(
    scenario: Scenario, study: Study, names: Sequence[str]
) -> tuple[list[Policy], list[str]]:
    """The policies to compare, today's fleet first where it is known, and a sentence for each that
    was not asked for by name and cannot be run."""
    everything = list(names) == [ALL]
    wanted = [_policy(scenario, name) for name in names if name != ALL]
    if everything:
        wanted = _every(scenario)
    wanted = wanted or list(scenario.policies)
    if study.hardware.today is not None and "today" not in {policy.name for policy in wanted}:
        wanted.insert(0, policy_of("today"))
    left_out, able = [], []
    for policy in wanted:
        try:
            check_policy(study, policy.name)
            able.append(policy)
        except ScenarioError as problem:
            if not everything:
                raise
            if policy.name != "today":  # nobody asked for what nobody described
                left_out.append(f"{label_of(policy)} is left out: {problem}")
    return able, left_out


def _every(scenario: Scenario) -> list[Policy]:
    """Every policy there is, those of the scenario with its parameters."""
    own = {policy.name for policy in scenario.policies}
    others = (policy_of(name) for name in policy_names() if name not in own)
    order = {name: i for i, name in enumerate(policy_names())}
    return sorted([*scenario.policies, *others], key=lambda policy: order[policy.name])


def _policy(scenario: Scenario, name: str) -> Policy:
    """The scenario's own policy of that name (with its label, where it has one) and its
    parameters, else the built-in one."""
    for tells in ("key", "name"):
        own = next((one for one in scenario.policies if getattr(one, tells) == name), None)
        if own is not None:
            return own
    if name not in policy_names():
        labelled = [policy.key for policy in scenario.policies if SEPARATOR in policy.key]
        choices = ", ".join([*labelled, *policy_names()])
        raise ScenarioError(f"There is no policy {name!r}; choose from {choices}.")
    return policy_of(name)


def _gaps(traffic: Traffic, window: Window) -> list[str]:
    gaps = traffic.demand.gaps(window.start_s, window.end_s)
    if not gaps:
        return []
    return [
        f"{gaps} of the {round(window.duration_s / window.bin_s)} bins of the window were not "
        "observed in full: what came then is neither replayed nor in any figure."
    ]


def frame(study: Study) -> doc.Document:
    """What every result says about what it rests on."""
    return {
        "scenario": study.scenario.name,
        "window": doc.window_document(study.window, study.traffic),
        "capacity": doc.capacity_document(study.sizes, study.hardware),
        "provenance": doc.provenance_document(study),
        "notes": [
            *_gaps(study.traffic, study.window),
            *([study.misfit] if study.misfit else []),
            "Planned policies begin the window with their first fleet up, as if the plan had been "
            "followed before; reactive scaling begins with today's fleet.",
            *study.traffic.notes,
            *study.sizes.notes,
        ],
        "requests": len(study.trace),
    }
