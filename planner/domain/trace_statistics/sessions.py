"""Describe the sessions of a trace: turns, gaps between them, and growing contexts."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl

from planner.domain.trace_statistics.figures import Sessions
from planner.inputs.ingest.store import scan_requests, stored_sessions


def sessions_of(store: Path) -> Sessions | None:
    """Return the figures of sessions with at least two requests; None if there are none."""
    _, scan = scan_requests(store)
    session = stored_sessions(scan)
    if session is None:
        return None
    columns = scan.select("arrival_s", "input_tokens").collect()
    order = np.argsort(session, kind="stable")
    order = order[session[order] >= 0]
    turns = pl.DataFrame(
        {
            "session": session[order],
            "arrival_s": columns["arrival_s"].to_numpy()[order],
            "prompt": columns["input_tokens"].to_numpy()[order],
        }
    )
    counts = turns.group_by("session").len()["len"]
    same = turns["session"].diff() == 0
    gaps = turns["arrival_s"].diff().filter(same)
    growth = turns["prompt"].cast(pl.Int64).diff().filter(same)

    def quantile(values: pl.Series, level: float) -> float:
        found = values.quantile(level, "nearest")
        return 0.0 if found is None else float(found)

    return Sessions(
        sessions=counts.len(),
        share=turns.height / len(session),
        turns_mean=turns.height / counts.len(),
        turns_p50=quantile(counts, 0.5),
        turns_p95=quantile(counts, 0.95),
        turns_most=int(np.max(counts.to_numpy())),
        gap_s_p50=quantile(gaps, 0.5),
        gap_s_p95=quantile(gaps, 0.95),
        growing=float((growth >= 0).to_numpy().mean()),
        growth_p50=quantile(growth, 0.5),
    )
