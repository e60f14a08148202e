"""Show runs: the list, one run from queue to results, its cancellation and its downloads."""

from datetime import timedelta

from django.contrib import messages
from django.http import FileResponse, HttpResponse
from django.shortcuts import redirect, render
from django.utils import timezone
from django.utils.text import slugify
from django.views.decorators.http import require_POST, require_safe

from planner.domain.reports.first_answer import preview_report
from planner.domain.results.first_answer import Preview
from planner.domain.serialise import from_json
from planner.errors import NotFound, PlannerError
from planner.models import Run
from planner.outputs import PARQUET, json_text, run_csv
from planner.outputs.files import formats_of
from planner.outputs.render.html import display_sections
from planner.selectors.run_comparison import MIN_RUNS, runs_to_compare
from planner.selectors.runs import (
    run_get,
    run_preview,
    run_table_path,
    runs_with_answers,
)
from planner.services import runs
from planner.services.kernel_compilation import compiled_count, compiling_sentence
from planner.services.retention import removal_sentence
from planner.services.run_queue import WITHOUT_SIMULATOR, wait_of
from planner.services.whatif import outlook_replay
from planner.web.errors import planners_only
from planner.web.form_responses import CSV, attachment
from planner.web.forms.editor import TITLES, section_of
from planner.web.pages.kinds import PAGES
from planner.web.pages.run_comparison import page_context
from planner.web.paging import page_of
from planner.web.request import Request, TemplateContext

RECENT = timedelta(days=1)  # failures since then are pointed out


@require_safe
def listing(request: Request) -> HttpResponse:
    """List the runs outside sweeps, filtered by kind, state and scenario as requested."""
    rows = runs_with_answers().filter(sweep=None)  # the page of a sweep lists its own runs
    kind, state, scenario = (request.GET.get(name, "") for name in ("kind", "state", "scenario"))
    if kind in Run.Kind.values:
        rows = rows.filter(kind=kind)
    if state in Run.State.values:
        rows = rows.filter(state=state)
    if scenario.isdigit():
        rows = rows.filter(scenario=int(scenario))
    runs = Run.objects.filter(sweep=None)
    failed = runs.filter(state=Run.State.FAILED, finished_at__gte=timezone.now() - RECENT)
    context = {
        "page": page_of(request, rows),
        "filters": [
            ("kind", "Kind of run", "All kinds", kind, Run.Kind.choices),
            ("state", "State", "All states", state, Run.State.choices),
        ],
        "kind": kind,
        "active": runs.filter(state__in=Run.ACTIVE_STATES).count(),
        "failed": failed.count(),
    }
    return render(request, "web/runs.html", context)


@require_safe
def detail(request: Request, pk: int) -> HttpResponse:
    """Show one run at one URL: its progress while it runs, then its results.

    htmx requests the progress each second, and the whole page at the end. On a page of results it
    requests parts, by the name of its target.
    """
    run = run_get(pk)
    if request.htmx and request.htmx.target == "progress":
        if run.is_finished:
            return HttpResponse(headers={"HX-Refresh": "true"})
        return render(request, "web/_run_progress.html", _progress(run))
    if run.state != Run.State.COMPLETED or run.kind == Run.Kind.INGEST:
        section = section_of(run.problem)
        section_title, _ = TITLES.get(section, ("", ""))
        options = []  # of the run as form fields, with which it can be repeated
        for name, value in run.options.items():
            options += [(name, item) for item in (value if isinstance(value, list) else [value])]
        context = {"again": options, "section": section, "section_title": section_title}
        return render(request, "web/run.html", _progress(run) | context)
    page = PAGES[run.kind]
    part = request.GET.get("part", "")
    if part and part not in page.parts:
        raise NotFound(f"There is no part {part!r} here. Known: {', '.join(page.parts)}.")
    name = part or (str(request.htmx.target) if request.htmx else "")
    if not name:  # the whole page
        removal_note = removal_sentence(run)
        if removal_note:
            messages.warning(request, removal_note)
    template, part_context = page.parts.get(name, (f"web/runs/{page.template}.html", None))
    context = (part_context or page.context)(run, request.GET)
    return render(request, template, {**context, "exports": formats_of(run)})


def _progress(run: Run) -> TemplateContext:
    """Return what a page shows of a run that is not finished."""
    context: TemplateContext = {"run": run, **waits_context(run)}
    preview = run_preview(run)
    if preview is not None:
        report = preview_report(from_json(Preview, preview))
        context["preview"] = display_sections(report, live=False)
    return context


