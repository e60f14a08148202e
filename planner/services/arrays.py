"""Copy the arrays of an installation into its bucket, and list missing ones."""

from dataclasses import dataclass

from planner.errors import NotReady
from planner.services.backups import named_stores
from planner.storage import row_arrays


@dataclass(frozen=True, slots=True)
class BucketCopy:
    """How many stores a copy to ``bucket`` found there, how many it copied, and which it lacks."""

    bucket: str
    whole: int  # folders and files that rows name and that the bucket already had
    taken: int  # copied from this machine
    lost: tuple[str, ...]  # in neither place


def arrays_copy_to_bucket() -> BucketCopy:
    """Copy the stores that rows name and the bucket lacks from this machine to the bucket."""
    bucket = row_arrays.bucket()
    if bucket is None:
        raise NotReady(
            "Arrays are kept in the data folder. Name a bucket in HEADROOM_ARRAYS to keep them "
            "there (docs/operations.md)."
        )
    present, copied, missing = 0, 0, []
    for store in sorted(named_stores()):
        if bucket.holds(store):
            present += 1
        elif row_arrays.folder(store).exists():
            bucket.keep(store)
            copied += 1
        else:
            missing.append(store)
    return BucketCopy(bucket.name, present, copied, tuple(missing))
