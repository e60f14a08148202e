"""Count requests that are longer than the context of the model that serves them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from planner.inputs.ingest.store import scan_requests

EVERY_LABEL = ""  # key of the model that serves all requests of a trace


@dataclass(frozen=True, slots=True)
class BeyondContext:
    """Requests of one label whose prompt and answer together exceed a model's context."""

    label: str  # name of the model in the trace; EVERY_LABEL: all requests
    model: str  # name in the catalogue
    context: int  # tokens
    requests: int
    longest: int  # tokens of the longest request


def beyond_context(
    store_dir: Path | str, contexts: Mapping[str, tuple[str, int]]
) -> tuple[BeyondContext, ...]:
    """Return the labels with requests beyond the context, the most requests first.

    ``contexts`` maps a label of the trace to the model's name and its context in tokens.
    """
    _, requests = scan_requests(store_dir)
    total = (pl.col("input_tokens").cast(pl.Int64) + pl.col("output_tokens").cast(pl.Int64)).alias(
        "total"
    )
    by_label = EVERY_LABEL not in contexts
    label = pl.col("model").fill_null("") if by_label else pl.lit(EVERY_LABEL)
    least = min(context for _, context in contexts.values())
    long = requests.select(total, label.alias("label")).filter(pl.col("total") > least)
    counted = long.group_by("label", "total").len().collect(engine="streaming")
    found = []
    for name, (model, context) in contexts.items():
        beyond = counted.filter(pl.col("label") == name, pl.col("total") > context)
        if beyond.height:
            totals = beyond["total"].to_list()
            found.append(BeyondContext(name, model, context, int(beyond["len"].sum()), max(totals)))
    return tuple(sorted(found, key=lambda each: -each.requests))
