"""bin/manage estimate: announced, not built yet."""

from planner.management.later import LaterCommand


class Command(LaterCommand):
    help = "Estimating one deployment (not built yet)."
    what = "Estimating one deployment"
    instead = "simulate and compare give latencies of a whole scenario."
