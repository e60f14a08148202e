"""Rows. Writes go through ``planner.services``, reads through ``planner.selectors``."""

from planner.models.deployment import DeploymentName
from planner.models.hardware import OwnGpu, OwnModel, PriceList
from planner.models.in_force import PlanInForce
from planner.models.profile import Calibration, Profile, ProfileVersion
from planner.models.run import Run
from planner.models.scenario import Scenario
from planner.models.sweep import Sweep
from planner.models.token import ApiToken
from planner.models.trace import Trace
from planner.models.user import User

__all__ = [
    "ApiToken",
    "Calibration",
    "DeploymentName",
    "OwnGpu",
    "OwnModel",
    "PlanInForce",
    "PriceList",
    "Profile",
    "ProfileVersion",
    "Run",
    "Scenario",
    "Sweep",
    "Trace",
    "User",
]
