"""Enumerate the GPU arrangements that can serve a model, and reasons against the others."""

from collections.abc import Iterator

from simulation.performance.parameters import feed_forward_layers
from simulation.performance.specs import Arrangement, GpuSpec, ModelShape

MOST_GPUS = 16  # most GPUs of an instance, unless a node has more
WIDEST = 32  # most GPUs of an instance in any case
TENSOR_PARALLEL = (1, 2, 4, 8, 16)
STAGES = (1, 2, 4)
POWERS = (1, 2, 4, 8, 16, 32)

HEADS = "attention heads not divisible by tp"
EXPERTS = "experts not divisible by moe_ep"
LAYERS = "fewer layers than stages"
FAR = "tensor parallel over more GPUs than share a link"


def arrangements(
    shape: ModelShape, gpu: GpuSpec, weights: str, kv_cache: str = "bf16"
) -> Iterator[Arrangement | str]:
    """Yield the arrangements of a model on GPUs, and for each that is impossible its reason.

    Sizes are powers of two. Attention data parallelism and expert parallelism apply to mixtures of
    experts. Copies of a dense model are separate instances. Pipeline stages serve models too large
    for one link. In practice they are not combined with data parallelism, nor with more than two
    stages of a mixture.
    """
    node = max(gpu.gpus_per_node, 1)
    max_gpus = min(max(MOST_GPUS, node), WIDEST)
    expert_layers, _ = feed_forward_layers(shape)
    is_mixture = expert_layers > 0
    stages = STAGES[:2] if is_mixture else STAGES
    for pp in stages:
        data_parallel = POWERS if is_mixture and pp == 1 else (1,)
        for dp in data_parallel:
            for tp in TENSOR_PARALLEL:
                if tp * dp * pp > max_gpus:
                    continue
                if shape.heads % tp:
                    yield HEADS
                elif tp > node:
                    yield FAR
                elif pp > shape.layers:
                    yield LAYERS
                else:
                    yield from _experts(shape, tp, pp, dp, weights, kv_cache)


def _experts(
    shape: ModelShape, tp: int, pp: int, dp: int, weights: str, kv_cache: str
) -> Iterator[Arrangement | str]:
    """Yield the arrangements of experts on ``tp * dp`` GPUs, or the reason EXPERTS against one.

    Experts are divided among ``moe_ep`` groups of GPUs, and each expert among the ``moe_tp`` GPUs
    of its group. A dense model has one arrangement.
    """
    gpus = tp * dp
    expert_layers, _ = feed_forward_layers(shape)
    if not expert_layers:
        yield Arrangement(tp, pp, dp, moe_tp=1, moe_ep=1, weights=weights, kv_cache=kv_cache)
        return
    for moe_ep in POWERS:
        if moe_ep > gpus:
            continue
        if shape.experts % moe_ep:
            yield EXPERTS
        else:
            yield Arrangement(tp, pp, dp, gpus // moe_ep, moe_ep, weights, kv_cache)
