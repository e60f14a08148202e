"""Propose a plan, discuss it, and activate it by approval.

    draft -> open <-> changes requested -> approved (active) | rejected
             any of them, by its author -> withdrawn

Each step is stored as an entry. An amendment begins a new revision, without approvals. Approval
stores a copy of the plan (planner.services.active_plans).
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

from django.db import transaction
from django.db.models import Q
from django.utils import timezone

from planner.domain.options import options_of
from planner.errors import NotAllowed, NotFound, NotReady, PlannerError
from planner.models import Event, Proposal, ProposalEntry, Run, ScenarioVersion, User
from planner.models.workspace import current_workspace
from planner.outputs.options import ExportOptions
from planner.selectors.review import UNDECIDED, authors_of
from planner.services.access import check_may_approve, check_may_plan
from planner.services.active_plans import (
    activatable_plan,
    checked_text,
    plan_activate,
    plans_replaced_by,
    unsaved_active_plan,
)
from planner.services.approval import (
    barred_authors,
    check_may_approve_proposal,
    check_up_to_date,
    cost_usd_30d,
    missing_approvals,
    state_label,
    why_admin_needed,
)
from planner.services.audit import record
from planner.services.notifications import notify
from planner.services.proposal_replay import active_replay_start, proposed_replay_start

Kind, State = ProposalEntry.Kind, Proposal.State
EVENTS = {
    Kind.OPENED: Event.PROPOSED,
    Kind.READY: Event.PROPOSED,
    Kind.CHANGES: Event.DECIDED,
    Kind.APPROVED: Event.DECIDED,
    Kind.REJECTED: Event.DECIDED,
    Kind.IN_FORCE: Event.IN_FORCE,
}
MENTION = re.compile(r"(?<![\w@.])@([\w.+-]{1,150})")
MAX_TEXT_CHARACTERS = 20_000  # of one message
SETTING, CHART = "setting", "chart"  # kinds of places that a comment is about


@transaction.atomic
def propose(
    *,
    by: User | None,
    title: str,
    run: Run,
    message: str = "",
    options: Mapping[str, Any] | None = None,
    base_run: Run | None = None,
    reviewers: Iterable[User] = (),
    draft: bool = False,
    rule: str = "",
) -> Proposal:
    """Propose that the plan of a completed run become active, exported with ``options``.

    ``options`` are those of planner.outputs.options: policy, repeat, timezone, names. The proposal
    is compared with the active plan that it would replace, or with ``base_run``. ``reviewers`` are
    asked for a review. ``rule`` is the author if ``by`` is None. A ``draft`` is not open for review
    yet. Raises NotReady if the run has no replica schedule.
    """
    check_may_plan(by)
    title = title.strip()
    if not 1 <= len(title) <= 160:
        raise PlannerError("title: give a proposal a title of 1 to 160 characters.")
    proposal = Proposal(
        title=title,
        message=checked_text("text", message, MAX_TEXT_CHARACTERS),
        author=by,
        rule=rule,
        state=State.DRAFT if draft else State.OPEN,
        options=dict(options or {}),
    )
    _set_subject(proposal, run, base_run, by)
    proposal.save()
    _add_entry(proposal, Kind.OPENED, by, rule=rule, text=message, run=run)
    if requested_reviewers := list(reviewers):
        request_review(proposal=proposal, by=by, reviewers=requested_reviewers, rule=rule)
    record("proposal.made", proposal, by=by, rule=rule, run=run.pk, policy=proposal.policy)
    return proposal


@transaction.atomic
def amend(
    *,
    proposal: Proposal,
    by: User | None,
    run: Run,
    message: str = "",
    base_run: Run | None = None,
    rule: str = "",
) -> Proposal:
    """Give a proposal another run, or compare its run again with the active plan or ``base_run``.

    Existing approvals no longer count. ``rule`` is the author if ``by`` is None.
    """
    check_may_plan(by)
    locked = _lock(proposal)
    _check_undecided(locked, "amended")
    _set_subject(locked, run, base_run, by)
    # Approvals count for their revision alone, so this cancels them.
    locked.revision += 1
    if locked.state == State.CHANGES:
        locked.state = State.OPEN
    locked.save()
    _add_entry(locked, Kind.AMENDED, by, rule=rule, text=message, run=run)
    record("proposal.amended", locked, by=by, rule=rule, run=run.pk, revision=locked.revision)
    return locked


@transaction.atomic
def mark_ready(*, proposal: Proposal, by: User) -> Proposal:
    """Open a draft for review."""
    locked = _lock(proposal)
    _check_author(locked, by, "mark it as ready")
    if locked.state != State.DRAFT:
        raise NotReady(f"Proposal {locked.pk} is not a draft but {state_label(locked)}.")
    return _change_state(locked, State.OPEN, Kind.READY, by, "")


@transaction.atomic
def request_review(
    *, proposal: Proposal, by: User | None, reviewers: Iterable[User], rule: str = ""
) -> Proposal:
    """Ask users for a review and notify them; raise PlannerError if one may not approve."""
    check_may_plan(by)
    _check_undecided(proposal, "reviewed")
    people = list(reviewers)
    for reviewer in people:
        if not (reviewer.is_active and reviewer.may_approve):
            raise PlannerError(
                f"{reviewer.username} may not approve. Ask an approver or an admin for review."
            )
        if reviewer.pk in barred_authors(proposal):
            raise PlannerError(
                f"{reviewer.username} proposed or amended this. Ask another approver."
            )
    proposal.reviewers.add(*people)
    entry = _add_entry(proposal, Kind.REQUESTED, by, rule=rule)
    entry.mentions.set(people)
    words = f"Your review is requested: {proposal.title} (proposal {proposal.pk})"
    notify(proposal.workspace, Event.REVIEW, words, f"/proposals/{proposal.pk}/", people=people)
    return proposal


@transaction.atomic
def comment(
    *, proposal: Proposal, by: User, text: str, anchor: Mapping[str, Any] | None = None
) -> ProposalEntry:
    """Comment on a whole proposal (``anchor`` None), or on a setting or a point of a chart.

    ``anchor`` is {"setting": address}, or {"chart": name, "series": label, "time": moment}.
    """
    check_may_plan(by)
    if not text.strip():
        raise PlannerError("text: a comment must have text.")
    entry = _add_entry(proposal, Kind.COMMENT, by, text=text, anchor=_checked_anchor(anchor or {}))
    record("proposal.commented", proposal, by=by, entry=entry.pk)
    return entry


@transaction.atomic
def ask_for_changes(*, proposal: Proposal, by: User, text: str) -> Proposal:
    """Ask for changes of a proposal, as an approver."""
    check_may_approve(by)
    if not text.strip():
        raise PlannerError("text: name the change you need.")
    locked = _lock(proposal)
    _check_undecided(locked, "changed")
    return _change_state(locked, State.CHANGES, Kind.CHANGES, by, text)


@transaction.atomic
def reject(*, proposal: Proposal, by: User, text: str = "") -> Proposal:
    """Reject a proposal, as an approver."""
    check_may_approve(by)
    locked = _lock(proposal)
    _check_undecided(locked, "rejected")
    return _change_state(locked, State.REJECTED, Kind.REJECTED, by, text)


@transaction.atomic
def withdraw(*, proposal: Proposal, by: User, text: str = "") -> Proposal:
    """Withdraw a proposal, as its author or an admin."""
    locked = _lock(proposal)
    _check_author(locked, by, "withdraw it")
    _check_undecided(locked, "withdrawn")
    return _change_state(locked, State.WITHDRAWN, Kind.WITHDRAWN, by, text)


@transaction.atomic
def approve(
    *,
    proposal: Proposal,
    by: User | None,
    text: str = "",
    rule: str = "",
    now: datetime | None = None,
) -> Proposal:
    """Approve the current revision; activate its plan once there are enough approvals.

    If ``by`` is None, ``rule`` names a rule that approves, and the plan becomes active at once. A
    rule may not approve a plan that needs an admin's approval. ``now`` is the time of activation;
    None: the present.
    """
    locked = _lock(proposal)
    if by is not None:
        check_may_approve(by)
    elif not rule:
        raise NotAllowed("Name the person or the rule that approves the proposal.")
    if locked.state != State.OPEN:
        raise NotReady(
            f"Proposal {locked.pk} is {state_label(locked)}; only open proposals can be approved."
        )
    check_up_to_date(locked)
    if by is not None:
        check_may_approve_proposal(locked, by)
    elif reason := why_admin_needed(locked):
        raise NotAllowed(f"A rule cannot approve this proposal: {reason}.")
    _add_entry(locked, Kind.APPROVED, by, rule=rule, text=text, run=locked.run)
    record("proposal.approved", locked, by=by, rule=rule, revision=locked.revision)
    if by is None or not missing_approvals(locked):
        _activate(locked, by, rule, now or timezone.now())
    return locked


def _set_subject(proposal: Proposal, run: Run, base_run: Run | None, by: User | None) -> None:
    """Set the run of a proposal, what it is compared with, and start the replays of both plans.

    It is compared with ``base``, the active plan that it would replace, by the figures of
    ``base_run``; None: the run of that plan. ``outcome`` becomes the replay of the proposed plan,
    ``replay`` that of the active plan on the traffic of ``run``, if
    ``base_run`` is None and the plan is of another run.
    """
    plan = activatable_plan(run, options_of(ExportOptions, dict(proposal.options)), timezone.now())
    active = next(iter(plans_replaced_by(plan, run)), None)
    proposal.run, proposal.scenario = run, run.scenario
    proposal.policy = plan.policy
    proposal.usd_30d = cost_usd_30d(run, plan.policy)
    proposal.version = None
    if run.scenario_id:
        versions = ScenarioVersion.objects.filter(scenario=run.scenario, document=run.document)
        proposal.version = versions.first()
    proposal.base = active
    proposal.base_run = base_run or (active.run if active else None)
    if proposal.base_run == run:
        proposal.base_run = None
    proposal.outcome = proposed_replay_start(unsaved_active_plan(plan, run), run, by)
    proposal.replay = None
    if active is not None and base_run is None and active.run_id != run.pk:
        proposal.replay = active_replay_start(active, run, proposal.base_run, by)


def _lock(proposal: Proposal) -> Proposal:
    """Return the current row, locked until this transaction ends."""
    locked = Proposal.objects.select_for_update().filter(pk=proposal.pk).first()
    if locked is None:
        raise NotFound(f"There is no proposal {proposal.pk}.")
    return locked


def _add_entry(
    proposal: Proposal,
    kind: ProposalEntry.Kind,
    by: User | None,
    *,
    rule: str = "",
    text: str = "",
    run: Run | None = None,
    anchor: Mapping[str, Any] | None = None,
) -> ProposalEntry:
    """Add an entry by a user, or by ``rule``, and notify subscribers and people it mentions.

    ``anchor`` is the setting or the point of a chart that a comment is about.
    """
    entry = ProposalEntry.objects.create(
        proposal=proposal,
        kind=kind,
        revision=proposal.revision,
        run=run,
        by=by,
        rule=rule,
        text=checked_text("text", text, MAX_TEXT_CHARACTERS),
        anchor=dict(anchor or {}),
        at=timezone.now(),
    )
    names = {name.rstrip(".-+") for name in MENTION.findall(text)}
    in_workspace = Q(memberships__workspace=current_workspace()) | Q(is_superuser=True)
    people = list(User.objects.filter(in_workspace, username__in=names, is_active=True).distinct())
    entry.mentions.set(people)
    _notify_people(proposal, entry, people)
    return entry


def _notify_people(proposal: Proposal, entry: ProposalEntry, people: Sequence[User]) -> None:
    """Notify the subscribers of an entry, and ``people``, whom it mentions."""
    url = f"/proposals/{proposal.pk}/#entry-{entry.pk}"
    author = entry.by.username if entry.by else entry.rule or "The command line"
    sentence = f"{author} {entry.get_kind_display()}: {proposal.title} (proposal {proposal.pk})"
    event = EVENTS.get(Kind(entry.kind))
    if event is not None:
        notify(proposal.workspace, event, sentence, url)
    others = [person for person in people if person != entry.by]
    if others:
        quote = f"{sentence}: {entry.text}"[:500]
        notify(proposal.workspace, Event.MENTION, quote, url, people=others)


def _change_state(
    proposal: Proposal, state: Proposal.State, kind: ProposalEntry.Kind, by: User, text: str
) -> Proposal:
    """Set the state of a proposal and return it; add an entry of ``kind`` and an audit record."""
    proposal.state = state
    if state not in UNDECIDED:
        proposal.decided_at = timezone.now()
    proposal.save()
    _add_entry(proposal, kind, by, text=text)
    record(f"proposal.{kind.value}", proposal, by=by, revision=proposal.revision)
    return proposal


def _activate(proposal: Proposal, by: User | None, rule: str, now: datetime) -> None:
    """Approve a proposal and activate its plan; raise NotReady if its run was removed."""
    if proposal.run is None:
        raise NotReady(f"The run of proposal {proposal.pk} was removed. Amend it with another.")
    proposal.state = State.APPROVED
    proposal.decided_at = now
    proposal.save()
    options = options_of(ExportOptions, proposal.options)
    plan_activate(run=proposal.run, options=options, user=by, now=now, proposal=proposal, rule=rule)
    _add_entry(proposal, Kind.IN_FORCE, by, rule=rule, run=proposal.run)


def _check_undecided(proposal: Proposal, action: str) -> None:
    if not proposal.is_undecided:
        raise NotReady(f"Proposal {proposal.pk} is {state_label(proposal)} and cannot be {action}.")


def _check_author(proposal: Proposal, by: User, action: str) -> None:
    if by.pk not in authors_of(proposal) and not by.may_administer:
        raise NotAllowed(f"Only the author of proposal {proposal.pk}, or an admin, may {action}.")


def _checked_anchor(anchor: Mapping[str, Any]) -> dict[str, str]:
    """Return the fields of an anchor as text; raise PlannerError if they are not valid."""
    fields = {name: str(value).strip()[:300] for name, value in anchor.items() if value}
    if not fields:
        return {}
    if SETTING in fields and len(fields) == 1:
        return fields
    has_known_keys = fields.keys() <= {CHART, "series", "time", "value"}
    if has_known_keys and CHART in fields and "time" in fields:
        return fields
    raise PlannerError(
        'anchor: give {"setting": address}, or {"chart": name, "series": label, "time": moment}.'
    )
