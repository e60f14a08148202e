"""Answer what-if questions: from a stored plan at once, or by runs of changed scenarios.

A sweep is a grid of runs over the values of one or two settings. A cell is one point of the grid.
"""

import json
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import lru_cache
from hashlib import sha256
from itertools import pairwise
from typing import Any

from django.core.cache import cache
from django.db import transaction

from planner.domain.kinds.pareto import ParetoResult, planned_together
from planner.domain.kinds.plan import Options, with_objective
from planner.domain.kinds.registry import KINDS
from planner.domain.options import options_of
from planner.domain.outlook.calendar import WEEK_S
from planner.domain.report import Report
from planner.domain.reports.whatif import grid_report
from planner.domain.results.answer import span_of
from planner.domain.whatif.answer import StoredPlan, answer
from planner.domain.whatif.figures import SimulatedPolicy, WhatIf
from planner.domain.whatif.plan_inputs import from_arrays
from planner.domain.whatif.settings import (
    SHARE,
    Axis,
    Setting,
    Variation,
    cells_of,
    is_address,
    settings_for,
    shares_of,
    variation_of,
    varied_document,
)
from planner.errors import KeyReused, NotReady, PlannerError
from planner.inputs.scenario import document as text
from planner.inputs.scenario.build import build_hardware
from planner.inputs.scenario.schema.test_days import LEVELS
from planner.inputs.scenario.settings import MEASURE
from planner.models import Run, Scenario, Sweep, User, take_numbers
from planner.optimizer.pareto_front import TIE
from planner.policies.base import SEPARATOR
from planner.policies.choice import policy_of
from planner.selectors.run_hardware import hardware_of, stored_hardware
from planner.selectors.runs import run_result, stored_result, typed_result
from planner.selectors.sweeps import sweep_cells, sweep_figures, varied_settings
from planner.services import runs
from planner.services.access import check_may_plan, check_may_remove
from planner.services.drafts import MAX_REPLAYED_REQUESTS
from planner.services.execution import BASIS
from planner.services.run_queue import check_waiting_limit
from planner.services.scenario_hardware import resolve_scenario
from planner.services.scenarios import document_run, free_name, scenario_create, scenario_run
from planner.storage import row_arrays
from planner.version import code_version

WITH_PLAN = (Run.Kind.PLAN, Run.Kind.COMPARE, Run.Kind.PARETO)
PERIOD_S = 3600.0
KEPT_S = 86_400  # time that the answer of a cell stays in the cache
SPARE = "objective.spare.instances"
END_RATE = 100.0  # factor from the slope beside an end of a front to the slope at the end
THE_PLAN = "lt-i"  # policy that follows the plan of a plan run
Chosen = Mapping[str, Any]  # values by the name of a setting, or by an address of the scenario


@dataclass(frozen=True, slots=True, eq=False)
class Base:
    """The stored plan of a run that a what-if changes, and the settings that it may change."""

    plan: StoredPlan
    settings: dict[str, Setting]


def base_of(run: Run) -> Base:
    """Return the plan that a run stored, and its settings; raise NotReady if it has none."""
    run_result(run)
    if run.kind not in WITH_PLAN:
        raise NotReady(f"Run {run.pk} has no plan. Run a plan or a comparison of its scenario.")
    return _base(run.pk, run.store, run.finished_at)


@lru_cache(maxsize=16)
def _base(pk: int, store: str, finished_at: datetime | None) -> Base:
    """Return the stored plan of run ``pk`` and the settings of a what-if, loaded once per process.

    ``store`` and ``finished_at`` tell it apart from a run that was restored under the same number.
    """
    run = Run.objects.get(pk=pk, store=store, finished_at=finished_at)
    basis = from_arrays(row_arrays.arrays_read(store, BASIS))
    if basis is None:
        raise NotReady(f"Run {pk} stored no inputs of its plan. Run it again.")
    scenario = text.parse(run.document)
    # These kinds of run change the scenario before they plan.
    if run.kind == Run.Kind.PLAN:
        scenario = with_objective(scenario, options_of(Options, run.options))
    elif run.kind == Run.Kind.PARETO:
        scenario = planned_together(scenario)
    plan = StoredPlan(scenario, stored_hardware(run.resolved), basis)
    hardware = build_hardware(scenario, plan.known, spot=True)
    return Base(plan, settings_for(plan.scenario_with_spare, hardware))


