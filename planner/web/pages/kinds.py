"""Map each kind of run to its page, as planner.domain.kinds.registry maps it to its work."""

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import partial

from django.http import QueryDict
from django.utils import timezone

from planner.domain.formats import figure
from planner.domain.kinds.pd_ratio import PdRatioResult
from planner.domain.pd.figures import ratio_name
from planner.domain.pd.verdict import beats_aggregated
from planner.domain.planning.figures import Decision
from planner.domain.report import Fact, Group, Report
from planner.domain.reports.schedule import schedule_of
from planner.domain.results.stored import PlannedReplicas, StoredResult
from planner.inputs.scenario.document import outline
from planner.models import Run
from planner.outputs.manifests.kinds import MANIFESTS, USUAL
from planner.outputs.render.html import ShownSection, display_charts, display_sections
from planner.outputs.reports import compared_with_active, run_report, tables_of
from planner.selectors.active_plans import active_plan_of_policy
from planner.selectors.explanation import explanation_chains, shared_steps
from planner.selectors.review import undecided_proposals
from planner.selectors.runs import run_get, run_result, run_tables, stored_result, typed_result
from planner.selectors.scenarios import latest_comparisons
from planner.services.whatif import month_to_replay
from planner.web.forms.document import Row, rows_of
from planner.web.forms.profile_choice import ROLES, ProfileChoice
from planner.web.pages import place, provision, whatif
from planner.web.pages.fleet import with_data_age
from planner.web.pages.forecast import forecast_context, moment_context
from planner.web.pages.replica_minutes import minutes_context
from planner.web.pages.served_groups import groups_context
from planner.web.request import TemplateContext


def report_context(run: Run, params: Mapping[str, str]) -> TemplateContext:
    """Return the context of a run's page: its report, and what surrounds it."""
    result, alternative = stored_result(run), params.get("alternative", "")
    report = run_report(run, alternative if alternative in result.alternatives else "")
    policy = result.alternatives.get(alternative, result.recommended_policy)
    report = with_data_age(compared_with_active(report, run, policy), run, timezone.now())
    return {
        "run": run,
        "result": run_result(run),
        "tables": run_tables(run),
        "report": report,
        "charts": display_charts(report, live=True),
        "sections": display_sections(report, live=True),
        "clock": report.clock,
        "alternative": alternative,
        "policy": policy,
        "active": active_plan_of_policy(run, policy),
        "proposal": undecided_proposals().filter(run=run, policy=policy).first(),
        "manifests": [(name, manifest.label) for name, manifest in MANIFESTS.items()],
        "usual_manifest": USUAL,
    }


Context = Callable[[Run, QueryDict], TemplateContext]  # of a run and the user's choices


