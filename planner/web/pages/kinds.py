"""Map each kind of run to its page, as planner.domain.kinds.registry maps it to its work."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from django.http import QueryDict

from planner.models import Run
from planner.services.outlook_simulation import month_to_replay
from planner.services.provisioning import SWEEPS
from planner.web.pages import place, provision, report, whatif
from planner.web.pages.explanation import why_context
from planner.web.pages.forecast import forecast_context, moment_context
from planner.web.pages.modules import modules_context
from planner.web.pages.replica_minutes import minutes_context
from planner.web.pages.served_groups import groups_context
from planner.web.pages.tabs import result_tabs
from planner.web.results import results_context

Context = Callable[[Run, QueryDict], dict[str, Any]]  # of a run and the user's choices


@dataclass(frozen=True, slots=True)
class Page:
    """The template and the context of the page of a kind of run.

    ``template`` is a template in web/runs. ``parts`` maps each name that htmx requests, or uses
    as a target, to a template. Its context is None if it is that of the page.
    """

    template: str
    context: Context
    parts: Mapping[str, tuple[str, Context | None]] = field(default_factory=dict)


def _results(run: Run, params: QueryDict) -> dict[str, Any]:
    context = results_context(run, params) | groups_context(run, {}) | forecast_context(run, params)
    context |= why_context(run) | modules_context(run)
    return context | {"tabs": result_tabs(context)}


RESULTS = Page(  # for kinds that forecast, plan and replay
    "results",
    _results,
    {
        "minutes": ("web/_minutes.html", minutes_context),
        "groups": ("web/_groups.html", groups_context),
        "moment": ("web/_moment_figure.html", moment_context),
        "savings": ("web/_savings.html", None),
        "charts": ("web/_charts.html", None),
    },
)


def report_with(
    template: str, context: Context, parts: Mapping[str, tuple[str, Context | None]] | None = None
) -> Page:
    """Return the page of a kind whose report has something to ask or to do beside it."""

    def whole(run: Run, params: QueryDict) -> dict[str, Any]:
        return report.page_context(run, params) | {"beside": template} | context(run, params)

    return Page("report", whole, parts or {})


def outlook_context(run: Run, _: QueryDict) -> dict[str, Any]:
    """Return the month of an outlook that can be simulated."""
    return {"to_replay": month_to_replay(run)}


PROVISION_PARTS: dict[str, tuple[str, Context | None]] = {
    "pool": ("web/_provision_pool.html", provision.page_context),
    "sensitivity": ("web/_sensitivity.html", provision.sensitivity_context),
    **{by: ("web/_sweep.html", partial(provision.sweep_context, by)) for by in SWEEPS},
}
REPORT = Page("report", report.page_context)  # for kinds that a report shows in full
PAGES: dict[str, Page] = {
    Run.Kind.FORECAST: RESULTS,
    Run.Kind.PLAN: RESULTS,
    Run.Kind.SIMULATE: RESULTS,
    Run.Kind.COMPARE: RESULTS,
    Run.Kind.PROVISION: report_with("web/_provision.html", provision.page_context, PROVISION_PARTS),
    Run.Kind.PLACE: report_with(
        "web/_place.html", place.page_context, {"tree": ("web/_place_tree.html", None)}
    ),
    Run.Kind.SIZE: REPORT,
    Run.Kind.PD_RATIO: REPORT,
    Run.Kind.BACKTEST: REPORT,
    Run.Kind.OUTLOOK: report_with("web/_outlook_simulation.html", outlook_context),
    Run.Kind.PARETO: Page("what_if", whatif.page_context),
}
