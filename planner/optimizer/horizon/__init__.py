"""All periods at once: what a window by itself cannot weigh (methods.md E7, E9; ours beyond one).

Read ``solve`` for how the program is solved and what happens when time runs out, ``begin`` for the
plans it begins from and ``front`` for two objectives at once.
"""

from planner.optimizer.horizon.solve import solve_horizon
from planner.optimizer.problem import HorizonPlan, HorizonProblem

__all__ = ["HorizonPlan", "HorizonProblem", "solve_horizon"]
