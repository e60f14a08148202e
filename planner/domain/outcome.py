"""Define the traces that a run reads and the outcome that it returns."""

from dataclasses import dataclass
from typing import Any

import polars as pl

from planner.domain.serialise import as_json
from planner.domain.traffic.sources import StoredTrace
from planner.domain.whatif.plan_inputs import Basis

Traces = dict[str, StoredTrace]
REQUESTS = "requests"  # the table with one row per request, too long for a page or a CSV


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
