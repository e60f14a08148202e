"""Show proposals: the list, a new one, one with its review, and the rules for approval."""

from collections.abc import Callable, Iterable
from typing import Any

from django import forms
from django.contrib import messages
from django.forms.models import model_to_dict
from django.http import HttpResponse, QueryDict
from django.shortcuts import redirect, render
from django.utils import timezone
from django.views.decorators.http import require_http_methods, require_POST, require_safe

from planner.errors import PlannerError
from planner.models import Proposal, Run, User
from planner.outputs.options import ExportOptions
from planner.outputs.reports import compared_with_active, policy_report
from planner.selectors.active_plans import active_plan_of_run
from planner.selectors.lookup import id_of
from planner.selectors.people import person_get
from planner.selectors.review import (
    UNDECIDED,
    proposal_get,
    proposals_for,
    proposals_list,
    review_rules,
)
from planner.selectors.runs import run_get, stored_result
from planner.services import proposals
from planner.services.access import check_may_administer
from planner.services.active_plans import activatable_plan, plans_replaced_by
from planner.services.approval import MAX_APPROVALS, rules_change
from planner.web.errors import planners_only
from planner.web.form_responses import attempt, render_form
from planner.web.forms.widgets import DressedForm
from planner.web.pages.proposal import STATE_COLOURS, Verdict, proposal_context, verdict_of
from planner.web.paging import SHORT, is_short, page_of
from planner.web.request import Request


class RulesForm(DressedForm):
    approvals = forms.IntegerField(
        label="Approvals",
        min_value=1,
        max_value=MAX_APPROVALS,
        help_text="Approvals required for activation.",
    )
    self_approval = forms.BooleanField(
        label="Authors may approve their own proposals",
        required=False,
        help_text="Default: others must approve.",
    )
    admin_above_usd_30d = forms.FloatField(
        label="Budget, $ in 30 days",
        required=False,
        min_value=0,
        help_text="If the fleet costs more, an admin must approve. Empty: no limit.",
    )
    required = forms.BooleanField(
        label="Require a proposal for every plan",
        required=False,
        help_text="Default: an approver may also activate a run directly.",
    )


REPEATS = {"daily": "every day", "weekly": "every week", "once": "its dates, once"}
MINE, FOR_ME, DONE, ALL = "mine", "for-me", "decided", "all"


@require_safe
def listing(request: Request) -> HttpResponse:
    """List the undecided proposals, or another selection on request."""
    show = request.GET.get("show", "")
    rows = proposals_list()
    decided = rows.exclude(state__in=UNDECIDED)
    chosen = {
        "": rows.filter(state__in=UNDECIDED),
        FOR_ME: proposals_for(request.user),
        MINE: rows.filter(author=request.user),
        DONE: decided,
        ALL: rows,
    }
    page = page_of(request, chosen.get(show, chosen[""]))
    is_judged = is_short(page) and show in ("", FOR_ME)  # a verdict takes a tenth of a second
    context = {
        "page": page,
        "rows": _with_colours(page, verdict_of) if is_judged else _with_colours(page),
        "is_judged": is_judged,
        "decided": _with_colours(decided[:SHORT]) if not show and len(page) <= SHORT else (),
        "show": show,
        "waiting": proposals_for(request.user).count(),
        "tabs": [("", "Open"), (FOR_ME, "To review"), (MINE, "Proposed by me"),
                 (DONE, "Decided"), (ALL, "All")],
    }  # fmt: skip
    return render(request, "web/proposals.html", context)


def _with_colours(
    rows: Iterable[Proposal], verdict: Callable[[Proposal], Verdict | None] = lambda _: None
) -> list[tuple[Proposal, str, Verdict | None]]:
    """Return the rows of a list: a proposal, the colour of its state, and its verdict, if any."""
    return [(proposal, STATE_COLOURS[proposal.state], verdict(proposal)) for proposal in rows]


@require_http_methods(["GET", "POST"])
@planners_only
def new(request: Request) -> HttpResponse:
    """Show the form to propose the run that the URL names, or make the proposal."""
    if request.method != "POST":
        return _proposal_form(request, request.GET)
    sent = request.POST
    try:
        proposal = proposals.propose(
            by=request.user,
            title=sent.get("title", ""),
            run=_run(sent.get("run", "")),
            message=sent.get("message", ""),
            options=_filled(sent, ("policy", "repeat")),
            reviewers=_people(sent.getlist("reviewer")),
            draft=sent.get("draft") == "1",
        )
    except PlannerError as refused:
        return _proposal_form(request, sent, refused)
    messages.success(request, f"Proposal {proposal.pk} is created.")
    return redirect("web:proposal", proposal.pk)


