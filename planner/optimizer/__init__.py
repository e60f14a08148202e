"""PlanningProblem in, ScalingPlan out. Pure: arrays and frozen dataclasses, no Django, no files.

Read ``problem`` for what is asked, ``program`` for the integer program and its families, ``window``
for one period and ``sequence`` for a day of them, ``horizon`` for several at once;
``decomposition`` for large windows and ``limited`` for scarce capacity.
"""

from planner.optimizer.greedy import greedy_target
from planner.optimizer.limited import serve_limited
from planner.optimizer.sequence import plan_sequence
from planner.optimizer.window import solve_window

__all__ = ["greedy_target", "plan_sequence", "serve_limited", "solve_window"]
