"""Where instances go in the network (methods.md D5, D6). Pure: dataclasses in, tables out.

Read ``problem`` for what is placed, ``algorithm4`` for the seed's scheduler in both directions,
``blind`` for the baseline, ``program`` and ``exact`` for the integer program, ``measures`` for what
they are compared by.
"""

from planner.optimizer.placement.algorithm4 import schedule
from planner.optimizer.placement.blind import place_blind
from planner.optimizer.placement.exact import place_exact
from planner.optimizer.placement.measures import Measures, measure, service_share
from planner.optimizer.placement.problem import (
    Part,
    Placement,
    PlacementProblem,
    Role,
    Service,
)

__all__ = [
    "Measures",
    "Part",
    "Placement",
    "PlacementProblem",
    "Role",
    "Service",
    "measure",
    "place_blind",
    "place_exact",
    "schedule",
    "service_share",
]
