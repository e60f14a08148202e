"""Limit the disk space that a workspace and a person may use."""

from collections.abc import Iterator, Sequence
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
    """The disk space that a workspace or a person uses, and the limit, in bytes."""

    owner_words: str  # who uses it, such as "this workspace takes"
    used: int
    limit: int
    setting: str  # that sets the limit
    remedy: str

    @property
    def remaining(self) -> int:
        """Return the bytes that may still be used."""
        return max(0, self.limit - self.used)


def disk_usages(owner: User | None) -> list[DiskUsage]:
    """Return the disk use of the current workspace, and of ``owner`` unless that is None."""
    workspace = DiskUsage(
        owner_words="this workspace takes",
        used=row_arrays.bytes_of(_stores(None)),
        limit=settings.HEADROOM_MAX_WORKSPACE_BYTES,
        setting="HEADROOM_MAX_WORKSPACE_BYTES",
        remedy="remove unused traces or runs",
    )
    return [workspace] if owner is None else [workspace, disk_usage(owner)]


def check_fits(usages: Sequence[DiskUsage], name: str, new_bytes: int) -> None:
    """Raise NoRoom if an upload ``name`` of ``new_bytes`` bytes exceeds the limit of a usage."""
    for usage in usages:
        if new_bytes > usage.remaining:
            raise NoRoom(
                f"{name} does not fit: {usage.owner_words} {usage.used / GB:,.1f} GB of the "
                f"{usage.limit / GB:,.1f} GB that one may take here ({usage.setting}); "
                f"{usage.remedy}, then send it again."
            )


def disk_usage(owner: User) -> DiskUsage:
    """Return the disk use of a person's uploads, measurements and results in all workspaces."""
    return DiskUsage(
        owner_words="your traces and runs in all workspaces take",
        used=row_arrays.bytes_of(_stores(owner)),
        limit=settings.HEADROOM_MAX_PERSON_BYTES,
        setting="HEADROOM_MAX_PERSON_BYTES",
        remedy="remove those of yours that you no longer need",
    )


def _stores(owner: User | None) -> Iterator[str]:
    """Yield the paths of stored data in a person's rows; None: in those of the current workspace.

    Live sources and profiles belong to the workspace, so they do not count for a person.
    """

    def rows(model: Any) -> QuerySet[Any]:
        """Return the person's rows of a table, or those of the workspace."""
        found: QuerySet[Any] = model.objects.all()
        if owner is not None:
            found = model.everywhere.filter(owner=owner)
        return found.order_by()  # without an order, distinct() compares the paths alone

    shared_models = () if owner else (ProfileVersion, Source)
    for model in (Trace, Run, Calibration, *shared_models):
        yield from rows(model).exclude(store="").values_list("store", flat=True).distinct()
    # Runs that read an upload remove it when they complete.
    waiting = rows(Run).filter(kind=Run.Kind.INGEST).exclude(state=Run.State.COMPLETED)
    for options in waiting.values_list("options", flat=True):
        if upload := options.get("upload"):  # "": the file was removed after it was read
            yield upload
