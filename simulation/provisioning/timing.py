"""Time operators by measured kernels, or by efficiency factors."""

from dataclasses import dataclass, field

import numpy as np

from simulation.arrays import FloatArray
from simulation.performance.efficiency import Efficiencies
from simulation.performance.kernel_tables import Kernels
from simulation.performance.roofline import estimated_s, measured_s
from simulation.performance.specs import GpuSpec
from simulation.performance.work import Iteration, Operator


@dataclass(frozen=True, slots=True, eq=False)
class OperatorTiming:
    """Gives the seconds of operator calls, as the argument ``timing`` of ``phase_problem``.

    They are read from measured kernels of the GPU. Without such a kernel, they are estimated by
    efficiency factors on the published peaks.
    """

    gpu: GpuSpec
    efficiencies: Efficiencies = field(repr=False)
    kernels: Kernels | None = field(default=None, repr=False)
    times: float = 1.0  # factor on all seconds: measured time of a model over that of its operators

    def __call__(self, operator: Operator, iteration: Iteration) -> FloatArray:
        if self.kernels is None:
            return self.times * estimated_s(operator, iteration, self.gpu, self.efficiencies)
        return self.times * measured_s(
            operator, iteration, self.kernels, self.gpu, self.efficiencies
        )

    def reached_shares(self, operator: Operator) -> tuple[float, float]:
        """Return the shares of published FLOP/s and bytes/s that kernels of this kind reach.

        Factors on the seconds divide both shares, since a slower call does the same work.
        """
        entry = self.efficiencies.of(operator, self.gpu)
        slowdown = self.times * self.efficiencies.slower(operator, self.gpu)
        return min(entry.compute / slowdown, 1.0), min(entry.bandwidth / slowdown, 1.0)

    def measurement_weight(self, operator: Operator, iteration: Iteration) -> FloatArray:
        """Return 1 for calls in the measured range, 0.5 for extrapolated and 0 for modelled calls.

        There is one value for each of the iterations.
        """
        reading = None if self.kernels is None else self.kernels.read(operator, iteration)
        if reading is None:
            return np.zeros(iteration.decodes.shape)
        _, is_in_range = reading
        return np.where(is_in_range, 1.0, 0.5)
