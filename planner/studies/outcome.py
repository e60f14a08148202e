"""What a kind of run takes besides its scenario, and what it gives."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import polars as pl

from planner.studies.traffic.sources import StoredTrace

Traces = dict[str, StoredTrace]
REQUESTS = "requests"  # the table of every request, too long for a page or a CSV


@dataclass(frozen=True, slots=True, eq=False)
class Outcome:
    """What a run keeps: figures as a document, arrays as tables."""

    document: dict[str, Any]
    tables: dict[str, pl.DataFrame]
