"""Example of your own policy: scale on waiting requests.

Put this file on the PYTHONPATH of the workers. Name it in the environment of web and workers,

    HEADROOM_POLICIES="queue=my_policy:QueueLength"

and write ``policies: [{name: queue, parameters: {per_instance: 4}}]`` in the scenario.
"""

import numpy as np


class QueueLength:
    """Add a replica per ``per_instance`` waiting requests.

    Remove one after ``calm_s`` seconds without waiting requests and with memory below a half.
    """

    def __init__(self, per_instance: int = 8, calm_s: float = 300.0, name: str = "queue"):
        if per_instance < 1:
            raise ValueError("per_instance must be at least 1")
        self.name = name
        self.interval_s = 30.0  # seconds between decisions
        self._per_instance = per_instance
        self._calm_s = calm_s

    def reset(self, fleet):
        """Forget everything, and return the counts at the start, one per pool."""
        self._calm_since = np.zeros(len(fleet.pools))
        return np.array([pool.initial for pool in fleet.pools])

    def decide(self, observation):
        """Return the wanted replicas (ready and starting), one count per pool.

        Do not change the observation. The engine keeps counts within the limits of each pool.
        """
        present = observation.ready + observation.starting
        busy = (observation.waiting > 0) | (observation.utilisation > 0.5)
        self._calm_since = np.where(busy, observation.time_s, self._calm_since)
        calm = observation.time_s - self._calm_since >= self._calm_s
        # Starting replicas will take some of the queue.
        short = -(-observation.waiting // self._per_instance) - observation.starting
        wanted = present + np.maximum(short, 0)
        self._calm_since = np.where(calm, observation.time_s, self._calm_since)
        return np.where(calm & (present > 1), present - 1, wanted)
