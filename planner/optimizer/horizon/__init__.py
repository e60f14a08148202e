"""All periods at once: what a window by itself cannot weigh (methods.md E7, E9; ours beyond one).

Read ``problem`` for what is asked, ``program`` and ``families`` for the integer program built as
arrays, ``solve`` for how it is solved and what happens when time runs out.
"""

from planner.optimizer.horizon.problem import HorizonPlan, HorizonProblem
from planner.optimizer.horizon.solve import solve_horizon

__all__ = ["HorizonPlan", "HorizonProblem", "solve_horizon"]
