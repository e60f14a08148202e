"""Metrics of a pool that autoscalers read (vLLM's gauges, as Prometheus scrapes them)."""

from typing import Literal

import numpy as np

from simulation.arrays import FloatArray
from simulation.policy import Observation

# Means over ready instances: KV memory in use; share of time an iteration runs; requests waiting;
# requests waiting or running; KV tokens of running requests, and as many for each waiting one.
Metric = Literal["memory", "gpu", "queue", "concurrency", "tokens"]
WORDS: dict[Metric, str] = {
    "memory": "KV memory in use",
    "gpu": "time its GPUs are busy",
    "queue": "requests waiting per replica",
    "concurrency": "requests waiting or running per replica",
    "tokens": "tokens in flight per replica",
}
SHARES: frozenset[Metric] = frozenset({"memory", "gpu"})  # metrics that are a share of an instance
NEEDS_SIGNALS: frozenset[Metric] = frozenset({"gpu", "concurrency", "tokens"})


def per_instance(metric: Metric, observation: Observation, kv_tokens: FloatArray) -> FloatArray:
    """Return the metric's mean over ready instances, ``[pools]``.

    NaN if no instance is ready or nothing was measured. ``kv_tokens [pools]`` is the KV memory of
    an instance. Running requests are a mean since the last decision. Waiting requests are counted
    at the decision. Their KV tokens are unknown, so each counts as many as the mean running one.
    """
    values = _values(metric, observation, kv_tokens)
    return np.asarray(np.where(observation.ready > 0, values, np.nan))


def _values(metric: Metric, observation: Observation, kv_tokens: FloatArray) -> FloatArray:
    """Return the metric's mean over ready instances, ``[pools]``; any value without ready ones."""
    waiting: FloatArray = observation.waiting / np.maximum(observation.ready, 1)
    if metric == "memory":
        return observation.utilisation
    if metric == "queue":
        return waiting
    if observation.signals is None:
        return np.full(len(waiting), np.nan)
    if metric == "gpu":
        return observation.signals.busy
    running = np.nan_to_num(observation.signals.batch)
    if metric == "concurrency":
        return np.asarray(running + waiting)
    # The metric "tokens": waiting requests hold as many as running ones, in proportion.
    waiting_ratio = np.divide(waiting, running, out=np.zeros(len(running)), where=running > 0)
    return np.asarray(observation.utilisation * kv_tokens * (1 + waiting_ratio))
