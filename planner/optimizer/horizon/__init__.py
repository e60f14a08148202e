"""Plan all periods at once, which a single window cannot weigh (methods.md E7, E9).

The part beyond one period is ours. ``solve`` solves the program, with plans to start
from, and handles timeouts. ``pareto_front`` handles two objectives at once.
"""

from planner.optimizer.horizon.solve import solve_horizon
from planner.optimizer.problem import HorizonPlan, HorizonProblem
