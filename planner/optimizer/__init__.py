"""The fleet optimizer: ``PlanningProblem`` in, ``ScalingPlan`` out.

It is pure: arrays and frozen dataclasses, no Django, no files.

Reading order: ``problem`` defines the problem, ``program`` the integer program and its families.
``window`` plans one period and ``horizon`` several at once.
``decomposition`` is for large windows, ``limited_capacity`` for scarce capacity.
"""

from planner.optimizer.greedy import greedy_target
from planner.optimizer.limited_capacity import serve_limited
from planner.optimizer.window import solve_window