def what_if_answer(run: Run, chosen: Chosen) -> WhatIf:
    """Return the plan of a run for ``chosen`` values of settings, without a simulation."""
    answered, _ = _answer_and_variation(base_of(run), chosen)
    return replace(answered, recommended=recommended_policy(run))


def recommended_policy(run: Run) -> SimulatedPolicy | None:
    """Return the recommended policy of a comparison, as it was simulated, to compare plans with.

    None for other kinds of run, and for a comparison that recommends none. A policy that scales by
    its own rule has no range of replicas.
    """
    result = stored_result(run)
    recommended = result.recommended
    if run.kind != Run.Kind.COMPARE or not recommended or recommended.policy not in result.policies:
        return None
    figures = result.policies[recommended.policy]
    timetable = recommended.timetable
    assert figures.cost_usd is not None  # it was simulated
    return SimulatedPolicy(
        recommended.policy,
        figures.label,
        figures.cost_usd,
        span_of(timetable.rows) if timetable and not timetable.by_itself else None,
    )


def _answer_and_variation(base: Base, chosen: Chosen) -> tuple[WhatIf, Variation]:
    """Return the plan for ``chosen`` values of settings, and these values by address."""
    variation = variation_of(base.settings, chosen)
    return answer(base.plan, variation, shares_of(chosen))


def what_if_cells(
    run: Run, cells: Sequence[Mapping[str, Any]], within_s: float
) -> list[WhatIf | PlannerError | None]:
    """Return the plan for the values of each cell, or the error that it raises.

    After ``within_s`` seconds and at least one new answer, the remaining cells are None. Answers
    are cached, so the next call continues where this one stopped.
    """
    base = base_of(run)
    answers: list[WhatIf | PlannerError | None] = []
    began_s, has_new_answer = time.monotonic(), False
    for chosen in cells:
        # The key of an answer: the stored inputs, the code, and the values.
        content = [run.pk, run.store, str(run.finished_at), code_version(), dict(chosen)]
        key = f"whatif-{sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()}"
        cell_answer = cache.get(key)
        has_time = time.monotonic() - began_s < within_s
        if cell_answer is None and (has_time or not has_new_answer):
            has_new_answer = True
            try:
                cell_answer, _ = _answer_and_variation(base, chosen)
            except PlannerError as problem:
                cell_answer = problem
            cache.set(key, cell_answer, KEPT_S)
        answers.append(cell_answer)
    return answers


def what_if_scenario(*, run: Run, user: User, chosen: Chosen) -> Scenario:
    """Store a copy of the run's scenario with the ``chosen`` values of settings."""
    check_may_plan(user)
    changes = {**_objective(run), **_changes(run, chosen), "name": _new_name(run)}
    return scenario_create(owner=user, document=text.edit(run.document, changes))


def what_if_replay(*, run: Run, user: User, chosen: Chosen, idempotency_key: str = "") -> Run:
    """Start a run of the same kind on a copy of the scenario with the ``chosen`` values.

    The original run and scenario do not change. The same ``idempotency_key`` returns the first new
    run. Raises KeyReused for a different request.
    """
    check_may_plan(user)
    changes = _changes(run, chosen)
    kept_options = run.options.keys() - {"seed"} - changes.keys()
    return run_on_draft(
        run=run, user=user, kind=run.kind, changes=changes, name=_new_name(run),
        options={key: run.options[key] for key in kept_options}, idempotency_key=idempotency_key,
    )  # fmt: skip


