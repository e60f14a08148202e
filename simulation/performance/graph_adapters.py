"""Low-rank adapters of a model's graph: what they add beside its linear layers."""

from __future__ import annotations

from collections.abc import Sequence

from simulation.performance.specs import Adapters, ModelShape
from simulation.performance.work import Absorbed, Gemm, LowRank, Operator

# Linear layers that engines give no adapter unless told to.
WITHOUT = ("router", "output_head", "expert_narrowing", "expert_widening", "indexer_projection")
# Projections that a linear layer is made of, each with an adapter of its own.
PROJECTIONS = {"qkv_projection": 3, "qkv_down": 2}
GATED = ("gate_up_projection", "shared_gate_up_projection")


def with_adapters(operators: Sequence[Operator], shape: ModelShape) -> list[Operator]:
    """Two products after each linear layer, of a GPU's part of it: down to the rank, and up from
    it. Experts, the encoder and what latent attention absorbs have none."""
    if shape.adapters is None:
        return list(operators)
    with_products: list[Operator] = []
    for operator in operators:
        with_products.append(operator)
        if isinstance(operator, Gemm) and _adapted(operator):
            with_products += _beside(operator, shape.adapters, _projections(operator, shape))
    return with_products


def _adapted(operator: Gemm) -> bool:
    plain = not isinstance(operator, Absorbed) and operator.matrices == 1
    return plain and operator.axis == "tokens" and operator.name not in WITHOUT


def _projections(operator: Gemm, shape: ModelShape) -> int:
    if operator.name in GATED:
        return 2 if shape.gated else 1
    return PROJECTIONS.get(operator.name, 1)


def _beside(operator: Gemm, adapters: Adapters, projections: int) -> list[Operator]:
    down = f"{operator.name}_adapters_down"
    sides = (
        (down, operator.after, projections * adapters.rank, operator.k),
        (f"{operator.name}_adapters_up", (down,), operator.n, adapters.rank),
    )
    return [
        LowRank(
            name=name, after=after, count=operator.count, axis=operator.axis, share=operator.share,
            n=n, k=k, adapters=adapters.active,
        )
        for name, after, n, k in sides
    ]  # fmt: skip
