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
        parser.add_argument("--minimise", choices=["cost", "gpu-hours", "energy", "carbon"])
        parser.add_argument(
            "--periods", choices=["one", "all"], help="one after the other, or all in one program"
        )

        parser.add_argument(
            "--verify",
            action="store_true",
            help="replay the plan, and correct sizes and plan again until both agree",
        )

    def run_options(self, options: dict[str, Any]) -> dict[str, Any]:
        if options["gap"] is not None and not 0 <= options["gap"] < 1:
            raise PlannerError(f"--gap {options['gap']:g}: give a fraction from 0 to below 1.")
        if options["time_limit"] is not None and options["time_limit"] <= 0:
            raise PlannerError(f"--time-limit {options['time_limit']:g}: give positive seconds.")
        given = {
            "solver": options["solver"],
            "gap": options["gap"],
            "time_limit_s": options["time_limit"],
            "minimise": options["minimise"],
            "periods": options["periods"],
            "verify": options["verify"] or None,
        }
        return {name: value for name, value in given.items() if value is not None}

    def words(self, answer: dict[str, Any]) -> str:
        unit = answer["unit"]
        fleet, whole = (amount(answer[name], unit) for name in ("fleet_cost", "objective"))
        rows = [
            f"{answer['status']}: fleet {fleet}, with starts {whole}, gap {answer['gap']:.2%} "
            f"({answer['solver']}, {answer['solve_seconds']:.2f} s)",
            *answer["conflicts"],
            *(
                f"unserved: {row['tier']} of {row['model']}, {row['input_tps']:,.0f} input "
                f"tokens/s at most, in {row['periods']} periods"
                for row in answer["unserved"]
            ),
            "period, model, region, GPU: current -> target",
        ]
        rows += [
            f"{d['period']} {d['model']} {d['region']} {d['tp']} x {d['gpu']}"
            f"{', spot' if d['market'] == 'spot' else ''}: "
            f"{d['current']} -> {d['target']}"
            for d in answer["decisions"]
        ]
        rows += [line for row in answer["profile_error"] if (line := error_words(row))]
        rows += [
            f"split: {row['arrangement']} carries {row['share']:.0%} of {row['model']} in "
            f"{row['region']}"
            for row in answer["split"]
        ]
        rows += [f"binds: {b['sentence']}" for b in answer["binding"]]
        if "verification" in answer:
            rows.append(answer["verification"]["sentence"])
        rows += [
            f"best P/D ratio of {row['instances']} instances of {row['model']}: "
            f"{row['prefill']}P/{row['decode']}D ({row['by']})"
            for row in answer["pd_ratios"]
            if "prefill" in row
        ]
        worth = answer["worth"] or {"rows": []}
        rows += [
            f"worth: {row['what']} saves {amount(row['saves'], worth['unit'])} an hour"
            for row in worth["rows"]
            if row["saves"] is not None
        ]
        return "\n".join(rows)


def amount(value: float, unit: str) -> str:
    """A figure of the objective: dollars before, other units behind."""
    return f"${value:,.2f}" if unit == "$" else f"{value:,.2f} {unit}".rstrip()


def error_words(row: dict[str, Any]) -> str:
    """A profile's error and what it does to the plan, in one line."""
    what = f"{row['model']} on {row['arrangement']}"
    if row["error"] is None:
        return f"error of {what}: not known, the profile was not checked"
    spread = [row["replicas_if_faster"], row["replicas_if_slower"]]
    low, high = ("none" if count is None else f"{count:,}" for count in spread)
    return (
        f"error of {what}: {row['error']:.1%} ({row['basis']}); {row['replicas']:,} replicas at "
        f"most, {low} if faster and {high} if slower by as much"
    )
