"""Change the roles of prefill and decode replicas by token velocity (TokenScale, DOPD, Arrow)."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from planner.errors import ScenarioError
from planner.policies.base import Factor, Group, Interval, Policy, Traits, TunedParameter, factors
from planner.policies.context import BuiltPolicy, PolicyContext
from planner.schema_types import Delay, Share
from simulation.policies.feedback import TBT, TTFT
from simulation.policies.parts.endpoints import services
from simulation.policies.token_velocity import TokenVelocity as Rule

Positive = Annotated[float, Field(gt=0, le=10)]


class TokenVelocity(Policy):
    """Compare the work of both roles with their token velocities."""

    kinds: ClassVar = {
        "role-switch": Traits(
            "Replicas switch roles",
            "Running replicas switch between prefill and decode, by tokens/s per replica.",
            Group.ROLES,
            complexity=15,
        ),
        "convertible-decode": Traits(
            "Chunked prefill on decode replicas",
            "Decode replicas help with chunked prefill while the prefill queue is long.",
            Group.ROLES,
            complexity=15,
        ),
        "token-velocity": Traits(
            "Token velocity (TokenScale)",
            "Scales prefill and decode by tokens/s per replica. Replicas switch or share roles.",
            Group.ROLES,
            complexity=18,
        ),
    }

    name: Literal["role-switch", "convertible-decode", "token-velocity"]
    # Pressure of a role, need over replicas, from which replicas switch (ours).
    target: Positive = Rule.target
    gain: Share = Rule.gain  # share by which a switch must reduce the pressure (ours)
    # Wait from which decode takes prompts, over the TTFT limit (ours).
    overflow: Factor = Rule.overflow
    scales: bool = True  # token-velocity: whether the number of replicas changes too
    keep_s: Delay = Rule.keep_s  # seconds of lower need before a scale-in (ours)
    switch_s: Delay = Rule.switch_s  # seconds from the last work to the new role (measured)
    interval_s: Interval = Rule.interval_s  # seconds between decisions (ours)

    @property
    def changes_counts(self) -> bool:
        """Return whether the number of replicas changes, and not only their roles."""
        return self.scales and self.name == "token-velocity"

    @property
    def tuned_parameter(self) -> TunedParameter:
        if self.name == "convertible-decode":
            return TunedParameter("overflow", factors(1.0, 0.1, 8))
        return TunedParameter("target", factors(1.2, 0.4, 8))

    def build(self, context: PolicyContext) -> BuiltPolicy:
        """Return the policy on the current fleet.

        Raises ScenarioError unless a model has replicas of both roles in a region.
        """
        has_both_roles = [
            context.today[list(service.prefill)].any() and context.today[list(service.decode)].any()
            for service in services(context.fleet(context.today))
            if service.has_separate_roles
        ]
        if not any(has_both_roles):
            raise ScenarioError(
                f"policies: {self.name!r} needs prefill and decode replicas. Give replicas of both "
                "roles in fleet.today."
            )
        return context.with_current_fleet(Rule(
            lengths=context.lengths,
            ttft_s=context.tightest_s(TTFT),
            tbt_s=context.tightest_s(TBT),
            switches=self.name != "convertible-decode",
            takes_over=self.name != "role-switch",
            **self.fields_for(Rule) | {
                "scales": self.changes_counts, "name": self.key,
            },
        ))  # fmt: skip
