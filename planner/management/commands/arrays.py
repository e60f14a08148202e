"""``bin/manage arrays``: copy all arrays to the bucket of HEADROOM_ARRAYS, and list lost ones."""

from argparse import Namespace

from planner.management.base import HeadroomCommand
from planner.services import arrays


class Command(HeadroomCommand):
    help = "Move arrays of this machine into the bucket of HEADROOM_ARRAYS. List missing arrays."
    examples = ("arrays", "arrays --json", "arrays --workspace research")

    def answer(self, options: Namespace) -> arrays.BucketCopy:
        """Move the arrays into the bucket, and return what was moved and what is missing."""
        return arrays.arrays_copy_to_bucket()

    def words(self, answer: arrays.BucketCopy) -> str:
        """Return the counts of arrays, and a line for each lost one."""
        counts = (
            f"{answer.bucket}: {answer.present:,} there, {answer.copied:,} moved from this "
            f"machine, {len(answer.lost):,} lost"
        )
        return "\n".join([counts, *(f"lost: {name}" for name in answer.lost)])
