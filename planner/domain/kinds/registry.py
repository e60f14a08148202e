"""List every kind of run that works on a scenario, with its options and its function.

The file of a kind in ``commands`` has its name, with ``_`` for ``-``. So do its page, its template
and its command.
"""

from collections.abc import Callable
from dataclasses import dataclass

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
    share,
    simulate,
    size,
)
from planner.domain.options import RunOptions
from planner.domain.outcome import Outcome


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of run: its options, and the function that runs it.

    The function takes a scenario, its traces and the options. Its keywords are ``known`` (the
    user's hardware) and ``progress``. If the run can be divided among workers (``spread``), it also
    takes ``parts``, which runs them.
    """

    options: type[RunOptions]
    run: Callable[..., Outcome]
    spread: bool = False


KINDS: dict[str, Kind] = {
    "forecast": Kind(forecast.Options, forecast.run),
    "plan": Kind(plan.Options, plan.run),
    "simulate": Kind(simulate.Options, simulate.run),
    "compare": Kind(compare.Options, compare.run, spread=True),
    "provision": Kind(provision.Options, provision.run),
    "size": Kind(size.Options, size.run),
    "pd-ratio": Kind(pd_ratio.Options, pd_ratio.run),
    "backtest": Kind(backtest.Options, backtest.run, spread=True),
    "pareto": Kind(pareto.Options, pareto.run),
    "outlook": Kind(outlook.Options, outlook.run, spread=True),
    "place": Kind(place.Options, place.run),
    "share": Kind(share.Options, share.run),
}
