"""What methods say from any origin, with parameters learnt on what came before it.

Parameters are learnt anew as the history grows by half, once a day after the fit, and when a
holiday is over; every bin between only moves the state.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from forecasting.arrays import FloatArray, IntArray
from forecasting.cleaning import cleaned, no_demand
from forecasting.harmonics import DAY_S
from forecasting.holidays import OfUsual
from forecasting.panel import Panel, at_origins
from forecasting.rules.registry import RULES
from forecasting.rules.rule import Learned

GROWTH = 0.5  # of the history, after which parameters are learnt anew


@dataclass(frozen=True, slots=True, eq=False)
class _Parameters:
    """Of every method, on the first ``bins``."""

    bins: int
    values: FloatArray  # [series, bins] cleaned
    methods: tuple[Learned, ...]
    holidays: OfUsual | None


class Learning:
    """The methods of ``names`` on a panel that was fitted on, judged from the bin ``first`` on."""

    def __init__(self, names: Sequence[str], panel: Panel, first: int) -> None:
        self.names, self.first, self.fitted = tuple(names), first, panel.bins
        self.after_holidays = panel.holidays.ends(panel.start_s, panel.bin_s)
        self.latest: _Parameters | None = None

    def paths(self, panel: Panel, origins: IntArray, steps: int) -> FloatArray:
        """Of every method from every origin: [methods, series, o, steps]."""
        paths = np.empty((len(self.names), len(panel.values), len(origins), steps))
        start = 0
        while start < len(origins):
            point, following = self._point(panel, int(origins[start]))
            until = int(np.searchsorted(origins, following))
            learned = self._learned(panel, point)
            lost = self._lost(panel, point, int(origins[start]))
            for later in range(start + 1, until):  # what is cleaned then is no news before
                if not np.array_equal(lost, self._lost(panel, point, int(origins[later]))):
                    until = later
                    break
            here, last = origins[start:until], int(origins[until - 1])
            known = np.concatenate([learned.values, panel.values[:, point:last]], axis=1)
            known[lost[0], lost[1]] = np.nan
            times = np.ones(())
            if learned.holidays is not None:
                factor = learned.holidays.factor(panel.start_s, panel.bin_s, last + steps)
                known = known / factor[:, :last]
                times = at_origins(factor, here, steps)
            usual = replace(panel, values=known)
            for m, rule in enumerate(learned.methods):
                paths[m, :, start:until] = rule.paths(usual, here, steps) * times
            start = until
        return paths

    def _point(self, panel: Panel, origin: int) -> tuple[int, int]:
        """The last point up to ``origin`` at which parameters are learnt, and the one after it."""
        day = panel.season(DAY_S)
        point = self.first if origin < self.fitted else self.fitted
        while True:
            step = max(1, int(GROWTH * point))
            if point < self.fitted:
                following = min(point + step, self.fitted)
            else:
                following = point + (min(step, day) if day else step)
            over = self.after_holidays[self.after_holidays > point]
            following = min([following, *over[:1].tolist()])
            if following > origin:
                return point, following
            point = following

    def _learned(self, panel: Panel, bins: int) -> _Parameters:
        if self.latest is None or self.latest.bins != bins:
            values = cleaned(panel.values[:, :bins], panel.bin_s).values
            kind = OfUsual.learn(panel.holidays, values, panel.start_s, panel.bin_s)
            usual = values
            if kind is not None:
                usual = values / kind.factor(panel.start_s, panel.bin_s, bins)
            known = replace(panel, values=usual)
            methods = tuple(RULES[name].learn(known) for name in self.names)
            self.latest = _Parameters(bins, values, methods, kind)
        return self.latest

    def _lost(self, panel: Panel, learnt: int, origin: int) -> IntArray:
        """Rows and bins that are no demand by what had come by ``origin``: [2, n]. Of origins that
        were past when the batch was fitted what had come by ``learnt`` is all that is cleaned."""
        if origin <= self.fitted:
            return np.empty((2, 0), np.int64)
        known = panel.values[:, :origin]
        return np.stack(no_demand(known, panel.bin_s, min(learnt, origin)))
