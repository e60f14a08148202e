"""Read from a result when deferrable work is done, and write it for a batch queue."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from planner.domain.planning.purchases import ShiftFigures
from planner.policies.registry import traits_of


@dataclass(frozen=True, slots=True)
class WorkRow:
    """The deferrable work of a model in a region that is done in one period; times are in UTC."""

    region: str
    model: str
    begins: datetime
    ends: datetime
    input_tokens: int


def moved_work(shift: ShiftFigures | None, ends: datetime, policy: str) -> tuple[WorkRow, ...]:
    """Return the deferrable work that a plan moves: a row per region, model and period.

    ``shift`` has the tokens that each hour of the plan does. ``ends`` is the end of the planned
    window. Returns () if the plan moves no work, or if ``policy`` does not follow the plan.
    """
    planned = traits_of(policy).plan
    # A policy with a forecast method of its own has another plan than the run.
    follows_plan = planned is not None and planned.method is None
    if shift is None or not shift.hours or not follows_plan:
        return ()
    # The hours of a stored result have no end; all periods are equally long.
    starts = sorted({hour.period for hour in shift.hours})
    length = (ends - starts[0]) / len(starts)
    return tuple(
        WorkRow(hour.region, model, hour.period, hour.period + length, round(tokens))
        for hour in shift.hours
        for model, tokens in hour.by_model.items()
    )


def work_csv(rows: Sequence[WorkRow]) -> str:
    """Return rows as CSV with a header."""
    lines = [f"{_utc(row.begins)},{_utc(row.ends)},{row.model},{row.input_tokens}" for row in rows]
    return "\n".join(["begins,ends,model,input_tokens", *lines, ""])


def _utc(moment: datetime) -> str:
    """Return a time as text in UTC; a time without zone is taken as UTC."""
    return f"{moment - (moment.utcoffset() or timedelta(0)):%Y-%m-%dT%H:%M:%SZ}"
