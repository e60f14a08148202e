"""PlanningProblem in, ScalingPlan out. Pure: arrays and frozen dataclasses, no Django, no files.

Read ``model`` for the program, ``constraints`` for its families, ``window`` for one solve and
``sequence`` for a day of them.
"""

from planner.optimizer.greedy import greedy_target
from planner.optimizer.sequence import plan_sequence
from planner.optimizer.window import solve_window

__all__ = ["greedy_target", "plan_sequence", "solve_window"]
