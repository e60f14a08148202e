"""``bin/manage plan``: plan replicas over time by forecast and integer program."""

from __future__ import annotations

from typing import Any

from planner.domain.kinds.pareto import amount
from planner.management.base import RunCommand
from planner.models import Run
from planner.outputs.table_text import table_lines

DECISIONS = {
    "period": "period", "model": "model", "region": "region", "replica": "arrangement",
    "market": "market", "current": "current:d", "target": "target:d",
}  # fmt: skip
UNSERVED = {
    "unserved": "tier", "model": "model", "input tokens/s at most": "input_tps:,.0f",
    "periods": "periods:d",
}  # fmt: skip
PROFILE_ERRORS = {
    "profile of": "model", "replica": "arrangement", "error": "error:.1%", "found on": "basis",
    "replicas at most": "replicas:,", "if faster": "replicas_if_faster:,",
    "if slower": "replicas_if_slower:,",
}  # fmt: skip
SPLIT = {
    "split": "model", "region": "region", "replica": "arrangement", "carries": "share:.0%",
}  # fmt: skip
RATIOS = {
    "best P/D ratio": "model", "of instances": "instances:d", "prefill": "prefill:d",
    "decode": "decode:d", "by": "by",
}  # fmt: skip

RESTS_ON = {"rests on": "what", "value": "value", "": "provenance"}


def gap_words(gap: float | None) -> str:
    """Return the gap as text; a greedy plan that leaves demand unserved has no proven gap."""
    return "no proof of a gap" if gap is None else f"gap {gap:.2%}"


class Command(RunCommand):
    help = "Plan replicas for a scenario. Exits 3 with the conflict if no plan is feasible."
    kind = Run.Kind.PLAN

    def words(self, answer: dict[str, Any]) -> str:
        unit = answer["unit"]
        fleet, with_starts = (amount(answer[name], unit) for name in ("fleet_cost", "objective"))
        rows = [
            f"{answer['status']}: fleet {fleet}, with starts {with_starts}, "
            f"{gap_words(answer['gap'])} ({answer['solver']}, {answer['solve_seconds']:.2f} s)",
            answer["recommended"]["sentence"],
            *answer["conflicts"],
            *table_lines(answer["unserved"], UNSERVED),
            *table_lines(answer["decisions"], DECISIONS),
            *table_lines(answer["profile_error"], PROFILE_ERRORS),
            *table_lines(answer["split"], SPLIT),
        ]
        rows += [f"binds: {b['sentence']}" for b in answer["binding"]]
        if "spare" in answer:
            rows.append(answer["spare"]["sentence"])
        if "verification" in answer:
            rows.append(answer["verification"]["sentence"])
        rows += table_lines([row for row in answer["pd_ratios"] if "prefill" in row], RATIOS)
        worth = answer.get("worth") or {"unit": "", "rows": []}
        moved = [row for row in worth["rows"] if row["saves"] is not None]
        rows += table_lines(
            moved, {"moved": "what", f"saves an hour ({worth['unit']})": "saves:,.2f"}
        )
        return "\n".join(rows + table_lines(answer["assumptions"], RESTS_ON))
