"""Format figures and names for sentences."""

import math
from collections.abc import Sequence

from planner.optimizer.problem import PlanningProblem

MOST_NAMES = 8  # in a list


def tokens_words(tps: float) -> str:
    """Return a demand such as "5,401 tokens/s", rounded up so that it is never understated."""
    return f"{math.ceil(tps):,} tokens/s"


def percent(epsilon: float) -> str:
    """Return a share as a percentage: "80%"."""
    return f"{epsilon * 100:g}%"


def replica_words(count: int) -> str:
    """Return "1 replica" or "3 replicas"."""
    return f"{count:,} replica" + ("" if count == 1 else "s")


def cap_words(family: str, value: float) -> str:
    """Return an amount of a cap with its unit, such as "$12.50/h" or "3.2 kg CO2e/h"."""
    if family == "budget":
        return f"${value:,.2f}/h"
    if family == "power":
        return f"{value:,.1f} kW"
    return f"{value:,.2f} kg CO2e/h" if family == "carbon" else f"{value:,.0f} starts and stops"


def join_names(names: Sequence[str]) -> str:
    """Join names as "a", "a and b" or "a, b and c"; "none" without names."""
    if len(names) < 2:
        return names[0] if names else "none"
    return f"{', '.join(names[:-1])} and {names[-1]}"


def first_names(names: Sequence[str]) -> str:
    """Join the first ``MOST_NAMES`` names as ``join_names`` does, and count the others."""
    more = [f"{len(names) - MOST_NAMES} more"] if len(names) > MOST_NAMES else []
    return join_names([*names[:MOST_NAMES], *more])


def redundancy_words(problem: PlanningProblem) -> str:
    """Return the redundancy in words: " with 1 replica lost in each pool", or ""."""
    if not problem.spare:
        return ""
    place = "pool" if problem.by_pool else "region"
    return f" with {replica_words(problem.spare)} lost in each {place}"


def in_region(problem: PlanningProblem, model: int, region: int) -> str:
    """Return "llama-3.1-8b in us-east" for indices of a ``model`` and a ``region``."""
    return f"{problem.models[model]} in {problem.regions[region]}"


def on_gpu(problem: PlanningProblem, model: int, region: int, gpu: int) -> str:
    """Return "MODEL on GPU in REGION" for indices of ``model``, ``gpu`` and ``region``."""
    return f"{problem.models[model]} on {problem.gpus[gpu]} in {problem.regions[region]}"
