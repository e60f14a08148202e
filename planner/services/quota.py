"""Limit the disk space that a workspace and a person may use."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from django.conf import settings
from django.db.models import QuerySet

from planner.errors import NoRoom
from planner.models import Calibration, ProfileVersion, Run, Source, Trace, User
from planner.storage import row_arrays

GB = 1e9


@dataclass(frozen=True, slots=True)
class DiskUsage:
    """The bytes that a workspace or a person uses, and the limit."""

    owner_words: str
    used: int
    limit: int
    setting: str
    remedy: str

    @property
    def remaining(self) -> int:
        return max(0, self.limit - self.used)

    def check_fits(self, name: str, new_bytes: int) -> None:
        """Raise NoRoom if an upload ``name`` of ``new_bytes`` bytes does not fit."""
        if new_bytes > self.remaining:
            raise NoRoom(
                f"{name} does not fit: {self.owner_words} {self.used / GB:,.1f} GB of the "
                f"{self.limit / GB:,.1f} GB that one may take here ({self.setting}); "
                f"{self.remedy}, then send it again."
            )


@dataclass(frozen=True, slots=True)
class DiskQuota:
    """The disk use of the current workspace, and of a person in all workspaces.

    ``person`` is None for a command, which has no user.
    """

    workspace: DiskUsage
    person: DiskUsage | None

    @property
    def shares(self) -> tuple[DiskUsage, ...]:
        return (self.workspace,) if self.person is None else (self.workspace, self.person)

    @property
    def remaining(self) -> int:
        return min(share.remaining for share in self.shares)

    def check_fits(self, name: str, new_bytes: int) -> None:
        for share in self.shares:
            share.check_fits(name, new_bytes)


def disk_quota(owner: User | None = None) -> DiskQuota:
    """Return the disk use of the current workspace and of ``owner``; None: of the first alone."""
    workspace = DiskUsage(
        owner_words="this workspace takes",
        used=row_arrays.bytes_of(_stores()),
        limit=settings.HEADROOM_MAX_WORKSPACE_BYTES,
        setting="HEADROOM_MAX_WORKSPACE_BYTES",
        remedy="remove unused traces or runs",
    )
    return DiskQuota(workspace, None if owner is None else disk_usage(owner))


def disk_usage(owner: User) -> DiskUsage:
    """Return the disk use of a person's uploads, measurements and results in all workspaces."""
    return DiskUsage(
        owner_words="your traces and runs in all workspaces take",
        used=row_arrays.bytes_of(_stores_of(owner)),
        limit=settings.HEADROOM_MAX_PERSON_BYTES,
        setting="HEADROOM_MAX_PERSON_BYTES",
        remedy="remove those of yours that you no longer need",
    )


def _stores() -> Iterator[str]:
    """Yield the paths of stored data in the rows of the current workspace."""
    for model in (Trace, Run, Calibration, ProfileVersion, Source):
        yield from _stores_in(model.objects.all())
    yield from _uploads(Run.objects.all())


def _stores_of(owner: User) -> Iterator[str]:
    """Yield the paths of stored data in a person's rows.

    Live sources and profiles do not count, since they belong to the workspace.
    """
    for model in (Trace, Run, Calibration):
        yield from _stores_in(model.everywhere.filter(owner=owner))
    yield from _uploads(Run.everywhere.filter(owner=owner))


def _stores_in(rows: QuerySet[Any]) -> QuerySet[Any, str]:
    """Return the paths of stored data in the rows, each once."""
    # The order of the model would make rows with one path differ.
    return rows.exclude(store="").order_by().values_list("store", flat=True).distinct()


def _uploads(runs: QuerySet[Run]) -> Iterator[str]:
    """Yield the uploads that ingest runs still have; a completed run has removed its own."""
    states = [state for state in Run.State if state != Run.State.COMPLETED]
    waiting = runs.filter(kind=Run.Kind.INGEST, state__in=states).order_by()
    for options in waiting.values_list("options", flat=True):
        if upload := options.get("upload"):  # "": the file was removed after it was read
            yield upload
