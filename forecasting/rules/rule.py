"""Protocol of the rules: fit a panel, then forecast from any origins."""

from typing import Protocol

from forecasting.arrays import FloatArray, IntArray
from forecasting.panel import Panel


class FittedRule(Protocol):
    """Parameters of every series of a panel."""

    def paths(self, panel: Panel, origins: IntArray, steps: int) -> FloatArray:
        """Return the expected amounts of ``steps`` bins after each origin, ``[series, o, steps]``.

        ``origins`` are rising bin indices of ``panel``. It begins with the same bin as the panel of
        the fit. A path uses only the bins before its origin. NaN means no forecast.
        """
        ...


class Rule(Protocol):
    """A method that fits all series of a panel at once."""

    def fit(self, panel: Panel) -> FittedRule: ...
