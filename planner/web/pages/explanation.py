"""Explain a recommended number on the page of its run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from planner.domain.formats import figure
from planner.models import Run
from planner.selectors.explanation import explanation_chains
from planner.selectors.runs import run_result


@dataclass(frozen=True, slots=True)
class Money:
    usd: float
    words: str


def why_context(run: Run) -> dict[str, Any]:
    return {"chains": explanation_chains(run), "money": _money(run_result(run))}


def _money(result: dict[str, Any]) -> Money | None:
    """Return the parts of the recommended cost."""
    take = result.get("recommended") or {}
    usd, hours = take.get("cost_usd"), take.get("gpu_hours")
    if not usd or not hours:
        return None
    row = (result.get("policies") or {}).get(take.get("policy"))
    basis = "replayed" if row else "planned"
    words = f"{figure(hours)} GPU-hours, as {basis}, at ${usd / hours:,.2f} an hour at the mean."
    if row and row.get("wasted_gpu_hours") is not None:
        words += f" Of these {figure(row['wasted_gpu_hours'])} went into starts."
    planned = ((result.get("plan") or {}).get("totals") or {}).get("usd")
    if row and planned and take.get("follows_plan"):
        words += f" Cost as planned: {figure(planned, '$')}."
    return Money(float(usd), words)
