"""Seconds of operators, and what they rest on: measured kernels, or efficiency factors (A1)."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from simulation.arrays import FloatArray
from simulation.performance.efficiency import Efficiencies, kind_of, precision_of
from simulation.performance.measured_kernels import Kernels
from simulation.performance.operator import measured_s
from simulation.performance.roofline import estimated_s
from simulation.performance.specs import GpuSpec
from simulation.performance.work import Iteration, Operator


@dataclass(frozen=True, slots=True, eq=False)
class OperatorTiming:
    """The ``timing`` of ``phase_problem``: measured where kernels of the GPU were, else published
    peaks times the shares of them that measured kernels reach."""

    gpu: GpuSpec
    efficiencies: Efficiencies = field(repr=False)
    kernels: Kernels | None = field(default=None, repr=False)
    times: float = 1.0  # of those seconds: what a whole model was seen to take of their sum

    def __call__(self, operator: Operator, it: Iteration) -> FloatArray:
        if self.kernels is None:
            return self.times * estimated_s(operator, it, self.gpu, self.efficiencies)
        return self.times * measured_s(operator, it, self.kernels, self.gpu, self.efficiencies)

    def reached(self, operator: Operator) -> tuple[float, float]:
        """Shares of the GPU's published FLOP/s and bytes/s that kernels of this kind reach: fewer
        where all is slower, so that the time leaves no room for others."""
        entry = self.efficiencies.find(kind_of(operator), self.gpu.family, precision_of(operator))
        times = self.times * self.efficiencies.slower(operator)
        return min(entry.compute / times, 1.0), min(entry.bandwidth / times, 1.0)

    def measured(self, operator: Operator, it: Iteration) -> FloatArray:
        """1 where a call lies among measured ones, 0.5 beyond them, 0 where it is modelled."""
        read = None if self.kernels is None else self.kernels.read(operator, it)
        if read is None:
            return np.zeros(it.decodes.shape)
        return np.where(read[1], 1.0, 0.5)
