"""Define the records that the replay of a shared GPU keeps: requests, models and the GPU."""

from typing import NamedTuple

import numpy as np

from simulation.arrays import Array, FloatArray, IntArray

REQUEST = np.dtype(
    [
        ("arrival_s", "f8"),
        ("prompt", "i8"),  # tokens to compute
        ("isl", "i8"),  # input tokens, with those that a prefix cache has
        ("osl", "i8"),  # output tokens
        ("model", "i8"),
        ("ttft", "f8"),  # limits in seconds; inf: none
        ("tbt", "f8"),
        ("e2e", "f8"),
        ("group", "i8"),  # a tier of a model: index into ``State.allowed``
        ("first_s", "f8"),  # time of the first token; NaN: none
        ("end_s", "f8"),  # time of the last token
        ("tokens_left", "i8"),  # tokens to generate
        ("next_waiting", "i8"),  # next waiting request of the same model
        ("late", "i8"),  # whether a limit was missed
    ]
)
MODEL = np.dtype(
    [
        ("weight_bytes", "f8"),  # bytes
        ("kv_token_bytes", "f8"),  # bytes per token
        ("max_batch", "i8"),
        ("budget", "i8"),  # tokens of an iteration
        ("head", "i8"),  # first waiting request
        ("tail", "i8"),
        ("waiting", "i8"),
        ("running", "i8"),  # decoding sequences
        ("context", "i8"),  # KV tokens of these
        ("prefilling", "i8"),  # request whose prompt is being computed, or -1
        ("prompt_left", "i8"),  # tokens of that prompt to compute
        ("reserved_bytes", "f8"),  # bytes of KV cache
        ("resident", "i8"),  # whether the weights are on the GPU
        ("hosted", "i8"),  # whether they are in the host's memory
        ("blocked", "i8"),  # whether the next prompt finds no memory until a request ends
        ("last_used_s", "f8"),  # end of its last iteration
        ("loads", "i8"),  # times that its weights came onto the GPU
        ("load_s", "f8"),  # seconds that the GPU waited for these
        ("busy_s", "f8"),  # seconds of its iterations
    ]
)
GPU = np.dtype(
    [
        ("memory_bytes", "f8"),  # bytes for weights and KV cache
        ("host_bytes", "f8"),  # bytes of host memory for weights
        ("host_bytes_s", "f8"),  # bandwidth from the host's memory, and from its disk
        ("disk_bytes_s", "f8"),
        ("switch_s", "f8"),  # of a change of models, before the load
        ("pinned", "i8"),  # whether all weights stay on the GPU
        ("whole_requests", "i8"),  # whether a model keeps the GPU until its batch is done
        ("overlap", "i8"),  # whether a model may load while another one runs
        ("loading", "i8"),  # model that loads while another one runs, or -1
        ("loaded_at", "f8"),  # time at which it is there
        ("used_bytes", "f8"),  # bytes of weights and KV cache on the GPU
        ("hosted_bytes", "f8"),  # of weights in the host's memory
        ("current", "i8"),  # model that ran last, or -1
        ("turn_end_s", "f8"),  # time at which the turn of the current model ends
        ("turn_begins", "i8"),  # whether no iteration of the turn has run yet
        ("failed", "i8"),  # whether a group has missed its limits too often
        ("next", "i8"),  # request that arrives next
    ]
)


class State(NamedTuple):
    """The state of a replay on a shared GPU: inputs, results, and requests that wait or run.

    Requests are in order of arrival. A group is a tier of a model.
    """

    requests: Array  # [request] of REQUEST
    models: Array  # [model] of MODEL
    gpu: Array  # [1] of GPU: one GPU, or those of a replica together
    curves: FloatArray  # [model, longest curve] of ``Profile.curve``, padded
    batch: IntArray  # [model, place] requests of the batch
    missed: IntArray  # [group] requests beyond a limit
    allowed: IntArray  # [group] requests that may be beyond a limit before the replay ends
