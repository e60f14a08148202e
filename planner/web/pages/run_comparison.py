"""Build the comparison page of several runs: rows of figures, and charts."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

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
    """Return the context of the page that compares ``runs``.

    Its main table has a line per figure if the runs have a cost in common, else the answer of each
    run. The first run is the one that the others are compared with.
    """
    comparison = compare_runs(runs, params.get("policy", ""))
    results = [stored_result(run) for run in runs]
    numbers = [run.pk for run in runs]
    main, names = _main_group(comparison)  # the group with the costs, and its figures to show
    if main is not None:
        lines = list(_main_lines(comparison, results, main, names))
    else:  # without a common cost, show the answer of each run
        answers = {run.pk: answer_of(run) for run in runs_with_answers().filter(pk__in=numbers)}
        lines = [Line("Result", tuple(Cell(answers[number] or NOTHING) for number in numbers))]
    has_unlike_kinds = main is None and len({run.kind for run in runs}) > 1
    window_texts = []  # of each run on its own clock; "" without a window
    for compared, result in zip(comparison.runs, results, strict=True):
        start = when(compared.start, result.clock, zoned=False) if compared.start else ""
        window_texts.append(f"{start} to {when(compared.end, result.clock)}" if start else "")
    queries = []  # of this page with each run as the first one
    for first in numbers:
        others = [number for number in numbers if number != first]
        queries.append("&".join(f"run={number}" for number in [first, *others]))
    return {
        "beside": comparison,
        "common": _common_texts(runs, comparison, window_texts),
        "columns": list(zip(comparison.runs, window_texts, queries, strict=True)),
        "numbers": numbers,
        "verdict": DIFFERENT_KINDS if has_unlike_kinds else verdict(comparison, results, main),
        "note": main.note if main else "",
        "unlike": has_unlike_kinds,
        "main": lines,
        "numeric": main is not None,
        "differences": setting_lines(comparison.differences, [scenario_of(run) for run in runs]),
        "groups": [
            (group.title, group.note, [figure_line(row) for row in group.rows])
            for group in comparison.groups
            if group.rows
        ],
        "policy": params.get("policy", ""),
        "policies": {name: label for result in results for name, label in result.labels.items()},
        "replica_figure": replica_chart(runs, comparison, results),
    }


def _main_group(comparison: RunComparison) -> tuple[Group | None, Sequence[str]]:
    """Return the group with the costs and the names of its main figures; None without costs.

    Simulated costs come before planned ones.
    """
    for title, names in (("As simulated", SIMULATED), ("As planned", PLANNED)):
        for group in comparison.groups:
            if group.title == title:
                return group, names
    return None, ()


def _common_texts(
    runs: Sequence[Run], comparison: RunComparison, window_texts: Sequence[str]
) -> list[str]:
    """Return those of name, window and label that all runs share.

    They would be the same in every column.
    """
    names = [run.name for run in runs]
    labels = [compared.label for compared in comparison.runs]
    common = []
    for texts in (names, window_texts, labels):
        first, *others = texts
        if first and all(text == first for text in others):
            common.append(first)
    return common


def _main_lines(
    comparison: RunComparison, results: Sequence[StoredResult], main: Group, names: Sequence[str]
) -> Iterator[Line]:
    """Yield the lines of the figures ``names`` in the group ``main``, with a cell per run.

    The line that tells whether each run meets its SLO follows the cost. Planned figures (``names``
    is PLANNED) have no simulated cost among them, so a line with that comes first.
    """
    is_planned = names == PLANNED
    policies = [
        result.policies.get(compared.policy)
        for compared, result in zip(comparison.runs, results, strict=True)
    ]
    slo_line = Line("Meets its SLO", tuple(Cell(_slo_text(policy)) for policy in policies))
    if is_planned:
        texts = [figure(policy.cost_usd, "$") if policy else NOT_SIMULATED for policy in policies]
        yield Line("Simulated cost", tuple(map(Cell, texts)))
        yield slo_line
    for name in names:
        for compared_figure in main.rows:  # several have one name: one per tier
            if compared_figure.name != name:
                continue
            if main.note:  # a change between runs that do not compare would look like a saving
                no_changes = (None,) * len(compared_figure.values)
                compared_figure = replace(compared_figure, changes=no_changes)
            line = figure_line(compared_figure)
            if is_planned:
                label = line.label if line.label.startswith("GPU") else lower_first(line.label)
                line = replace(line, label=f"Planned {label}")
            yield line
        if name == "cost_usd":
            yield slo_line


def _slo_text(policy: StoredPolicy | None) -> str:
    """Return whether the simulated ``policy`` meets every SLO; None: it was not simulated."""
    if policy is None:
        return NOT_SIMULATED
    return "yes" if all(policy.slo_met.values()) else "no"


def scenario_of(run: Run) -> Scenario | None:
    """Return the scenario of a run; None if this version cannot read it."""
    try:
        return parse(run.document, run.name or "scenario")
    except ScenarioError:
        return None


@dataclass(frozen=True, slots=True)
class PricedRun:
    """A run with a cost, as the verdict compares it."""

    number: int
    usd: float  # as planned, or as simulated if all runs are
    policy: StoredPolicy | None  # as simulated; None: the run was only planned
    has_spare: bool  # whether its plan survives the loss of a replica

    @property
    def text(self) -> str:
        """Return the run with its cost, such as "run 3 $360"."""
        return f"run {self.number} {figure(self.usd, '$')}"

    @property
    def meets_slo(self) -> bool:
        """Tell whether the run was simulated and met every SLO."""
        return _slo_text(self.policy) == "yes"


def _priced_runs(
    comparison: RunComparison, results: Sequence[StoredResult], main: Group
) -> list[PricedRun]:
    """Return the runs that have a cost in the group ``main``, from the cheapest."""
    cost_row = next((row for row in main.rows if row.name in ("cost_usd", "usd")), None)
    if cost_row is None:
        return []
    priced = []
    for compared, result, usd in zip(comparison.runs, results, cost_row.values, strict=True):
        if usd is not None:
            policy = result.policies.get(compared.policy)
            has_spare = bool(result.plan and result.plan.spare)
            priced.append(PricedRun(compared.run, float(usd), policy, has_spare))
    return sorted(priced, key=lambda run: run.usd)


def verdict(comparison: RunComparison, results: Sequence[StoredResult], main: Group | None) -> str:
    """Return which run is cheapest and meets the SLO, or why the costs of the runs do not compare.

    ``main`` is the group with the costs; its note says why they do not compare. Return "" if fewer
    than ``MIN_RUNS`` runs have a cost.
    """
    if main is None:
        return ""
    priced = _priced_runs(comparison, results, main)
    if len(priced) < MIN_RUNS:
        return ""
    if main.rows[0].name in PLANNED:
        return _verdict_as_planned(priced, main.note)
    if not main.note:
        return _verdict_as_simulated(priced)
    if len(priced) == MIN_RUNS and not why_not_ranked(results, comparison.differences):
        return _verdict_of_two(priced)
    return f"Costs do not compare: {', '.join(run.text for run in priced)}"


def _verdict_as_planned(priced: Sequence[PricedRun], note: str) -> str:
    """Return the verdict on planned costs; ``note`` is why they do not compare, if they do not."""
    # A simulated run costs more than its plan, and its own page shows the simulated cost.
    simulated = ", ".join(
        f"run {run.number} {figure(run.policy.cost_usd, '$')}" for run in priced if run.policy
    )
    simulated_note = f" (simulated: {simulated})" if simulated else ""
    if not note:
        return _cheapest(priced, f"as planned{simulated_note or ', not simulated'}")
    if simulated and any(run.policy is None for run in priced):
        return _unsimulated_verdict(priced)
    stated = ", ".join(run.text for run in priced)
    return f"Planned costs do not compare: {stated}{simulated_note}"


def _verdict_as_simulated(priced: Sequence[PricedRun]) -> str:
    """Return the cheapest of the runs that meet the SLO; ``priced`` begins with the cheapest."""
    meeting = [run for run in priced if run.meets_slo]
    if not meeting:
        cheapest = priced[0]
        cost = figure(cheapest.usd, "$")
        return f"No run meets the SLO. Run {cheapest.number} costs least: {cost}"
    if len(meeting) == 1:
        return f"Only run {meeting[0].number} meets the SLO: {figure(meeting[0].usd, '$')}"
    if len(meeting) == len(priced):
        return _cheapest(meeting, "and all runs meet the SLO")
    return _cheapest(meeting, f"of the {len(meeting)} runs that meet the SLO")


def _cheapest(runs: Sequence[PricedRun], basis: str) -> str:
    """Return which of two or more ``runs`` is cheapest, and how much less it costs than the next.

    The runs begin with the cheapest. ``basis`` ends the sentence.
    """
    cheapest, next_cheapest = runs[0], runs[1]
    saving = 1 - cheapest.usd / next_cheapest.usd if next_cheapest.usd else 0.0
    cost = figure(cheapest.usd, "$")
    if saving < SAME_COST:
        return f"The cost is the same, {cost}, {basis}"
    return (
        f"Run {cheapest.number} is cheapest: {cost}, {percent(saving)} less than the next, {basis}"
    )


def _verdict_of_two(priced: Sequence[PricedRun]) -> str:
    """Return how the costs of two runs with other limits differ, and which run misses its SLO."""
    cheaper, dearer = priced
    missed = [run for run in priced if not run.meets_slo]
    if not missed:
        slo = "Each meets its own SLO"
    elif len(missed) == 1:
        slo = f"Run {missed[0].number} misses its SLO"
    else:
        slo = "Neither meets its SLO"
    extra = figure(dearer.usd - cheaper.usd, "$")
    if cheaper.usd:
        extra += f" ({percent(dearer.usd / cheaper.usd - 1)})"
    return f"Run {dearer.number} costs {extra} more than run {cheaper.number}. {slo}"


def _unsimulated_verdict(priced: Sequence[PricedRun]) -> str:
    """Return how the cost of each unsimulated plan differs from that of the cheapest simulated run.

    ``priced`` has runs of both kinds, from the cheapest.
    """
    base = next(run for run in priced if run.policy is not None)
    sentences = []
    for run in sorted(priced, key=lambda run: run.number):
        if run.policy is not None:
            continue
        extra = figure(abs(run.usd - base.usd), "$")
        more = "more" if run.usd > base.usd else "less"
        risk = "" if run.has_spare else " has no spare replica and"
        sentences.append(
            f"Run {run.number} costs {extra} {more} than run {base.number} as planned, "
            f"but{risk} is not simulated"
        )
    return ". ".join(sentences)


def figure_line(row: ComparedFigure) -> Line:
    """Return a figure as a line of the table, with one cell per run."""
    cells = []
    for value, change, mark in zip(row.values, row.changes, row.marks, strict=True):
        text = NOTHING if value is None else figure_text(value, row.unit)
        is_better = mark == BETTER if mark else None
        cells.append(Cell(text, _change_text(row, change), mark, is_better))
    return Line(row.label, tuple(cells), row.help, numeric=row.unit != TEXT)


def _change_text(row: ComparedFigure, change: float | None) -> str:
    """Return a change as text: points for shares, else percent of the first run; "" if none."""
    if change is None or change == 0:
        return ""
    if row.unit == SHARE:
        points = round(100 * change, 2)
        return minus(f"{points:+g} points") if points else ""
    decimals = 0 if abs(change) >= 1 else 1
    return signed_percent(change, decimals)


def replica_chart(
    runs: Sequence[Run], comparison: RunComparison, results: Sequence[StoredResult]
) -> Figure | None:
    """Return the chart of ready replicas over time, with a line per run; None if few have them.

    ``comparison`` says which policy of each run counts. If the windows or clocks of the runs
    differ, each line begins at hour 0.
    """
    windows = {(compared.start, compared.end) for compared in comparison.runs}
    clocks = [result.clock for result in results]
    courses = []
    for run, compared in zip(runs, comparison.runs, strict=True):
        course = course_of(run, compared.policy)
        if course is not None:
            courses.append(course)
    apart = len(windows) > 1 or len(set(clocks)) > 1
    return course_figure(courses, "ready", "replicas", clock=clocks[0], apart=apart)


def replica_steps(run: Run) -> tuple[pl.DataFrame | None, dict[str, str]]:
    """Return (replicas over time, labels of policies by name): as simulated, else as planned.

    The table has columns time, policy, ready and those of a pool. It is None if the run has none.
    Cached as an attribute of ``run``, because a page asks for several policies.
    """
    if "replica_steps" not in vars(run):
        vars(run)["replica_steps"] = _read_replica_steps(run)
    steps: tuple[pl.DataFrame | None, dict[str, str]] = vars(run)["replica_steps"]
    return steps


def _read_replica_steps(run: Run) -> tuple[pl.DataFrame | None, dict[str, str]]:
    """Read the table and labels of ``replica_steps`` from the tables of the run.

    The planned replicas are labelled with lt-i, the policy that follows a plan.
    """
    names, result = run_tables(run), stored_result(run)
    if "replicas" in names:
        steps = run_table(run, "replicas")
        # Replicas that are lent out serve no requests of this fleet.
        steps = steps.filter(~pl.col("arrangement").str.ends_with(BORROWED))
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
