"""The wait of requests for their first token in a served deployment."""

from dataclasses import dataclass

import numpy as np

from simulation.arrays import FloatArray


@dataclass(frozen=True, slots=True)
class Waiting:
    """Parameters of the wait for a first token under load, from ``calibration.Calibration``."""

    start_s: float  # from arrival to the first iteration
    order: float  # share of the other users with prompts that come first

    def ttft_s(
        self,
        prompt_s: FloatArray,
        tbt_s: FloatArray,
        osl: FloatArray,
        users: FloatArray,
        in_service: FloatArray,
    ) -> FloatArray:
        """Return TTFT in seconds of ``users``, who each send a request when the last one ended.

        It is the sum of ``start_s``, the running iteration, the request's own prompt, and the
        prompts of the share ``order`` of the other users in service. ``in_service`` of the
        ``users`` have a place in the batch. The others wait for a place by Little's law. All arrays
        have the shape ``[n]``.
        """
        ttft = self.before_s(tbt_s, in_service) + prompt_s * self.prompts(in_service)
        wait: FloatArray = (ttft + (osl - 1.0) * tbt_s) * (users / in_service - 1.0)
        return ttft + wait

    def before_s(self, tbt_s: FloatArray, users: FloatArray) -> FloatArray:
        """Return the seconds before the first prompt at ``users`` requests in flight.

        They are 0 for a lone user and the full start and iteration from two users on. Between one
        and two users they grow linearly, with the chance that there is another user.
        """
        before: FloatArray = (self.start_s + tbt_s) * np.clip(users - 1.0, 0.0, 1.0)
        return before

    def prompts(self, users: FloatArray) -> FloatArray:
        """Return the number of prompts computed before a first token, including its own."""
        count: FloatArray = 1.0 + self.order * (np.maximum(users, 1.0) - 1.0)
        return count