def _proposal_form(
    request: Request, sent: QueryDict, problem: PlannerError | None = None
) -> HttpResponse:
    """Show the form to propose a run, filled with ``sent``, and why a proposal was refused."""
    run = _run(sent.get("run", ""))
    options = ExportOptions(policy=sent.get("policy") or None)
    try:
        replaced = plans_replaced_by(activatable_plan(run, options, timezone.now()), run)
    except PlannerError:  # report this only once the run is proposed: another policy may be valid
        active = active_plan_of_run(run)
        replaced = [active] if active else []
    people = User.objects.filter(is_active=True).order_by("username")
    result = stored_result(run)
    recommended = result.recommended_policy
    policy = sent.get("policy") or recommended
    report = policy_report(run, policy)
    context = {
        "facts": compared_with_active(report, run, policy).facts if report else None,
        "run": run,
        "sent": sent,
        "sentences": str(problem).splitlines() if problem else [],
        "title": "The proposal was not made",
        "repeats": REPEATS,
        "policies": result.deployable_labels,
        "recommended": recommended,
        "reviewers": [person for person in people if person.may_approve and person != request.user],
        "replaced": replaced,
    }
    return render_form(request, "web/proposal_new.html", context, problem)


@require_safe
def detail(request: Request, pk: int) -> HttpResponse:
    context = proposal_context(proposal_get(pk), request.user)
    context["about"] = _filled(request.GET, ("setting", "chart"))
    return render(request, "web/proposal.html", context)


@require_POST
def act(request: Request, pk: int) -> HttpResponse:
    """Apply the action of the pressed button, such as comment or approve, and say what was done."""
    proposal, user, text = proposal_get(pk), request.user, request.POST.get("text", "")
    actions: dict[str, tuple[Callable[[], Any], str]] = {
        "comment": (
            lambda: proposals.comment(
                proposal=proposal,
                by=user,
                text=text,
                anchor=_filled(request.POST, ("setting", "chart", "series", "time", "value")),
            ),
            "Comment saved.",
        ),
        "approve": (
            lambda: proposals.approve(proposal=proposal, by=user, text=text),
            "You approved it.",
        ),
        "changes": (
            lambda: proposals.ask_for_changes(proposal=proposal, by=user, text=text),
            "You asked for changes.",
        ),
        "reject": (lambda: proposals.reject(proposal=proposal, by=user, text=text), "Rejected."),
        "withdraw": (
            lambda: proposals.withdraw(proposal=proposal, by=user, text=text),
            "Withdrawn.",
        ),
        "ready": (
            lambda: proposals.mark_ready(proposal=proposal, by=user),
            "It is open for review.",
        ),
        "amend": (
            lambda: proposals.amend(
                proposal=proposal, by=user, run=_run(request.POST.get("run", "")), message=text
            ),
            "It is amended.",
        ),
        "request": (
            lambda: proposals.request_review(
                proposal=proposal, by=user, reviewers=_people(request.POST.getlist("reviewer"))
            ),
            "Review requested.",
        ),
    }
    action = request.POST.get("action", "")
    if action not in actions:
        raise PlannerError(f"action: unknown value {action!r}. Choose from {', '.join(actions)}.")
    carry_out, words = actions[action]
    carry_out()
    proposal_after = proposal_get(pk)
    if action == "approve" and proposal_after.state == Proposal.State.APPROVED:
        words = f"Proposal {pk} is approved and active: /metrics shows its replicas."
    messages.success(request, words)
    return redirect("web:proposal", pk)


@require_http_methods(["GET", "POST"])
def rules(request: Request) -> HttpResponse:
    """Show the rules for approval, which admins may change."""
    form = RulesForm(request.POST or None, initial=model_to_dict(review_rules()))
    problem: Exception | None = None
    if request.method == "POST":
        check_may_administer(request.user)
        _, problem = attempt(form, lambda: rules_change(by=request.user, **form.cleaned_data))
        if problem is None:
            messages.success(request, "Rules saved.")
            return redirect("web:review-rules")
    context = {"form": form, "may_change": request.user.may_administer, "rules": review_rules()}
    return render_form(request, "web/review_rules.html", context, problem)


def _filled(sent: QueryDict, names: Iterable[str]) -> dict[str, Any]:
    """Return the sent values of ``names`` that are not empty."""
    return {name: sent[name] for name in names if sent.get(name)}


def _people(names: list[str]) -> list[User]:
    """Return the people with these names; empty names are skipped."""
    return [person_get(name) for name in names if name]


def _run(text: str) -> Run:
    """Return the run with the number ``text``; raise PlannerError for other text."""
    number = id_of(text.strip())
    if number is None:
        raise PlannerError(f"run: {text[:40]!r} is not the number of a run.")
    return run_get(number)
