"""Define the rows that the replay of a shared GPU keeps: requests, models and the GPU."""

from typing import NamedTuple

import numpy as np

from simulation.arrays import Array, FloatArray, IntArray

REQUEST = np.dtype(
    [
        ("arrival", "f8"),
        ("prompt", "i8"),  # tokens to compute
        ("isl", "i8"),
        ("osl", "i8"),
        ("model", "i8"),
        ("ttft", "f8"),  # limits; inf: none
        ("tbt", "f8"),
        ("e2e", "f8"),
        ("group", "i8"),  # index into ``State.allowed``
        ("first", "f8"),  # time of the first token; NaN: none
        ("end", "f8"),  # time of the last token
        ("left", "i8"),  # tokens to generate
        ("after", "i8"),  # next waiting request of the same model
        ("late", "i8"),  # whether a limit was missed
    ]
)
MODEL = np.dtype(
    [
        ("weights", "f8"),  # bytes
        ("kv", "f8"),  # bytes per token
        ("max_batch", "i8"),
        ("budget", "i8"),  # tokens of an iteration
        ("head", "i8"),  # first waiting request
        ("tail", "i8"),
        ("waiting", "i8"),
        ("running", "i8"),  # decoding sequences
        ("context", "i8"),  # KV tokens of these
        ("partial", "i8"),  # request whose prompt is being computed, or -1
        ("partial_left", "i8"),
        ("reserved", "f8"),  # bytes of KV cache
        ("resident", "i8"),  # whether the weights are on the GPU
        ("hosted", "i8"),  # whether they are in the host's memory
        ("blocked", "i8"),  # whether the next prompt finds no memory until a request ends
        ("used_at", "f8"),
        ("loads", "i8"),
        ("load_s", "f8"),
        ("busy_s", "f8"),
    ]
)
GPU = np.dtype(
    [
        ("room", "f8"),  # bytes for weights and KV cache
        ("host", "f8"),  # bytes of host memory for weights
        ("host_bytes_s", "f8"),
        ("disk_bytes_s", "f8"),
        ("switch_s", "f8"),
        ("pinned", "i8"),
        ("whole", "i8"),
        ("overlap", "i8"),
        ("coming", "i8"),  # model that loads while another one runs, or -1
        ("coming_at", "f8"),  # time at which it is there
        ("used", "f8"),  # bytes of weights and KV cache on the GPU
        ("hosted", "f8"),  # bytes of weights in the host's memory
        ("current", "i8"),  # model that ran last, or -1
        ("turn_end", "f8"),
        ("open", "i8"),  # whether the turn has not run yet
        ("failed", "i8"),  # whether a group has missed its limits too often
        ("next", "i8"),  # request that arrives next
    ]
)


class State(NamedTuple):
    """The state of a replay on a shared GPU: inputs, results, and what waits or runs.

    Requests are in order of arrival.
    """

    requests: Array  # [request] of REQUEST
    models: Array  # [model] of MODEL
    gpu: Array  # [1] of GPU: one GPU, or those of a replica together
    curves: FloatArray  # [model, longest curve], padded
    batch: IntArray  # [model, place] requests of the batch
    missed: IntArray  # [group] requests beyond a limit
    allowed: IntArray  # [group] of these before the replay ends