def waits_context(run: Run) -> TemplateContext:
    """Return what a run waits for before it starts, and how long a run of its size takes.

    Returns {} for a run that has started.
    """
    if run.state != Run.State.PENDING or run.attempts:
        return {}
    wait = wait_of(run)
    waits = wait.sentence()
    # The number of compiled kernels, or None if the compilation is complete.
    compiled = None if run.kind in WITHOUT_SIMULATOR else compiled_count()
    if compiled is not None:
        waits = compiling_sentence(compiled)
    idle = not Run.everywhere.filter(state=Run.State.RUNNING).exists()
    return {"waits": waits, "size": wait.size(), "idle": idle}


@require_POST
@planners_only
def cancel(request: Request, pk: int) -> HttpResponse:
    run = runs.run_cancel(run=run_get(pk), user=request.user)
    if not run.is_finished:
        messages.info(request, "The run stops at its next step.")
    return redirect("web:run", pk)


@require_POST
def delete(request: Request, pk: int) -> HttpResponse:
    run = run_get(pk)
    runs.run_delete(run=run, user=request.user)
    messages.success(request, f"Run {pk} is removed.")
    return redirect("web:runs")


@require_POST
@planners_only
def replay_month(request: Request, pk: int) -> HttpResponse:
    """Start a simulation of an outlook's last month: policies on one week, new scenario."""
    started = outlook_replay(run=run_get(pk), user=request.user)
    messages.success(request, f"{started.name} is a new scenario. This run replays it.")
    return redirect("web:run", started.pk)


@require_safe
def table(request: Request, pk: int, name: str) -> HttpResponse:
    """Return one table of a run as a CSV file."""
    run = run_get(pk)
    return attachment(run_csv(run, name), CSV, f"{_stem(run)}-{name}.csv")


@require_safe
def parquet(request: Request, pk: int, name: str) -> FileResponse:
    """Return one table of a run as its stored Parquet file."""
    run = run_get(pk)
    return FileResponse(
        run_table_path(run, name).open("rb"),
        as_attachment=True,
        filename=f"{_stem(run)}-{name}.parquet",
        content_type=PARQUET,
    )


@require_safe
def result(request: Request, pk: int) -> HttpResponse:
    """Return the result document of a run, as the command line writes it."""
    run = run_get(pk)
    return attachment(json_text(run), "application/json", f"{_stem(run)}.json")


def _stem(run: Run) -> str:
    """Return the first part of the names of a run's files."""
    return f"run-{run.pk}-{slugify(run.name) or run.kind}"


OFFERED = 100  # newest completed runs to choose from


@require_safe
def compare(request: Request) -> HttpResponse:
    """Compare the runs that the URL names; if too few, show runs to choose from."""
    numbers = numbers_of(request.GET.getlist("run"))
    if len(numbers) < MIN_RUNS:
        return render(request, "web/beside_choose.html", _choice_context(numbers))
    return render(request, "web/beside.html", page_context(runs_to_compare(numbers), request.GET))


def _choice_context(numbers: list[int]) -> TemplateContext:
    """Return runs to choose from, in groups of one kind; comparisons come first.

    ``numbers`` has the runs already chosen. Then only runs of the first one's kind are in a group,
    and the rest in "others". A group has enough runs for a comparison, those of the same scenario
    first. As many as are missing are ticked in the first group.
    """
    first = run_get(numbers[0]) if numbers else None
    rows = runs_with_answers().filter(state=Run.State.COMPLETED).exclude(kind=Run.Kind.INGEST)
    offered = list(rows.exclude(pk__in=numbers)[:OFFERED])
    runs_by_kind: dict[str, list[Run]] = {}
    others = []
    for run in offered:
        if first is None or run.kind == first.kind:
            runs_by_kind.setdefault(run.kind, []).append(run)
        else:
            others.append(run)
    missing = MIN_RUNS - len(numbers)
    groups = []
    for kind in sorted(runs_by_kind, key=lambda kind: kind != Run.Kind.COMPARE):
        runs_of_kind = runs_by_kind[kind]
        if len(runs_of_kind) >= missing:
            name = (first or runs_of_kind[0]).name
            same_scenario_first = sorted(runs_of_kind, key=lambda run: run.name != name)
            groups.append((Run.Kind(kind).label, same_scenario_first))
    ticked = []
    if groups:
        _, first_group = groups[0]
        ticked = [run.pk for run in first_group[:missing]]
    return {
        "first": first,
        "groups": groups,
        "others": others,
        "ticked": ticked,
        "missing": missing,
    }


def numbers_of(texts: list[str]) -> list[int]:
    """Return the run ids in all texts, each once; a text may have several, separated by commas.

    Raises PlannerError for a value that is not a number.
    """
    words = [word.strip() for text in texts for word in text.split(",") if word.strip()]
    for word in words:
        if not (word.isascii() and word.isdecimal() and len(word) <= 9):
            raise PlannerError(f"run: {word[:40]!r} is not the number of a run.")
    return list(dict.fromkeys(map(int, words)))
