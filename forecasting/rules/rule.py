"""What every batched method is: learn on a panel, then paths from any origins."""

from __future__ import annotations

from typing import Protocol

from forecasting.arrays import FloatArray, IntArray
from forecasting.panel import Panel


class Learned(Protocol):
    """Parameters of every series of a panel, from its first bins."""

    def paths(self, panel: Panel, origins: IntArray, steps: int) -> FloatArray:
        """Expected amounts of the ``steps`` bins after each origin: [series, o, steps].

        ``origins`` are rising numbers of bins of ``panel``, which begins where the one learnt on
        did. Each path uses the bins before its own origin alone. NaN where the rule has nothing
        to say.
        """
        ...


class Rule(Protocol):
    def learn(self, panel: Panel) -> Learned: ...
