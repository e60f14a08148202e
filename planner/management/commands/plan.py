"""bin/manage plan: replicas over time, by forecast and integer program."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from planner.errors import PlannerError
from planner.management.base import RunCommand
from planner.models import Run


class Command(RunCommand):
    help = "Plan replica counts for a scenario. Exits 3 with the conflict where none is feasible."
    kind = Run.Kind.PLAN

    def add_arguments(self, parser: ArgumentParser) -> None:
        super().add_arguments(parser)
        parser.add_argument("--solver", choices=["highs", "cbc"])
        parser.add_argument("--gap", type=float, help="of fleet cost, a fraction")
        parser.add_argument("--time-limit", type=float, help="seconds per period")

    def run_options(self, options: dict[str, Any]) -> dict[str, Any]:
        if options["gap"] is not None and not 0 <= options["gap"] < 1:
            raise PlannerError(f"--gap {options['gap']:g}: give a fraction from 0 to below 1.")
        if options["time_limit"] is not None and options["time_limit"] <= 0:
            raise PlannerError(f"--time-limit {options['time_limit']:g}: give positive seconds.")
        given = {
            "solver": options["solver"],
            "gap": options["gap"],
            "time_limit_s": options["time_limit"],
        }
        return {name: value for name, value in given.items() if value is not None}

    def words(self, answer: dict[str, Any]) -> str:
        rows = [
            f"{answer['status']}: fleet ${answer['fleet_cost']:,.2f}, with starts "
            f"${answer['objective']:,.2f}, gap {answer['gap']:.2%} ({answer['solver']}, "
            f"{answer['solve_seconds']:.2f} s)",
            "period, model, region, GPU: current -> target",
        ]
        rows += [
            f"{d['period']} {d['model']} {d['region']} {d['tp']} x {d['gpu']}: "
            f"{d['current']} -> {d['target']}"
            for d in answer["decisions"]
        ]
        rows += [line for row in answer["profile_error"] if (line := error_words(row))]
        return "\n".join(rows + [f"binds: {b['sentence']}" for b in answer["binding"]])


def error_words(row: dict[str, Any]) -> str:
    """A profile's error and what it does to the plan, in one line."""
    what = f"{row['model']} on {row['tp']} x {row['gpu']}"
    if row["error"] is None:
        return f"error of {what}: not known, the profile was not checked"
    spread = [row["replicas_if_faster"], row["replicas_if_slower"]]
    low, high = ("none" if count is None else f"{count:,}" for count in spread)
    return (
        f"error of {what}: {row['error']:.1%} ({row['basis']}); {row['replicas']:,} replicas at "
        f"most, {low} if faster and {high} if slower by as much"
    )