def what_if_simulate(*, run: Run, user: User | None, chosen: Chosen, enqueue: bool = True) -> Run:
    """Simulate the recommended policy of a run, with its parameters, on ``chosen`` values.

    Without ``enqueue``, the caller executes the new run.
    """
    document, policy = _simulation(run, _changes(run, chosen))
    return document_run(
        document=document, owner=user, kind=Run.Kind.SIMULATE, options={"policy": policy},
        enqueue=enqueue,
    )  # fmt: skip


def what_if_grid(*, run: Run, user: User, chosen: Chosen, axes: Sequence[Axis]) -> Sweep:
    """Start a sweep that simulates the recommended policy of a run at each point of a grid.

    ``axes`` are the settings of the grid, and ``chosen`` the changed values of other settings.
    """
    document, policy = _simulation(run, variation_of(base_of(run).settings, chosen))
    return sweep_create(
        owner=user, document=document, axes=axes, kind=Run.Kind.SIMULATE, scenario=run.scenario,
        options={"policy": policy},
    )  # fmt: skip


def what_if_trade_off(*, run: Run, user: User, pair: str) -> Run:
    """Start a run that computes the Pareto front of two objectives for the scenario of ``run``.

    ``pair`` names the objectives: the option ``of`` of the kind pareto.
    """
    # A front of a comparison takes the demand of its plan, which it finds by the same scenario.
    compared = run.kind == Run.Kind.COMPARE
    document = run.document if compared else text.edit(run.document, _objective(run))
    return document_run(document=document, owner=user, kind=Run.Kind.PARETO, options={"of": pair})


def front_values(run: Run, plan: int) -> dict[str, Any]:
    """Return the settings that make a scenario plan like a point of a run's Pareto front.

    ``plan`` is the index of the point. The settings, by address, are weights of both objectives.
    The first has weight 1. The weight of the second is how much of the first one more unit of it is
    worth at that point: the slope of the front there.
    """
    result = typed_result(run, ParetoResult)
    points = result.points
    first, second = result.of
    if not 0 <= plan < len(points):
        raise PlannerError(f"cell: this front has {len(points)} plans.")
    # Slopes between neighbours: units of the first objective that one of the second costs.
    slopes = [
        (left.first - right.first) / (right.second - left.second)
        for left, right in pairwise(points)
    ]
    if not slopes:  # a front of one point
        slope = TIE
    elif plan == 0:  # at an end, far beyond the only slope beside the point
        slope = slopes[0] * END_RATE
    elif plan == len(slopes) or not slopes[plan]:
        slope = slopes[plan - 1] / END_RATE
    else:  # the geometric mean of the slopes on both sides
        slope = math.sqrt(slopes[plan - 1] * slopes[plan])
    return {"objective.weights": {MEASURE[first]: 1.0, MEASURE[second]: float(f"{slope:.4g}")}}


def _simulation(run: Run, changes: Variation) -> tuple[str, str]:
    """Return a run's scenario (YAML) with ``changes`` and one policy, and the policy's name.

    It is the recommended policy, or without a recommendation the one that follows the plan.
    """
    result = stored_result(run)
    policy, _, _ = (result.default_policy or THE_PLAN).partition(SEPARATOR)  # without its label
    parameters = result.recommended.parameters if result.recommended else {}
    # A static fleet is sized again, so its number of replicas is no field of its row.
    fields = type(policy_of(policy)).model_fields
    row: dict[str, Any] = {"name": policy}
    row |= {name: value for name, value in parameters.items() if name in fields}
    return text.edit(run.document, {**_objective(run), **changes, "policies": [row]}), policy


def _objective(run: Run) -> Variation:
    """Return the settings that a run adds to the objective of its scenario, by address.

    A plan adds its options. A comparison may add a spare replica (N+1).
    """
    if run.kind == Run.Kind.COMPARE:
        spare = base_of(run).plan.scenario_with_spare.objective.spare
        if not spare.instances:
            return {}
        return {f"objective.spare.{name}": value for name, value in spare}
    options = run.options if run.kind == Run.Kind.PLAN else {}
    return {f"objective.{key}": value for key, value in options.items() if key != "verify"}


