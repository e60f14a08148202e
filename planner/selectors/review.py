"""Read proposals, their entries, and the rules of review."""

from collections.abc import Sequence

from django.db.models import Q, QuerySet

from planner.models import Proposal, ProposalEntry, ReviewRules, User
from planner.selectors.lookup import row_by_number

UNDECIDED = (Proposal.State.DRAFT, Proposal.State.OPEN, Proposal.State.CHANGES)


def review_rules() -> ReviewRules:
    """Return the stored rules of review, or the defaults."""
    return ReviewRules.objects.first() or ReviewRules()


def proposals_list() -> QuerySet[Proposal]:
    """Return all proposals."""
    return Proposal.objects.select_related("author", "run", "scenario", "version")


def proposals_for(user: User) -> QuerySet[Proposal]:
    """Return the undecided proposals that ``user`` should review or is mentioned in."""
    addressed = Q(reviewers=user) | Q(entries__mentions=user)
    return proposals_list().filter(addressed, state__in=UNDECIDED).distinct()


def undecided_proposals() -> QuerySet[Proposal]:
    """Return the proposals that are not decided, the newest first."""
    return proposals_list().filter(state__in=UNDECIDED)


def proposal_get(number: int) -> Proposal:
    """Return a proposal by number; raise NotFound."""
    rows = proposals_list().select_related("base", "base_run", "replay", "outcome")
    return row_by_number(rows, "proposal", number)


def proposal_approved(run_id: int, policy: str) -> Proposal | None:
    """Return the newest approved proposal for a run's plan under ``policy``, or None."""
    approved = Proposal.objects.filter(run_id=run_id, policy=policy, state=Proposal.State.APPROVED)
    return approved.order_by("-pk").first()


def proposal_entries(proposal: Proposal) -> list[ProposalEntry]:
    """Return the entries of a proposal in order of time."""
    return list(proposal.entries.select_related("by", "run"))


def authors_of(proposal: Proposal) -> set[int]:
    """Return the user ids of everybody who proposed or amended a proposal."""
    kinds = (ProposalEntry.Kind.OPENED, ProposalEntry.Kind.AMENDED)
    entries = proposal.entries.filter(kind__in=kinds, by__isnull=False)
    return {*entries.values_list("by_id", flat=True)} | {proposal.author_id or 0}


def approvals_of(proposal: Proposal) -> Sequence[ProposalEntry]:
    """Return the approvals of the proposal's current revision, one per person.

    An amendment starts a new revision, so earlier approvals do not count.
    """
    rows = proposal.entries.filter(
        kind=ProposalEntry.Kind.APPROVED, revision=proposal.revision
    ).select_related("by")
    return list({row.by_id: row for row in rows}.values())
