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
    signs = (
        tuple(_sign_offs(run, stored_result(run).recommended_policy)) if run.kind in SIGNED else ()
    )
    return Cover(
        run.pk, run.get_kind_display(), when(run.finished_at), when(now), run.code_version, signs
    )


def _sign_offs(run: Run, policy: str) -> Iterator[SignOff]:
    """Yield the sign-offs of the approved proposal; without one, empty lines to sign."""
    decided = proposal_approved(run.pk, policy)
    if decided is None:
        yield from (SignOff(role) for role in (PREPARED, REVIEWED, APPROVED))
        return
    who = decided.author.username if decided.author else decided.rule
    yield SignOff(PREPARED, who, f"proposal {decided.pk}", when(decided.created_at))
    for entry in approvals_of(decided):
        name = entry.by.username if entry.by else entry.rule
        yield SignOff(APPROVED, name, f"approved revision {entry.revision}", when(entry.at))
