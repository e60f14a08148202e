"""How requests wait for their first token in a served deployment."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from simulation.arrays import FloatArray


@dataclass(frozen=True, slots=True)
class Waiting:
    """How requests wait in a served deployment, from ``calibration.Calibration``: seconds from
    arrival to the first iteration, and the share of the others whose prompts come first."""

    start_s: float
    order: float

    def ttft_s(
        self,
        prompt_s: FloatArray,
        tbt_s: FloatArray,
        osl: FloatArray,
        users: FloatArray,
        in_service: FloatArray,
    ) -> FloatArray:
        """TTFT as in ``closed_loop``: the start, the iteration under way, one's own prompt and
        those of a share of the others; ``in_service`` of the ``users`` have a place in the batch,
        the rest wait for one by Little's law."""
        ttft = self.before_s(tbt_s, in_service) + prompt_s * self.prompts(in_service)
        wait: FloatArray = (ttft + (osl - 1.0) * tbt_s) * (users / in_service - 1.0)
        return ttft + wait

    def before_s(self, tbt_s: FloatArray, users: FloatArray) -> FloatArray:
        """Seconds before the first prompt: none where one is alone, which TTFT under load jumps
        from; between one and two in flight, as often as there is another."""
        before: FloatArray = (self.start_s + tbt_s) * np.clip(users - 1.0, 0.0, 1.0)
        return before

    def prompts(self, users: FloatArray) -> FloatArray:
        """How many prompts are computed up to one's first token, its own among them."""
        count: FloatArray = 1.0 + self.order * (np.maximum(users, 1.0) - 1.0)
        return count
