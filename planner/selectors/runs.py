"""Read runs, their results and tables, and the savings of policies."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import polars as pl
from django.db.models import QuerySet
from django.db.models.fields.json import KT
from django.db.models.functions import Coalesce

from planner.domain.formats import figure
from planner.domain.replay.equal_attainment import EQUAL_SLO
from planner.domain.results.stored import StoredPolicy, StoredResult
from planner.domain.serialise import from_json
from planner.errors import NotReady
from planner.models import Firing, Run
from planner.selectors.lookup import row_by_number
from planner.storage import row_arrays

T = TypeVar("T")

RECENT = 6  # most runs of a short list
MEASURES = ("gpu_hours", "cost_usd", "energy_kwh", "carbon_kg")


def runs_list() -> QuerySet[Run]:
    """Return the runs with the columns that lists need; large columns are not loaded."""
    return Run.objects.select_related("scenario", "trace", "owner").defer(
        "document", "log", "traceback", "result"
    )


def runs_with_answers() -> QuerySet[Run]:
    """Return the runs of ``runs_list``, each with the values that ``answer_of`` reads."""
    return runs_list().annotate(
        headline=Coalesce(KT("result__headline"), KT("result__verdict")),
        policy_label=KT("result__recommended__label"),
        policy_usd=KT("result__recommended__cost_usd"),
        plan_usd=KT("result__plan__totals__usd"),
        read_requests=KT("result__requests"),
    )


def recent_runs() -> list[Run]:
    """Return the newest runs with answers, without trace imports and runs of sweeps."""
    answers = runs_with_answers().filter(sweep=None).exclude(kind=Run.Kind.INGEST)
    return list(answers[:RECENT])


def scheduled_runs() -> list[Run]:
    """Return the newest runs that schedules started, with answers."""
    fired = Firing.objects.exclude(run=None).values("run")
    return list(runs_with_answers().filter(pk__in=fired)[:RECENT])


def answer_of(run: Run) -> str:
    """Return the answer or the problem of a run in a few words; "" if it has neither.

    The run must come from ``runs_with_answers``.
    """
    figures = vars(run)
    if figures["policy_label"] and figures["policy_usd"]:
        basis = ", not simulated" if run.kind == Run.Kind.PLAN else ""
        return f"{figures['policy_label']}: {figure(float(figures['policy_usd']), '$')}{basis}"
    if figures["headline"]:
        first_clause, *_ = re.split(r"[.;]( |$)", figures["headline"])
        return first_clause
    if figures["plan_usd"]:
        return f"{figure(float(figures['plan_usd']), '$')} as planned"
    if run.kind == Run.Kind.INGEST and figures["read_requests"]:
        return f"{int(figures['read_requests']):,} requests"
    first_line, _, _ = run.problem.partition("\n")
    return first_line


def run_get(run_id: int) -> Run:
    """Return a run by number; raise NotFound."""
    return row_by_number(Run.objects.select_related("scenario", "trace", "owner"), "run", run_id)


def latest_plan(name: str) -> Run | None:
    """Return the newest completed plan or comparison of the scenario ``name``, or None."""
    plans = Run.objects.filter(kind__in=(Run.Kind.PLAN, Run.Kind.COMPARE))
    return plans.filter(name=name, state=Run.State.COMPLETED).first()


def run_preview(run: Run) -> dict[str, Any] | None:
    """Return the preliminary result of an unfinished run (``Preview`` as JSON), or None."""
    preview: dict[str, Any] | None = None if run.is_finished else run.result.get("preview")
    return preview


def run_result(run: Run) -> dict[str, Any]:
    """Return the result document of a completed run; else raise NotReady with its state."""
    if run.state != Run.State.COMPLETED:
        reason = run.problem or f"it is {run.get_state_display().lower()}."
        raise NotReady(f"Run {run.pk} has no results: {reason}")
    result: dict[str, Any] = run.result
    return result


def typed_result(run: Run, kind: type[T]) -> T:
    """Return the result of a run as the dataclass ``kind``; raise NotReady as ``run_result``."""
    return from_json(kind, run_result(run))


def stored_result(run: Run) -> StoredResult:
    """Return the parts of a result that all kinds of runs share; raise NotReady as ``run_result``.

    A page asks for them many times, so they are kept on the object ``run``.
    """
    document = run_result(run)
    parsed_document, stored = vars(run).get("stored", (None, None))
    if not isinstance(stored, StoredResult) or parsed_document is not document:
        stored = typed_result(run, StoredResult)
        vars(run)["stored"] = document, stored
    return stored


def run_tables(run: Run) -> list[str]:
    """Return the names of the tables of a run; [] if it is not completed."""
    return row_arrays.tables_list(run.store) if run.state == Run.State.COMPLETED else []


def run_table(run: Run, name: str, offset: int = 0, limit: int | None = None) -> pl.DataFrame:
    """Return rows of a table of a completed run: ``limit`` (None: all) from ``offset`` on."""
    run_result(run)
    return row_arrays.table_read(run.store, name, offset, limit)


def run_table_rows(run: Run, name: str) -> int:
    """Return the number of rows of a table of a completed run."""
    run_result(run)
    return row_arrays.table_rows(run.store, name)


def run_table_path(run: Run, name: str) -> Path:
    """Return the path of the Parquet file of a table of a completed run."""
    run_result(run)
    return row_arrays.table_path(run.store, name)


def savings(
    policies: Mapping[str, StoredPolicy], baseline: str
) -> dict[str, dict[str, dict[str, float | None]]]:
    """Return the savings of each policy, by measure in MEASURES.

    A saving has the keys ``value``, ``baseline``, ``saved``, ``fraction`` and ``equal``. A negative
    saving is a loss. ``fraction`` is a share of the baseline's value, None if that value is zero.
    ``equal`` is that of ``saving_at_equal`` for the cost, else None.
    """
    base = policies[baseline]
    savings: dict[str, dict[str, dict[str, float | None]]] = {}
    for name, policy in policies.items():
        for measure in MEASURES:
            value, base_value = getattr(policy, measure), getattr(base, measure)
            saved = base_value - value
            savings.setdefault(name, {})[measure] = {
                "value": value,
                "baseline": base_value,
                "saved": saved,
                "fraction": saved / base_value if base_value else None,
                "equal": saving_at_equal(policy, base) if measure == "cost_usd" else None,
            }
    return savings


def saving_at_equal(policy: StoredPolicy, base: StoredPolicy) -> float | None:
    """Return the saving in cost of a policy over ``base`` at equal SLO attainment, as a share.

    To compare unequal attainments, each cost is divided by ``flat_usd``, the cost of a static fleet
    with the same attainment. None if the attainments are equal, or if a cost is not known.
    """
    is_unequal = False
    for tier, share in policy.slo_attainment.items():
        base_share = base.slo_attainment.get(tier)
        if share is not None and base_share is not None and abs(share - base_share) > EQUAL_SLO:
            is_unequal = True
    if not (is_unequal and policy.flat_usd and base.flat_usd and base.cost_usd):
        return None
    if policy.cost_usd is None:
        return None
    return 1 - (policy.cost_usd / policy.flat_usd) / (base.cost_usd / base.flat_usd)
