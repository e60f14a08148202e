"""Copy the arrays of an installation into its bucket, and list missing ones."""

from __future__ import annotations

from dataclasses import dataclass

from planner.errors import NotReady
from planner.services.backups import stores_named
from planner.storage import row_arrays


@dataclass(frozen=True, slots=True)
class InBucket:
    """Counts of the stores in the bucket."""

    bucket: str
    whole: int  # folders and files that rows name and that the bucket already had
    taken: int  # copied from this machine
    lost: tuple[str, ...]  # in neither place


def arrays_take() -> InBucket:
    """Copy what rows name and the bucket lacks from this machine into the bucket."""
    bucket = row_arrays.bucket()
    if bucket is None:
        raise NotReady(
            "Arrays are kept in the data folder; name a bucket in HEADROOM_ARRAYS to keep them "
            "there (docs/operations.md)."
        )
    held, taken, lost = 0, 0, []
    for store in sorted(stores_named()):
        if bucket.holds(store):
            held += 1
        elif row_arrays.folder(store).exists():
            bucket.keep(store)
            taken += 1
        else:
            lost.append(store)
    return InBucket(bucket.name, held, taken, tuple(lost))
