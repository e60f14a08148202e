"""Rows. Writes go through ``planner.services``, reads through ``planner.selectors``."""

from planner.models.run import Run
from planner.models.scenario import Scenario
from planner.models.trace import Trace
from planner.models.user import User

__all__ = ["Run", "Scenario", "Trace", "User"]
