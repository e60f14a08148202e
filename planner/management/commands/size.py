"""bin/manage size: announced, not built yet."""

from planner.management.later import LaterCommand


class Command(LaterCommand):
    help = "Sizing by queueing (not built yet)."
    what = "Sizing by queueing"
    instead = "plan prints the capacity per replica that its sizes rest on."
