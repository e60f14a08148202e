"""Define the tables; ``planner.services`` write them and ``planner.selectors`` read them."""

from planner.models.audit import AuditHead, AuditRecord
from planner.models.counter import Counter, Numbered, take_numbers
from planner.models.notification import Channel, Delivery, Event
from planner.models.profile import Calibration, OwnGpu, OwnModel, PriceList, Profile, ProfileVersion
from planner.models.proposal import ActivePlan, DeploymentName, Proposal, ProposalEntry, ReviewRules
from planner.models.run import Run, RunPart, Sweep
from planner.models.scenario import Scenario, ScenarioVersion
from planner.models.schedule import Firing, Outcome, Schedule
from planner.models.trace import Source, SourceReading, Trace
from planner.models.user import (
    ApiToken,
    AttemptWindow,
    ExternalIdentity,
    SecondFactor,
    Session,
    User,
)
from planner.models.workspace import Membership, Role, Workspace