def _new_name(run: Run) -> str:
    """Return a free name for a changed copy of the run's scenario."""
    return free_name(f"{base_of(run).plan.scenario.name[:100]}, what if")


def _changes(run: Run, chosen: Chosen) -> Variation:
    """Return ``chosen`` values by address of the scenario; raise PlannerError if none changes."""
    base = base_of(run)
    changes = variation_of(base.settings, chosen)
    # Shares of GPU types become capacities, which depend on the plan: solve it first.
    if shares_of(chosen):
        _, changes = _answer_and_variation(base, chosen)
    if not changes:
        raise PlannerError("No setting is changed. Change one, or run the scenario again.")
    if run.kind == Run.Kind.COMPARE and changes.get(SPARE) == 0:
        # Higher levels of assurance would add the spare replica again.
        changes = {**changes, "assurance": LEVELS[0]}
    return changes


def run_on_draft(
    *,
    run: Run,
    user: User,
    kind: str,
    name: str,
    changes: Variation,
    options: Mapping[str, Any],
    idempotency_key: str = "",
) -> Run:
    """Start a run of ``kind`` on a new scenario: that of ``run`` with ``changes``, called ``name``.

    The same ``idempotency_key`` returns the first run. Raises KeyReused for a different request.
    """
    first = runs.run_with_key(user, idempotency_key)
    if first is not None:
        if first.document != text.edit(run.document, {**changes, "name": first.name}):
            raise KeyReused.of(idempotency_key, f"run {first.pk}")
        return first
    draft = scenario_create(owner=user, document=text.edit(run.document, {**changes, "name": name}))
    return scenario_run(
        scenario=draft, owner=user, kind=kind, options=dict(options),
        idempotency_key=idempotency_key,
    )  # fmt: skip


def month_to_replay(run: Run) -> str:
    """Return the last month of an outlook that has a plan, such as "2026-11"; "" if none has."""
    months = [row for row in run_result(run)["months"] if row["cost_usd"] is not None]
    return str(months[-1]["month"]) if months else ""


def outlook_replay(*, run: Run, user: User, idempotency_key: str = "") -> Run:
    """Start a comparison for a week in the last month of an outlook, when demand is largest.

    It has a new scenario, with the demand that the outlook forecasts for that month. It shows
    whether requests would meet the SLO.
    """
    check_may_plan(user)
    if run.kind != Run.Kind.OUTLOOK:
        raise PlannerError(
            f"Run {run.pk} is not an outlook. Only an outlook has months to simulate."
        )
    month = month_to_replay(run)
    if not month:
        raise NotReady(f"No month of run {run.pk} has a plan, so there is nothing to replay.")
    growth = next(row["growth"] for row in run_result(run)["months"] if row["month"] == month)
    scenario = text.parse(run.document)
    period_s = scenario.horizon.period_s
    changes = {
        "horizon.start": "end",
        "horizon.duration_s": WEEK_S,
        "horizon.period_s": period_s if period_s and WEEK_S % period_s == 0 else PERIOD_S,
        # The traffic of the trace, scaled to that month's demand.
        "traffic.growth": {"factor": growth},
        "traffic.max_replayed": min(scenario.traffic.max_replayed, MAX_REPLAYED_REQUESTS),
    }
    return run_on_draft(
        run=run, user=user, kind=Run.Kind.COMPARE, changes=changes, options={},
        name=free_name(f"{scenario.name[:80]}, a week of {month}"),
        idempotency_key=idempotency_key,
    )  # fmt: skip


