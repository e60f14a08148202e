"""bin/manage plan: replicas over time, by forecast and integer program."""

from __future__ import annotations

from typing import Any

from planner.management.base import RunCommand
from planner.models import Run


class Command(RunCommand):
    help = "Plan replica counts for a scenario. Exits 3 with the conflict where none is feasible."
    kind = Run.Kind.PLAN

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
