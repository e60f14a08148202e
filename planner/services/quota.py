"""How much of the disk a workspace takes, and may take."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from django.conf import settings

from planner import storage
from planner.errors import NoRoom
from planner.models import Calibration, ProfileVersion, Run, Source, Trace

GB = 1e9


@dataclass(frozen=True, slots=True)
class Room:
    """Bytes of the current workspace: what its traces, uploads, results and the like take."""

    used: int
    limit: int

    @property
    def left(self) -> int:
        return max(0, self.limit - self.used)

    def check(self, what: str, more: int) -> None:
        """Raises NoRoom where ``more`` bytes of ``what`` are beyond it."""
        if more > self.left:
            raise NoRoom(
                f"{what} does not fit: this workspace takes {self.used / GB:,.1f} GB of the "
                f"{self.limit / GB:,.1f} GB that one may take here "
                "(HEADROOM_MAX_WORKSPACE_BYTES); remove traces or runs that nobody needs, then "
                "send it again."
            )


def room() -> Room:
    return Room(storage.bytes_of(_stores()), settings.HEADROOM_MAX_WORKSPACE_BYTES)


def _stores() -> Iterator[str]:
    """What the workspace's rows name."""
    for model in (Trace, Run, Calibration, ProfileVersion, Source):
        yield from model.objects.exclude(store="").values_list("store", flat=True)
    for options in Run.objects.filter(kind=Run.Kind.INGEST).values_list("options", flat=True):
        if upload := options.get("upload"):  # removed once it has been read
            yield upload
