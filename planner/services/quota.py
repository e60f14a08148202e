"""How much of the disk a workspace and a person take, and may take."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from django.conf import settings
from django.db.models import QuerySet

from planner import storage
from planner.errors import NoRoom
from planner.models import Calibration, ProfileVersion, Run, Source, Trace, User

GB = 1e9


@dataclass(frozen=True, slots=True)
class Share:
    """Bytes that one of them takes of those that it may take."""

    whose: str
    used: int
    limit: int
    setting: str
    remedy: str

    @property
    def left(self) -> int:
        return max(0, self.limit - self.used)

    def check(self, what: str, more: int) -> None:
        """Raises NoRoom where ``more`` bytes of ``what`` are beyond it."""
        if more > self.left:
            raise NoRoom(
                f"{what} does not fit: {self.whose} {self.used / GB:,.1f} GB of the "
                f"{self.limit / GB:,.1f} GB that one may take here ({self.setting}); "
                f"{self.remedy}, then send it again."
            )


@dataclass(frozen=True, slots=True)
class Room:
    """What the current workspace takes with its traces, uploads, results and the like, and what a
    person takes with theirs in all workspaces; None of a command, which is nobody's."""

    workspace: Share
    person: Share | None

    @property
    def left(self) -> int:
        return min(share.left for share in self._shares())

    def check(self, what: str, more: int) -> None:
        for share in self._shares():
            share.check(what, more)

    def _shares(self) -> Iterator[Share]:
        yield self.workspace
        if self.person is not None:
            yield self.person


def room(owner: User | None = None) -> Room:
    workspace = Share(
        "this workspace takes",
        storage.bytes_of(_stores()),
        settings.HEADROOM_MAX_WORKSPACE_BYTES,
        "HEADROOM_MAX_WORKSPACE_BYTES",
        "remove traces or runs that nobody needs",
    )
    return Room(workspace, None if owner is None else share_of(owner))


def share_of(owner: User) -> Share:
    """What somebody uploaded, measured and had computed, in all workspaces."""
    return Share(
        "your traces and runs in all workspaces take",
        storage.bytes_of(_stores_of(owner)),
        settings.HEADROOM_MAX_PERSON_BYTES,
        "HEADROOM_MAX_PERSON_BYTES",
        "remove those of yours that you no longer need",
    )


def _stores() -> Iterator[str]:
    """What the workspace's rows name."""
    for model in (Trace, Run, Calibration, ProfileVersion, Source):
        yield from model.objects.exclude(store="").values_list("store", flat=True)
    yield from _uploads(Run.objects.all())


def _stores_of(owner: User) -> Iterator[str]:
    """What a person's rows name; a live source and a profile are the workspace's own."""
    for model in (Trace, Run, Calibration):
        rows = model.everywhere.filter(owner=owner)
        yield from rows.exclude(store="").values_list("store", flat=True)
    yield from _uploads(Run.everywhere.filter(owner=owner))


def _uploads(runs: QuerySet[Run]) -> Iterator[str]:
    for options in runs.filter(kind=Run.Kind.INGEST).values_list("options", flat=True):
        if upload := options.get("upload"):  # removed once it has been read
            yield upload
