"""Define the inputs that a run reads and the outcome that it returns."""

from dataclasses import dataclass, field
from typing import Any

import polars as pl

from planner.domain.serialise import as_json
from planner.domain.traffic.sources import StoredTrace
from planner.domain.whatif.plan_inputs import Basis
from planner.inputs.scenario.schema import Scenario
from planner.inputs.scenario.user_facts import NO_USER_FACTS, UserFacts

Traces = dict[str, StoredTrace]
REQUESTS = "requests"  # the table with one row per request, too long for a page or a CSV


@dataclass(frozen=True, slots=True, eq=False)
class Inputs:
    """What a run reads: a scenario, the traces that it names, and the user's own hardware."""

    scenario: Scenario
    traces: Traces = field(default_factory=dict)
    user_facts: UserFacts = NO_USER_FACTS


@dataclass(frozen=True, slots=True, eq=False)
class Outcome:
    """What a run stores: its figures as a frozen result, and its arrays as tables.

    For a plan, ``basis`` has its inputs.
    """

    result: Any
    tables: dict[str, pl.DataFrame]
    basis: Basis | None = None

    @property
    def document(self) -> dict[str, Any]:
        """Return the result as JSON."""
        plain: dict[str, Any] = as_json(self.result)
        return plain
