"""Protocol of the rules: fit a panel, then forecast from any origins."""

from __future__ import annotations

from typing import Protocol

from forecasting.arrays import FloatArray, IntArray
from forecasting.panel import Panel


class FittedRule(Protocol):
    """Parameters of every series of a panel."""

    def paths(self, panel: Panel, origins: IntArray, steps: int) -> FloatArray:
        """Return the expected amounts of ``steps`` bins after each origin, ``[series, o, steps]``.

        ``origins`` are rising numbers of bins of ``panel``, which begins with the bin that the
        fit began with. A path uses the bins before its origin only. NaN: no forecast.
        """
        ...


class Rule(Protocol):
    """A method that fits all series of a panel at once."""

    def fit(self, panel: Panel) -> FittedRule: ...
