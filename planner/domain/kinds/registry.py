"""List every kind of run that works on a scenario, with its options and its function.

The file of a kind in ``commands`` has its name, with ``_`` for ``-``. So do its page, its template
and its command.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from planner.domain.kinds import (
    backtest,
    compare,
    forecast,
    outlook,
    pareto,
    pd_ratio,
    place,
    plan,
    provision,
    simulate,
    size,
)
from planner.domain.options import RunOptions
from planner.domain.outcome import Outcome, Traces
from planner.domain.progress import Progress
from planner.domain.run_parts import Parts
from planner.inputs.scenario.schema import Scenario
from planner.inputs.scenario.user_facts import UserFacts

T = TypeVar("T", bound=RunOptions)
T_contra = TypeVar("T_contra", bound=RunOptions, contravariant=True)


class Body(Protocol[T_contra]):
    """The function of a run."""

    def __call__(
        self,
        scenario: Scenario,
        traces: Traces,
        options: T_contra,
        *,
        known: UserFacts,
        progress: Progress,
    ) -> Outcome: ...


class SpreadBody(Protocol[T_contra]):
    """The function of a run that several workers compute in parts."""

    def __call__(
        self,
        scenario: Scenario,
        traces: Traces,
        options: T_contra,
        *,
        known: UserFacts,
        progress: Progress,
        parts: Parts,
    ) -> Outcome: ...


@dataclass(frozen=True, slots=True)
class Kind(Generic[T]):
    """A kind of run: its options and its function."""

    options: type[T]
    run: Body[T]
    spread: SpreadBody[T] | None = None  # the same run, if several workers can compute its parts


KINDS: dict[str, Kind[Any]] = {
    "forecast": Kind(forecast.Options, forecast.run),
    "plan": Kind(plan.Options, plan.run),
    "simulate": Kind(simulate.Options, simulate.run),
    "compare": Kind(compare.Options, compare.run, compare.run),
    "provision": Kind(provision.Options, provision.run),
    "size": Kind(size.Options, size.run),
    "pd-ratio": Kind(pd_ratio.Options, pd_ratio.run),
    "backtest": Kind(backtest.Options, backtest.run, backtest.run),
    "pareto": Kind(pareto.Options, pareto.run),
    "outlook": Kind(outlook.Options, outlook.run, outlook.run),
    "place": Kind(place.Options, place.run),
}
