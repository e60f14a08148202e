"""Build the comparison page of several runs: rows of figures, and charts."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import polars as pl

from planner.domain.columns import SHARE, TEXT
from planner.domain.formats import (
    NOTHING,
    figure,
    lower_first,
    minus,
    percent,
    signed_percent,
    when,
)
from planner.domain.reports.over_time import BORROWED, to_end
from planner.domain.results.stored import StoredPolicy, StoredResult
from planner.errors import ScenarioError
from planner.inputs.scenario.document import parse
from planner.inputs.scenario.schema import Scenario
from planner.models import Run
from planner.outputs.render.figure import Figure
from planner.outputs.table_text import figure_text
from planner.selectors.run_comparison import (
    MIN_RUNS,
    RunComparison,
    compare_runs,
    why_not_ranked,
)
from planner.selectors.run_comparison_figures import BETTER, ComparedFigure, Group
from planner.selectors.runs import (
    answer_of,
    run_table,
    run_tables,
    runs_with_answers,
    stored_result,
)
from planner.web.charts.run_comparison import Course, course_figure
from planner.web.pages.setting_lines import Cell, Line, setting_lines
from planner.web.request import TemplateContext

# Figures that are shown at once, by their column. The others are in folds.
SIMULATED = ("cost_usd", "slo_attainment", "gpu_hours", "energy_kwh", "carbon_kg", "starts_total")
PLANNED = ("usd", "gpu_hours", "kwh")
NOT_SIMULATED = "not simulated"
DIFFERENT_KINDS = "Runs of different kinds have no common cost. Compare runs of one kind"
SAME_COST = 0.005  # share of the cost within which no run is cheaper


def page_context(runs: Sequence[Run], params: Mapping[str, str]) -> TemplateContext:
    """Return the context of the page that compares ``runs``."""
    comparison = compare_runs(runs, params.get("policy", ""))
    results = [stored_result(run) for run in runs]
    windows = {(compared.start, compared.end) for compared in comparison.runs}
    clocks = {result.clock for result in results}
    main, names = next(
        (
            (group, names)
            for title, names in (("As simulated", SIMULATED), ("As planned", PLANNED))
            for group in comparison.groups
            if group.title == title
        ),
        (None, ()),
    )
    numbers = [run.pk for run in runs]
    scenarios = [scenario_of(run) for run in runs]
    unlike = main is None and len({run.kind for run in runs}) > 1
    window_texts = [
        f"{when(compared.start, result.clock, zoned=False)} to {when(compared.end, result.clock)}"
        if compared.start
        else ""
        for compared, result in zip(comparison.runs, results, strict=True)
    ]
    labels = {compared.label for compared in comparison.runs}
    common = [texts.pop() for texts in ({run.name for run in runs}, {*window_texts}, labels)
              if len(texts) == 1 and texts != {""}]  # fmt: skip
    return {
        "beside": comparison,
        "common": common,  # what would be the same in every column
        "columns": [
            (compared, window, _query(compared.run, numbers))
            for compared, window in zip(comparison.runs, window_texts, strict=True)
        ],
        "numbers": numbers,
        "verdict": DIFFERENT_KINDS if unlike else verdict(comparison, results, main),
        "note": main.note if main else "",
        "unlike": unlike,
        "main": list(_main_lines(comparison, results, main, names))
        if main
        else [_answers_line(numbers)],
        "numeric": main is not None,
        "differences": setting_lines(comparison.differences, scenarios),
        "groups": [
            (group.title, group.note, rows)
            for group in comparison.groups
            if (rows := [figure_line(row) for row in group.rows])
        ],
        "policy": params.get("policy", ""),
        "policies": {name: label for each in results for name, label in each.labels.items()},
        "replica_figure": replica_chart(
            runs, comparison, next(iter(clocks)), apart=len(windows) > 1 or len(clocks) > 1
        ),
    }


def _main_lines(
    comparison: RunComparison, results: Sequence[StoredResult], main: Group, names: Sequence[str]
) -> Iterator[Line]:
    """Yield the lines of ``names`` in the group ``main``.

    For planned figures, a line with the simulated cost comes first. The second line tells whether
    each run meets its SLO.
    """
    planned = names == PLANNED
    policies = [
        result.policies.get(compared.policy)
        for compared, result in zip(comparison.runs, results, strict=True)
    ]
    met = Line("Meets its SLO", tuple(Cell(_slo_text(policy)) for policy in policies))
    if planned:
        texts = (figure(policy.cost_usd, "$") if policy else NOT_SIMULATED for policy in policies)
        yield Line("Simulated cost", tuple(Cell(text) for text in texts))
        yield met
    for name in names:
        for row in main.rows:
            if row.name == name:
                # A change between runs that do not compare would look like a saving.
                line = figure_line(
                    replace(row, changes=(None,) * len(row.values)) if main.note else row
                )
                label = line.label if line.label.startswith("GPU") else lower_first(line.label)
                yield replace(line, label=f"Planned {label}") if planned else line
        if name == "cost_usd":
            yield met


def _slo_text(policy: StoredPolicy | None) -> str:
    """Return whether the simulated ``policy`` meets every SLO; None: it was not simulated."""
    if policy is None:
        return NOT_SIMULATED
    return "yes" if all(policy.slo_met.values()) else "no"


def _answers_line(numbers: Sequence[int]) -> Line:
    """Return a line with the answer of each run, for runs that share no figure of cost."""
    answers = {run.pk: answer_of(run) for run in runs_with_answers().filter(pk__in=numbers)}
    return Line("Result", tuple(Cell(answers[number] or NOTHING) for number in numbers))


def _query(first: int, numbers: Sequence[int]) -> str:
    """Return the query of the page that compares runs ``numbers`` with run ``first``."""
    in_order = [first, *(number for number in numbers if number != first)]
    return "&".join(f"run={number}" for number in in_order)


def scenario_of(run: Run) -> Scenario | None:
    """Return the scenario of a run; None if this version cannot read it."""
    try:
        return parse(run.document, run.name or "scenario")
    except ScenarioError:
        return None


def verdict(comparison: RunComparison, results: Sequence[StoredResult], main: Group | None) -> str:
    """Return which run is cheapest and meets the SLO, or why the costs of the runs do not compare.

    ``main`` is the group with the costs; its note says why they do not compare. Return "" if fewer
    than ``MIN_RUNS`` runs have a cost.
    """
    if main is None:
        return ""
    costs = next((row.values for row in main.rows if row.name in ("cost_usd", "usd")), ())
    priced = {
        compared.run: (float(usd), result.policies.get(compared.policy))
        for compared, result, usd in zip(comparison.runs, results, costs, strict=False)
        if usd is not None
    }
    if len(priced) < MIN_RUNS:
        return ""
    planned = main.rows[0].name in PLANNED
    # A simulated run costs more than its plan, and its own page shows the simulated cost.
    simulated = ", ".join(
        f"run {compared.run} {figure(result.policies[compared.policy].cost_usd, '$')}"
        for compared, result in zip(comparison.runs, results, strict=True)
        if planned and compared.policy in result.policies
    )
    simulated_note = f" (simulated: {simulated})" if simulated else ""
    if main.note:
        unsimulated = [run for run, (_, policy) in priced.items() if policy is None]
        if simulated and unsimulated:
            return _unsimulated_verdict(comparison, results, priced, unsimulated)
        if (
            not planned
            and len(priced) == MIN_RUNS
            and not why_not_ranked(results, comparison.differences)
        ):
            return _verdict_of_two(priced)
        stated = ", ".join(f"run {run} {figure(usd, '$')}" for run, (usd, _) in priced.items())
        return f"{'Planned costs' if planned else 'Costs'} do not compare: {stated}{simulated_note}"
    usd_by_run = {run: usd for run, (usd, _) in priced.items()}
    if planned:
        return _cheapest(usd_by_run, usd_by_run, f"as planned{simulated_note or ', not simulated'}")
    meeting = {
        run: usd for run, (usd, policy) in priced.items() if policy and all(policy.slo_met.values())
    }
    if not meeting:
        cheapest = min(usd_by_run, key=lambda run: usd_by_run[run])
        cost = figure(usd_by_run[cheapest], "$")
        return f"No run meets the SLO. Run {cheapest} costs least: {cost}"
    if len(meeting) == 1:
        ((run, usd),) = meeting.items()
        return f"Only run {run} meets the SLO: {figure(usd, '$')}"
    if len(meeting) == len(priced):
        return _cheapest(meeting, usd_by_run, "and all runs meet the SLO")
    return _cheapest(meeting, usd_by_run, f"of the {len(meeting)} runs that meet the SLO")


def _cheapest(candidates: Mapping[int, float], usd_by_run: Mapping[int, float], basis: str) -> str:
    """Return which of the ``candidates`` is cheapest, and how much the next one costs more.

    Both mappings have the dollars of a run by its number. ``basis`` ends the sentence.
    """
    cheapest = min(candidates, key=lambda run: candidates[run])
    others = [usd for run, usd in candidates.items() if run != cheapest]
    next_usd = min(others or [usd for run, usd in usd_by_run.items() if run != cheapest])
    saving = 1 - candidates[cheapest] / next_usd if next_usd else 0.0
    if abs(saving) < SAME_COST:
        return f"The cost is the same, {figure(candidates[cheapest], '$')}, {basis}"
    cost = f"{figure(candidates[cheapest], '$')}, {percent(saving)} less than the next"
    return f"Run {cheapest} is cheapest: {cost}, {basis}"


def _verdict_of_two(priced: Mapping[int, tuple[float, StoredPolicy | None]]) -> str:
    """Return how the costs of two runs with other limits differ, and which run misses its SLO.

    ``priced`` has the dollars and the simulated policy by run.
    """
    (cheaper, (less, _)), (dearer, (more, _)) = sorted(priced.items(), key=lambda item: item[1][0])
    missed = [run for run, (_, policy) in priced.items() if _slo_text(policy) != "yes"]
    slo = f"Run {missed[0]} misses its SLO" if missed else "Each meets its own SLO"
    if len(missed) == len(priced):
        slo = "Neither meets its SLO"
    extra = (
        f"{figure(more - less, '$')} ({percent(more / less - 1)})" if less else figure(more, "$")
    )
    return f"Run {dearer} costs {extra} more than run {cheaper}. {slo}"


def _unsimulated_verdict(
    comparison: RunComparison,
    results: Sequence[StoredResult],
    priced: Mapping[int, tuple[float, StoredPolicy | None]],
    unsimulated: Sequence[int],
) -> str:
    """Return how the cost of each unsimulated plan differs from that of the cheapest simulated run.

    ``priced`` has the planned dollars and the simulated policy (None: not simulated) by run.
    ``unsimulated`` are the numbers of the runs without a simulation.
    """
    spare = {
        compared.run: bool(result.plan and result.plan.spare)
        for compared, result in zip(comparison.runs, results, strict=True)
    }
    base = min(priced.keys() - unsimulated, key=lambda run: priced[run][0])
    sentences = []
    for run in unsimulated:
        extra = priced[run][0] - priced[base][0]
        more = "more" if extra > 0 else "less"
        risk = "" if spare[run] else " has no spare replica and"
        sentences.append(
            f"Run {run} costs {figure(abs(extra), '$')} {more} than run {base} as planned, "
            f"but{risk} is not simulated"
        )
    return ". ".join(sentences)


def figure_line(row: ComparedFigure) -> Line:
    """Return a figure as a line of the table, with one cell per run."""
    cells = tuple(
        Cell(
            figure_text(value, row.unit) if value is not None else NOTHING,
            _change_text(row, change),
            mark,
            None if not mark else mark == BETTER,
        )
        for value, change, mark in zip(row.values, row.changes, row.marks, strict=True)
    )
    return Line(row.label, cells, row.help, row.unit != TEXT)


def _change_text(row: ComparedFigure, change: float | None) -> str:
    """Return a change as text: points for shares, else percent of the first run; "" if none."""
    if change is None or change == 0:
        return ""
    if row.unit == SHARE:
        points = round(100 * change, 2)
        return minus(f"{points:+g} points") if points else ""
    return signed_percent(change, 0 if abs(change) >= 1 else 1)


def replica_chart(
    runs: Sequence[Run], comparison: RunComparison, clock: str, *, apart: bool
) -> Figure | None:
    """Return the chart of ready replicas over time, with a line per run; None if few have them.

    ``comparison`` says which policy of each run counts. With ``apart``, the runs have different
    windows, so each line begins at hour 0.
    """
    courses = [
        course
        for run, compared in zip(runs, comparison.runs, strict=True)
        if (course := course_of(run, compared.policy)) is not None
    ]
    return course_figure(courses, "ready", "replicas", clock=clock, apart=apart)


def replica_steps(run: Run) -> tuple[pl.DataFrame | None, dict[str, str]]:
    """Return replicas over time and the labels of policies: as simulated, else as planned.

    The table has columns time, policy, ready and those of a pool. It is None if the run has none.
    Cached on ``run``, because a page asks for several policies.
    """
    if "replica_steps" not in vars(run):
        vars(run)["replica_steps"] = _read_replica_steps(run)
    steps: tuple[pl.DataFrame | None, dict[str, str]] = vars(run)["replica_steps"]
    return steps


def _read_replica_steps(run: Run) -> tuple[pl.DataFrame | None, dict[str, str]]:
    """Read the table and labels of ``replica_steps`` from the tables of the run.

    The planned replicas are labelled with the policy that follows a plan.
    """
    names, result = run_tables(run), stored_result(run)
    if "replicas" in names:
        steps = run_table(run, "replicas")
        steps = steps.filter(~pl.col("arrangement").str.ends_with(BORROWED))  # serve nobody
        labels = result.labels or {name: name for name in steps["policy"].unique().sort()}
        return steps, {name: f"{label}, simulated" for name, label in labels.items()}
    if "plan" in names:
        plan = run_table(run, "plan").rename({"period_start": "time", "target": "ready"})
        assert result.window is not None  # runs with a plan have one
        plan = to_end(plan, result.window.end).with_columns(pl.lit("lt-i").alias("policy"))
        return plan, {"lt-i": "Planned replicas"}
    return None, {}


def course_of(run: Run, policy: str) -> Course | None:
    """Return the replicas of a run over time, summed over pools: as simulated, else as planned.

    With ``policy`` "", the run's first one counts. None if the run has no replicas over time.
    """
    steps, labels = replica_steps(run)
    if steps is None:
        return None
    name = policy or next(iter(labels), "")
    rows = steps.filter(pl.col("policy") == name)
    if rows.is_empty():
        return None
    sums = [pl.col(column).sum() for column in ("ready", "usd_per_hour") if column in rows.columns]
    label = f"Run {run.pk}, {labels.get(name, name)}" if name else f"Run {run.pk}"
    return Course(label, rows.group_by("time").agg(sums).sort("time"))
