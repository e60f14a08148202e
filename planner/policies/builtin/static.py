"""Keep a static fleet: today's, one sized on backtests, or an oracle baseline (methods.md X1)."""

from dataclasses import replace
from typing import ClassVar, Literal

from planner.policies.base import Group, Policy, Style, Traits
from planner.policies.context import BuiltPolicy, PolicyContext
from simulation.policies.static import Static


class FixedFleet(Policy):
    """Keep the same instances all the time."""

    kinds: ClassVar = {
        "today": Traits(
            "Current fleet",
            "The current fleet, without scaling.",
            Group.FIXED,
            complexity=0,
            flat=True,
            needs_current_fleet=True,
            style=Style("red", "dash"),
        ),
        "flat-before": Traits(
            "Static fleet sized on history",
            "The smallest static fleet that passes the required test days, such as past days.",
            Group.FIXED,
            complexity=1,
            flat=True,
            always=True,
            style=Style("grey"),
        ),
        "flat-peak": Traits(
            "Static fleet for the peak",
            "Oracle: a static fleet sized for the peak of the window.",
            Group.FIXED,
            complexity=2,
            flat=True,
            always=True,
            hindsight=True,
            style=Style("grey", "dash"),
        ),
        "flat-min": Traits(
            "Minimum static fleet",
            "Oracle: the smallest static fleet that meets the SLO in the window.",
            Group.FIXED,
            complexity=3,
            flat=True,
            always=True,
            hindsight=True,
            style=Style("orange", "dot"),
        ),
    }

    name: Literal["today", "flat-before", "flat-peak", "flat-min"]

    def build(self, context: PolicyContext) -> BuiltPolicy:
        """Return a static fleet; "flat-min" and "flat-before" find its size by simulations."""
        searched = self.name in ("flat-min", "flat-before")
        counts = {
            "today": lambda: context.today,
            "flat-before": context.deployable_static,
            "flat-peak": lambda: context.peak,
            "flat-min": context.smallest_oracle,
        }[self.name]()
        fleet = context.fleet(counts)
        if self.traits.needs_current_fleet:  # today's fleet may be below the scenario's minimum
            pools = (replace(pool, minimum=min(pool.minimum, pool.initial)) for pool in fleet.pools)
            fleet = replace(fleet, pools=tuple(pools))
        policy = Static(counts, name=self.key)
        work_done = 0.9 if searched else 0.0
        return BuiltPolicy(policy, fleet, range(len(counts)), work_done=work_done, keeps_floor=True)
