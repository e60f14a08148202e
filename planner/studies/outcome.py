"""What a kind of run takes besides its scenario, and what it gives."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import polars as pl

from planner.studies.plain import as_json
from planner.studies.traffic.sources import StoredTrace
from planner.studies.whatif.basis import Basis

Traces = dict[str, StoredTrace]
REQUESTS = "requests"  # the table of every request, too long for a page or a CSV


@dataclass(frozen=True, slots=True, eq=False)
class Outcome:
    """What a run keeps: figures as the frozen result of its kind, arrays as tables, and of a plan
    what it was made from."""

    result: Any
    tables: dict[str, pl.DataFrame]
    basis: Basis | None = None

    @property
    def document(self) -> dict[str, Any]:
        """The result as JSON, for the edge."""
        plain: dict[str, Any] = as_json(self.result)
        return plain