@dataclass(frozen=True, slots=True)
class Page:
    """The template and the context of the page for a kind of run.

    ``template`` is a template in web/runs. ``parts`` maps each part that htmx loads alone to its
    template and its context. The context is None if it is that of the page.
    """

    template: str
    context: Context
    parts: Mapping[str, tuple[str, Context | None]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class NextInterval:
    """The decisions in the first period of a plan, and the number of periods."""

    period: datetime | None
    decisions: list[Decision]
    periods: int


def next_interval(run: Run) -> NextInterval:
    """Return the next interval of the plan of a run; it is empty without a plan."""
    plan = typed_result(run, PlannedReplicas).plan
    decisions = plan.decisions if plan else ()
    periods = {decision.period for decision in decisions}
    first = min(periods, default=None)
    return NextInterval(first, [row for row in decisions if row.period == first], len(periods))


def _plan_context(run: Run, params: QueryDict) -> TemplateContext:
    """Return the context of the page of a run that has a plan.

    Sections in a group are folded. The others come first, then policies, then assumptions.
    """
    context = report_context(run, params)
    context |= groups_context(run, {}) | forecast_context(run, params)
    context |= why_context(run) | {"next": next_interval(run)}
    unfolded, policies, assumptions, folded = [], [], [], []
    for shown in context["sections"]:
        if shown.section.sheet == "Policies":
            policies.append(shown)
        elif shown.section.group is not None:
            folded.append(shown)
        elif shown.section.sheet == "Assumptions":
            assumptions.append(shown)
        else:
            unfolded.append(shown)
    sections = [*unfolded, *policies, *assumptions]
    return context | {"sections": sections, "folds": tuple(_folds(folded, context))}


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a result's page that is no section of its report."""

    anchor: str
    title: str
    template: str
    needs: tuple[str, ...]  # it is shown if the page's context has one of these values


@dataclass(frozen=True, slots=True)
class Fold:
    """A collapsed block on a result's page: sections of some report groups, then parts."""

    title: str
    groups: tuple[Group, ...]
    parts: tuple[Part, ...]
    sections: tuple[ShownSection, ...] = ()


FOLDS = (
    Fold("Latency and service", (Group.POLICIES,), (
        Part("served", "Service over time, and by tier, model and region", "web/_served.html",
             ("group_table", "has_replicas")),
    )),
    Fold("For experts", (Group.PLAN, Group.BASIS), (
        Part("plan", "Plan by period", "web/_plan_periods.html", ("has_plan",)),
        Part("why-number", "Derivation of the replica counts", "web/_why.html", ("chains",)),
        Part("forecast-errors", "Past forecasts", "web/_forecast_errors.html",
             ("week_errors", "moment_figure")),
    )),
)  # fmt: skip


def _folds(sections: Sequence[ShownSection], context: TemplateContext) -> Iterator[Fold]:
    """Yield the folds of a result's page that have a section or a part to show, with those."""
    known = context | {
        "has_plan": context["result"].get("plan"), "has_replicas": "replicas" in context["tables"],
    }  # fmt: skip
    for fold in FOLDS:
        of_groups = tuple(shown for shown in sections if shown.section.group in fold.groups)
        parts = tuple(part for part in fold.parts if any(map(known.get, part.needs)))
        if of_groups or parts:
            yield replace(fold, sections=of_groups, parts=parts)


PLANNED = Page(  # for kinds that forecast, plan and simulate
    "planned",
    _plan_context,
    {
        "minutes": ("web/_minutes.html", minutes_context),
        "groups": ("web/_groups.html", groups_context),
        "moment": ("web/_moment_figure.html", moment_context),
    },
)


def report_with(
    template: str, context: Context, parts: Mapping[str, tuple[str, Context | None]] | None = None
) -> Page:
    """Return the page for a kind of run that shows a form or actions next to its report.

    ``parts`` are templates, with their contexts, of parts that the page can load alone.
    """

    def page_context(run: Run, params: QueryDict) -> TemplateContext:
        return report_context(run, params) | {"beside": template} | context(run, params)

    return Page("report", page_context, parts or {})


def outlook_context(run: Run, params: QueryDict) -> TemplateContext:
    """Return the context of an outlook's page: its report, and the month to simulate.

    The second fact is the cost per day of the scenario's newest comparison, if it is known.
    """
    context = report_context(run, params)
    context |= {"to_replay": month_to_replay(run), "beside": "web/_outlook_simulation.html"}
    comparison = _newest_comparison(run)
    if comparison is None:
        return context
    result = stored_result(comparison)
    window, recommended = result.window, result.recommended
    if window and recommended and recommended.cost_usd:
        days = (window.end - window.start) / timedelta(days=1)
        report: Report = context["report"]
        first, *others = report.facts
        cost = Fact(
            "Simulated cost per day", recommended.cost_usd / days, "$",
            note=f"your plan, tuned for one day · run {comparison.pk}",
        )  # fmt: skip
        context["report"] = replace(report, facts=(first, cost, *others))
    return context


def deployments_context(run: Run, _: QueryDict) -> TemplateContext:
    """Return the context of the buttons that start a copy of the scenario with one deployment.

    There is a button for each deployment of the run, if its model has several. Pools for prefill
    and decode on the same GPUs are one deployment.
    """
    profiles_by_deployment: dict[ProfileChoice, list[Row]] = {}
    for profile in _profiles(run):
        deployment = replace(ProfileChoice.of(profile), role="")
        profiles_by_deployment.setdefault(deployment, []).append(profile)
    deployments_of_model = Counter(deployment.model for deployment in profiles_by_deployment)
    buttons = [
        (deployment.label, json.dumps(profiles))
        for deployment, profiles in profiles_by_deployment.items()
        if deployments_of_model[deployment.model] > 1
    ]
    return {"uses": buttons}


def _ratio_uses(run: Run) -> list[tuple[str, str]]:
    """Return a button for aggregated or disaggregated serving, if it is better than the scenario's.

    A button is (label, its profiles as JSON). The list is empty if the scenario has the better way
    of serving, or no profile of the model.
    """
    result, model = typed_result(run, PdRatioResult), run.options.get("service")
    profiles = [profile for profile in _profiles(run) if model in (None, profile.get("model"))]
    if not profiles:
        return []
    is_disaggregated = any(profile.get("role") in ROLES for profile in profiles)
    should_be_disaggregated = beats_aggregated(result.best.figures, result.mixed)
    if is_disaggregated == should_be_disaggregated:
        return []
    mixed = {key: value for key, value in profiles[0].items() if key != "role"}
    if is_disaggregated:
        return [("aggregated serving", json.dumps([mixed]))]
    return [("prefill and decode pools", json.dumps([mixed | {"role": role} for role in ROLES]))]


def _profiles(run: Run) -> list[Row]:
    """Return the profiles in a run's scenario."""
    return rows_of(outline(run.document), "profiles")


def pd_ratio_context(run: Run, params: QueryDict) -> TemplateContext:
    """Return the context of a P:D ratio's page: its report, and buttons to use the better way.

    The last fact is the prefill-decode split of the scenario's newest comparison, if it has one.
    """
    context = report_context(run, params)
    context |= {"uses": _ratio_uses(run), "beside": "web/_use_this.html"}
    comparison = _newest_comparison(run)
    if comparison is None:
        return context
    result = stored_result(comparison)
    schedule = schedule_of(tables_of(comparison), result.recommended_policy)
    model = run.options.get("service", "")
    prefill, decode, region = schedule.peak_split(model) if schedule else (0, 0, "")
    if prefill > 0 and decode > 0:
        report: Report = context["report"]
        note = f"{_against_best((prefill, decode), model, result)}run {comparison.pk}"
        label, split = f"Planned split at peak, {region}", ratio_name(prefill, decode)
        plan_split = Fact(label, split, note=note)
        context["report"] = replace(report, facts=(*report.facts, plan_split))
    return context


def _newest_comparison(run: Run) -> Run | None:
    """Return the newest comparison of a run's scenario; None without one."""
    if run.scenario is None:
        return None
    newest = latest_comparisons([run.scenario]).get(run.scenario.pk)
    return run_get(newest.pk) if newest is not None else None


def _against_best(split: tuple[int, int], model: str, result: StoredResult) -> str:
    """Return how a plan's ``split`` compares with the best of as many replicas, in words.

    ``split`` is (prefill replicas, decode replicas). ``result`` has the best splits by number of
    replicas. The text is "" if it has none of this number.
    """
    for ratio in result.pd_ratios:
        if ratio.model == model and ratio.prefill and ratio.instances == sum(split):
            if split == (ratio.prefill, ratio.decode):
                return f"best split for its {ratio.instances} replicas · "
            best = ratio_name(ratio.prefill, ratio.decode)
            return f"best split for its {ratio.instances} replicas: {best} · "
    return ""


PROVISION_PARTS: dict[str, tuple[str, Context | None]] = {
    "pool": ("web/_provision_pool.html", provision.page_context),
    **{
        part: ("web/_provision_part.html", partial(provision.part_context, part))
        for part in provision.PARTS
    },
}
REPORT = Page("report", report_context)  # for kinds that a report shows in full
PAGES: dict[str, Page] = {
    Run.Kind.FORECAST: PLANNED,
    Run.Kind.PLAN: PLANNED,
    Run.Kind.SIMULATE: PLANNED,
    Run.Kind.COMPARE: PLANNED,
    Run.Kind.PROVISION: report_with("web/_provision.html", provision.page_context, PROVISION_PARTS),
    Run.Kind.PLACE: report_with(
        "web/_place.html", place.page_context, {"tree": ("web/_place_tree.html", None)}
    ),
    Run.Kind.SHARE: REPORT,
    Run.Kind.SIZE: report_with("web/_use_this.html", deployments_context),
    Run.Kind.PD_RATIO: Page("report", pd_ratio_context),
    Run.Kind.BACKTEST: REPORT,
    Run.Kind.OUTLOOK: Page("report", outlook_context),
    Run.Kind.PARETO: Page("what_if", whatif.page_context),
}


@dataclass(frozen=True, slots=True)
class ExplainedCost:
    """The cost of the recommended policy in the window, with a sentence on what it consists of."""

    usd: float
    words: str


def why_context(run: Run) -> TemplateContext:
    """Return why the recommended replicas are needed, and what they cost.

    A table has a row per chain, which explains one pool, and a column per name of a step.
    """
    chains = explanation_chains(run)
    shared = shared_steps(chains)
    own_steps = []  # of each chain
    for chain in chains:
        # Steps of all pools are shown once. Sources have a section of their own.
        steps = [step for step in chain.steps if step not in shared and step.about != "sources"]
        own_steps.append(steps)
    names = list(dict.fromkeys(step.name for steps in own_steps for step in steps))
    table_rows = []  # (chain, a list of its steps for each name), as it may lack some
    for chain, steps in zip(chains, own_steps, strict=True):
        cells = [[step for step in steps if step.name == name] for name in names]
        table_rows.append((chain, cells))
    return {
        "names": names,
        "chains": table_rows,
        "shared_steps": shared,
        "money": _explained_cost(stored_result(run)),
    }


def _explained_cost(result: StoredResult) -> ExplainedCost | None:
    """Return the cost of the recommended policy, explained; None if it is not known."""
    recommended = result.recommended
    if recommended is None or not recommended.cost_usd or not recommended.gpu_hours:
        return None
    usd, gpu_hours = recommended.cost_usd, recommended.gpu_hours
    simulated = result.policies.get(recommended.policy)
    basis = "simulated" if simulated else "planned"
    words = f"{figure(gpu_hours)} {basis} GPU-hours at a mean of ${usd / gpu_hours:,.2f}."
    if simulated and simulated.wasted_gpu_hours is not None:
        words += f" Of these, cold starts: {figure(simulated.wasted_gpu_hours)}."
    return ExplainedCost(usd, words)