def sweep_create(
    *,
    owner: User | None,
    document: str,
    axes: Sequence[Axis],
    kind: str = Run.Kind.PLAN,
    scenario: Scenario | None = None,
    options: dict[str, Any] | None = None,
    idempotency_key: str = "",
    enqueue: bool = True,
) -> Sweep:
    """Create a run for each cell of a grid over one or two settings (``axes``) of a scenario.

    Without ``enqueue``, the caller executes the runs. The same ``idempotency_key`` of the same
    owner returns the first sweep. Raises ScenarioError before any start if a value makes an invalid
    scenario, and KeyReused if the key belongs to a different request.
    """
    check_may_plan(owner)
    if kind not in KINDS:
        raise PlannerError(f"There is no kind of run {kind!r}. Choose from {', '.join(KINDS)}.")
    documents = _documents(document, axes)
    name = text.parse(document).name
    requested = {
        "kind": kind,
        "document": document,
        "options": options_of(KINDS[kind].options, options or {}).explicit_values(),
        "axes": [{"key": axis.key, "values": list(axis.values)} for axis in axes],
    }
    first = runs.run_with_key(owner, idempotency_key)
    if first is not None:
        stored = {name: getattr(first.sweep, name, None) for name in requested}
        if first.sweep is None or stored != requested:
            raise KeyReused.of(idempotency_key, f"run {first.pk}")
        return first.sweep
    if enqueue:
        check_waiting_limit(owner, len(documents))
    with transaction.atomic():
        sweep = Sweep.objects.create(name=name, scenario=scenario, owner=owner, **requested)
        _create_runs(sweep, documents, idempotency_key, enqueue)
    return sweep


def _create_runs(
    sweep: Sweep, documents: Sequence[str], idempotency_key: str, enqueue: bool
) -> None:
    """Create a run of each document of ``sweep``; the first one has the key."""
    # One lock for all runs, so that their numbers are consecutive.
    numbers = take_numbers(Run, len(documents))
    for cell, (document, number) in enumerate(zip(documents, numbers, strict=True)):
        runs.run_create(
            owner=sweep.owner,
            kind=sweep.kind,
            scenario=sweep.scenario,
            name=sweep.name,
            document=document,
            options=sweep.options,
            seed=sweep.options.get("seed", text.parse(document).seed),
            sweep=sweep,
            cell=cell,
            number=number,
            enqueue=enqueue,
            idempotency_key="" if cell else idempotency_key,
        )


def _documents(document: str, axes: Sequence[Axis]) -> list[str]:
    """Return the YAML of each cell, row by row; raise ScenarioError if one is invalid."""
    keys = [axis.key for axis in axes]
    setting_names = [key for key in keys if not is_address(key)]
    if any(name.startswith(SHARE) for name in setting_names):
        raise PlannerError(f"vary: {setting_names[0]} needs a plan. Simulate its cells one by one.")
    settings: dict[str, Setting] = {}
    if setting_names:
        scenario = text.parse(document)
        hardware = hardware_of(resolve_scenario(scenario))
        settings = settings_for(scenario, build_hardware(scenario, hardware, spot=True))
    documents = []
    for values in cells_of(axes):
        chosen = dict(zip(keys, values, strict=True))
        documents.append(varied_document(document, variation_of(settings, chosen)))
    return documents


def sweep_report(sweep: Sweep, figure_name: str) -> Report:
    """Return the report of a grid of runs, with one figure as its chart; by default the first."""
    figures = sweep_figures(sweep)
    chosen = next((figure for figure in figures if figure.name == figure_name), figures[0])
    return grid_report(sweep.name, sweep_cells(sweep), varied_settings(sweep), chosen, figures)


def sweep_cancel(*, sweep: Sweep, user: User) -> int:
    """Cancel every run of the sweep that has not ended; return how many."""
    check_may_plan(user, refusal="not cancel sweeps")
    return runs.runs_cancel(sweep.runs.all())


def sweep_delete(*, sweep: Sweep, user: User) -> None:
    """Remove a finished sweep, with its runs and their arrays."""
    check_may_remove(user, sweep.owner_id, "this sweep", "started")
    if sweep.runs.filter(state__in=Run.ACTIVE_STATES).exists():
        raise NotReady(f"Sweep {sweep.pk} is still going. Cancel it first.")
    for run in sweep.runs.all():
        runs.check_not_proposed(run)
    for run in sweep.runs.all():
        runs.run_remove(run=run)
    sweep.delete()
