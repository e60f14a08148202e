"""Arrays of an installation taken into its bucket, and what the bucket lacks."""

from __future__ import annotations

from dataclasses import dataclass

from planner import storage
from planner.errors import NotReady
from planner.services.backups import stores_named


@dataclass(frozen=True, slots=True)
class InBucket:
    bucket: str
    whole: int  # folders and files that rows name and the bucket had
    taken: int  # that it lacked and were here
    lost: tuple[str, ...]  # that are neither there nor here


def arrays_take() -> InBucket:
    """Have the bucket hold all that rows name; what it lacks is taken from this machine."""
    bucket = storage.bucket()
    if bucket is None:
        raise NotReady(
            "Arrays are kept in the data folder; name a bucket in HEADROOM_ARRAYS to keep them "
            "there (docs/operations.md)."
        )
    held, taken, lost = 0, 0, []
    for store in sorted(stores_named()):
        if bucket.holds(store):
            held += 1
        elif storage.folder(store).exists():
            bucket.keep(store)
            taken += 1
        else:
            lost.append(store)
    return InBucket(bucket.name, held, taken, tuple(lost))
