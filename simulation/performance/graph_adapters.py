"""The operators that low-rank adapters (LoRA) add to the linear layers of a graph."""

from collections.abc import Sequence

from simulation.performance.specs import ModelShape
from simulation.performance.work import Gemm, LowRank, Operator

# Linear layers without an adapter in the default settings of engines.
WITHOUT = ("router", "output_head", "expert_narrowing", "expert_widening", "indexer_projection")
# Number of projections in a fused linear layer.
PROJECTIONS = {"qkv_projection": 3, "qkv_down": 2}
GATED = ("gate_up_projection", "shared_gate_up_projection")


def with_adapters(operators: Sequence[Operator], shape: ModelShape) -> list[Operator]:
    """Return the operators with two products after each linear layer that has adapters (LoRA).

    They are down to the adapters' rank, and up from it. Experts, the encoder and the absorbed
    projections of latent attention have no adapters.
    """
    if shape.adapters is None:
        return list(operators)
    with_products: list[Operator] = []
    for operator in operators:
        with_products.append(operator)
        if not isinstance(operator, Gemm) or operator.absorbed:
            continue
        if operator.axis != "tokens" or operator.matrices > 1 or operator.name in WITHOUT:
            continue
        # A fused linear layer has several projections, each with a separate adapter.
        gated = operator.name in GATED and shape.gated
        projections = 2 if gated else PROJECTIONS.get(operator.name, 1)
        down, up = (f"{operator.name}_adapters_{side}" for side in ("down", "up"))
        with_products += [
            LowRank(
                name=name, after=after, count=operator.count, axis=operator.axis,
                share=operator.share, n=n, k=k, adapters=shape.adapters.active,
            )
            for name, after, n, k in (
                (down, operator.after, projections * shape.adapters.rank, operator.k),
                (up, (down,), operator.n, shape.adapters.rank),
            )
        ]  # fmt: skip
    return with_products
