"""An example of a policy of one's own: hold what the waiting requests call for.

Run it in a scenario: put this file where the worker can import it (PYTHONPATH), name it in the
environment of web and worker,

    HEADROOM_POLICIES="queue=my_policy:QueueLength"

and write ``policies: [{name: queue, parameters: {per_instance: 4}}]`` in the scenario.
"""

import numpy as np


class QueueLength:
    """One more instance per ``per_instance`` requests that wait; one fewer after ``calm_s`` in
    which none did and less than half of the memory was used."""

    def __init__(self, per_instance: int = 8, calm_s: float = 300.0, name: str = "queue"):
        if per_instance < 1:
            raise ValueError("per_instance must be at least 1")
        self.name = name
        self.interval_s = 30.0  # seconds between looks
        self._per_instance = per_instance
        self._calm_s = calm_s

    def reset(self, fleet):
        """Forget everything; the instances wanted at the start, one count per pool."""
        self._calm_since = np.zeros(len(fleet.pools))
        return np.array([pool.initial for pool in fleet.pools])

    def decide(self, observation):
        """Instances wanted (ready and starting), one count per pool. The observation is not to be
        changed; the engine keeps counts within each pool's limits."""
        present = observation.ready + observation.starting
        busy = (observation.waiting > 0) | (observation.utilisation > 0.5)
        self._calm_since = np.where(busy, observation.time_s, self._calm_since)
        calm = observation.time_s - self._calm_since >= self._calm_s
        # What is on its way will take some of the queue.
        short = -(-observation.waiting // self._per_instance) - observation.starting
        wanted = present + np.maximum(short, 0)
        self._calm_since = np.where(calm, observation.time_s, self._calm_since)
        return np.where(calm & (present > 1), present - 1, wanted)
