"""Forecast the deviations from fitted cycles, on a scale of comparable errors."""

from collections.abc import Callable
from dataclasses import dataclass

from forecasting.arrays import FloatArray, IntArray
from forecasting.demand import Panel, windows_at
from forecasting.harmonics import Harmonics
from forecasting.rules.scales import Scale


@dataclass(frozen=True, slots=True, eq=False)
class Cyclic:
    """Fitted cycles of every series, around which a method forecasts the deviations."""

    scale: Scale
    harmonics: Harmonics
    cycles: FloatArray  # [series, columns of the harmonics' design] coefficients

    def paths_around(
        self,
        panel: Panel,
        origins: IntArray,
        steps: int,
        memory: int,
        deviations_ahead: Callable[[FloatArray, IntArray, int], FloatArray],
    ) -> FloatArray:
        """Return the forecast of ``steps`` bins from each origin, ``[series, origins, steps]``.

        It is the cycle plus the result of ``deviations_ahead``, which gets the deviations of the
        last ``memory`` bins or more, the index of each origin among them, and ``steps``.
        """
        first, bins = max(0, int(origins[0]) - memory), int(origins[-1])
        start = origins - first  # index of each origin in the arrays, which begin at ``first``
        start_s = panel.start_s + first * panel.bin_s
        cycle = self.cycles @ self.harmonics.design(start_s, panel.bin_s, bins - first + steps).T
        past = self.scale.transform(panel.values[:, first:bins]) - cycle[:, : bins - first]
        deviations = deviations_ahead(past, start, steps)
        return self.scale.inverse(deviations + windows_at(cycle, start, steps))
