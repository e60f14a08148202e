"""bin/manage pd-ratio: announced, not built yet."""

from planner.management.later import LaterCommand


class Command(LaterCommand):
    help = "The prefill/decode ratio (not built yet)."
    what = "The prefill/decode ratio"
    instead = "plan and compare work with mixed instances."
