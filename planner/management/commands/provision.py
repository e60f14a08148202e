"""bin/manage provision: announced, not built yet."""

from planner.management.later import LaterCommand


class Command(LaterCommand):
    help = "Operator- and module-level provisioning (not built yet)."
    what = "Operator- and module-level provisioning"
    instead = "plan and compare provision whole replicas."
