"""PlanningProblem in, ScalingPlan out. Pure: arrays and frozen dataclasses, no Django, no files.

Read ``model`` for the program, ``constraints`` for its families, ``window`` for one solve and
``sequence`` for a day of them; ``decomposition`` for large windows, ``limited`` for scarce capacity
and ``pareto`` for two objectives at once.
"""

from planner.optimizer.greedy import greedy_target
from planner.optimizer.limited import serve_limited
from planner.optimizer.pareto import pareto_front
from planner.optimizer.sequence import plan_sequence
from planner.optimizer.window import solve_window

__all__ = [
    "greedy_target",
    "pareto_front",
    "plan_sequence",
    "serve_limited",
    "solve_window",
]
