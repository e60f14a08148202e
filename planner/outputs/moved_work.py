"""Read from a result when deferrable work is done, and write it for the controller of a queue."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from planner.policies.registry import traits_of


@dataclass(frozen=True, slots=True)
class WorkRow:
    """The deferrable work of a model in a region that a period does; times are in UTC."""

    region: str
    model: str
    begins: datetime
    ends: datetime
    input_tokens: int


def moved_work(result: Mapping[str, Any], policy: str) -> tuple[WorkRow, ...]:
    """Return the moved work that the policy of a result releases by period.

    It is empty if the plan moves no work, or if the policy does not follow that plan.
    """
    shift = (result.get("plan") or result).get("shift")
    followed = traits_of(policy).plan
    if not shift or followed is None or followed.method is not None:
        return ()
    hours = shift["hours"]
    if not hours:
        return ()
    starts = sorted({datetime.fromisoformat(row["period"]) for row in hours})
    # The hours of a stored result have no end; all periods are equally long.
    ends = datetime.fromisoformat(result["window"]["end"])
    period = (ends - starts[0]) / len(starts)
    return tuple(
        WorkRow(row["region"], model, begins, begins + period, round(tokens))
        for row in hours
        for begins in [datetime.fromisoformat(row["period"])]
        for model, tokens in row.get("by_model", {}).items()
    )


def work_csv(rows: Sequence[WorkRow]) -> str:
    """Return the rows of a region as CSV."""
    lines = [f"{_utc(row.begins)},{_utc(row.ends)},{row.model},{row.input_tokens}" for row in rows]
    return "\n".join(["begins,ends,model,input_tokens", *lines, ""])


def _utc(moment: datetime) -> str:
    return f"{moment - (moment.utcoffset() or timedelta(0)):%Y-%m-%dT%H:%M:%SZ}"
