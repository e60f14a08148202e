"""The operators that low-rank adapters (LoRA) add to the linear layers of a graph."""

from collections.abc import Sequence

from simulation.performance.specs import Adapters, ModelShape
from simulation.performance.work import Absorbed, Gemm, LowRank, Operator

# Linear layers without an adapter in the default settings of engines.
WITHOUT = ("router", "output_head", "expert_narrowing", "expert_widening", "indexer_projection")
# Number of projections in a fused linear layer; each has a separate adapter.
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
        if isinstance(operator, Gemm) and _takes_adapters(operator):
            with_products += _adapter_products(
                operator, shape.adapters, _projections(operator, shape)
            )
    return with_products


def _takes_adapters(operator: Gemm) -> bool:
    """Return whether the linear layer has adapters."""
    plain = not isinstance(operator, Absorbed) and operator.matrices == 1
    return plain and operator.axis == "tokens" and operator.name not in WITHOUT


def _projections(operator: Gemm, shape: ModelShape) -> int:
    """Return how many projections a fused linear layer has, each with its own adapter."""
    if operator.name in GATED:
        return 2 if shape.gated else 1
    return PROJECTIONS.get(operator.name, 1)


def _adapter_products(operator: Gemm, adapters: Adapters, projections: int) -> list[Operator]:
    """Return the products of an adapter: down to its rank, and up from it."""
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
