"""Common parts of the operators of a graph: precision, share of the work, heads per GPU."""

import math
from typing import Any, TypeVar

from simulation.performance.parameters import feed_forward_layers
from simulation.performance.specs import BYTES, Arrangement, ModelShape
from simulation.performance.work import (
    Axis,
    Collective,
    CollectiveKind,
    Elementwise,
    Gemm,
    Operator,
)

T = TypeVar("T", bound=Operator)


def split(amount: int, parts: int) -> int:
    """Return the part of ``amount`` on the busiest of ``parts`` GPUs; at least 1.

    Heads that are fewer than the GPUs are replicated.
    """
    return max(1, math.ceil(amount / parts))


class Parts:
    """Builds single operators for one model on one arrangement."""

    def __init__(self, shape: ModelShape, where: Arrangement) -> None:
        self.shape, self.where = shape, where
        self.share = 1.0 / (where.attention_dp * where.pp)
        self.heads = split(shape.heads, where.tp)
        self.kv_heads = split(shape.kv_heads, where.tp)
        four_bit_experts = bool(shape.experts) and BYTES[where.weights] == 0.5
        self.attention_precision = "bf16" if four_bit_experts else where.weights
        self.layers = shape.layers
        self.moe_layers, self.dense_layers = feed_forward_layers(shape)
        self.softmax_layers = shape.layers - shape.linear_layers

    def placed(self, operator: type[T], name: str, after: str, count: int, **sizes: Any) -> T:
        """Return an operator of a type in ``count`` layers; ``after`` names those before it.

        ``sizes`` are its other fields.
        """
        before = tuple(after.split())
        return operator(name=name, after=before, count=count, share=self.share, **sizes)

    def gemm(
        self,
        name: str,
        after: str,
        n: int,
        k: int,
        count: int,
        precision: str | None = None,
        axis: Axis = "tokens",
    ) -> Gemm:
        """Return a matrix product of ``count`` layers, rows x k times k x n.

        ``precision`` None: that of attention.
        """
        precision = precision or self.attention_precision
        by_block = bool(self.shape.experts) and precision == "fp8"
        return self.placed(
            Gemm, name, after, count, axis=axis, n=n, k=k, precision=precision, by_block=by_block
        )

    def elementwise(
        self, name: str, after: str, read: int, written: int, count: int, **more: float
    ) -> Elementwise:
        """Return an elementwise operator; ``read`` and ``written`` are elements per row."""
        return self.placed(Elementwise, name, after, count, read=read, written=written, **more)

    def norm(self, name: str, after: str, count: int) -> Elementwise:
        """Return a norm with the addition of the residual stream before it."""
        hidden = self.shape.hidden
        return self.elementwise(name, after, 2 * hidden, 2 * hidden, count, memory=hidden * 2.0)

    def all_reduce(self, name: str, after: str, count: int) -> Collective:
        """Return an all-reduce over the tensor parallel GPUs; none with a single GPU."""
        tp = self.where.tp
        return self.collective(name, after, "all_reduce", tp, self.shape.hidden, count * (tp > 1))

    def collective(
        self, name: str, after: str, kind: CollectiveKind, gpus: int, width: float, count: int,
        **more: Any,
    ) -> Collective:  # fmt: skip
        """Return communication between ``gpus``, of ``width`` elements per row."""
        return self.placed(
            Collective, name, after, count, kind=kind, gpus=gpus, width=width, **more
        )
