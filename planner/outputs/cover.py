"""Describe the cover of a report file: its run, its times and who signs it."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime

from planner.domain.formats import when
from planner.models import Run
from planner.selectors.review import approvals_of, proposal_approved
from planner.selectors.runs import stored_result

PREPARED, REVIEWED, APPROVED = "Prepared by", "Reviewed by", "Approved by"
SIGNED = (Run.Kind.PLAN, Run.Kind.COMPARE, Run.Kind.SIMULATE)  # kinds that people sign


@dataclass(frozen=True, slots=True)
class SignOff:
    """A line for a signature; empty fields are filled in by hand."""

    role: str
    name: str = ""
    decision: str = ""
    date: str = ""


@dataclass(frozen=True, slots=True)
class Cover:
    """The cover of a report file."""

    run: int
    kind: str
    computed: str  # time of the run's end
    written: str  # time of the export
    version: str  # release that computed the run
    sign_offs: tuple[SignOff, ...] = ()

    @property
    def heading(self) -> str:
        """Return the kind and the number of the run."""
        return f"{self.kind} · run {self.run}"

    @property
    def sentence(self) -> str:
        """Return the times and the release as sentences."""
        return f"Computed {self.computed}. Exported {self.written}. Version {self.version}."


def cover_of(run: Run, now: datetime) -> Cover:
    """Return the cover of a run's report."""
    sign_offs: tuple[SignOff, ...] = ()
    if run.kind in SIGNED:
        sign_offs = tuple(_sign_offs(run, stored_result(run).recommended_policy))
    return Cover(
        run=run.pk,
        kind=run.get_kind_display(),
        computed=when(run.finished_at),
        written=when(now),
        version=run.code_version,
        sign_offs=sign_offs,
    )


def _sign_offs(run: Run, policy: str) -> Iterator[SignOff]:
    """Yield the sign-offs of the approved proposal; without one, empty lines to sign."""
    proposal = proposal_approved(run.pk, policy)
    if proposal is None:
        yield from (SignOff(role) for role in (PREPARED, REVIEWED, APPROVED))
        return
    author = proposal.author.username if proposal.author else proposal.rule
    yield SignOff(PREPARED, author, f"proposal {proposal.pk}", when(proposal.created_at))
    for approval in approvals_of(proposal):
        approver = approval.by.username if approval.by else approval.rule
        decision = f"approved revision {approval.revision}"
        yield SignOff(APPROVED, approver, decision, when(approval.at))
