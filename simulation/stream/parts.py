"""Split of a replay into independent parts, and exact merge of their results.

Requests of one model never meet instances of another. Models share three things only: lent
instances, faults (drawn over all pools at once) and a policy that sees all models. A fleet without
lending between models and without faults can be simulated in parts, on several cores or machines.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from functools import reduce
from typing import Any, TypeVar

import numpy as np

from simulation.arrays import Array
from simulation.errors import SimulationError
from simulation.fleet import Fleet
from simulation.stream.result import StreamResult
from simulation.stream.tally import Tally

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a fleet with some models, and its pools' indices in the whole fleet."""

    fleet: Fleet
    pool_indices: tuple[int, ...]


def parts_of(fleet: Fleet, max_parts: int) -> list[Part]:
    """Split a fleet by model into at most ``max_parts`` parts with similar numbers of instances.

    The policy must decide for the pools of each model without regard to other models. The result is
    one part if models share instances or faults.
    """
    instances = dict.fromkeys(fleet.models, 0)
    for pool in fleet.pools:
        instances[pool.model] += max(pool.initial, 1)
    starts = [pool.start_up for pool in fleet.pools if pool.start_up is not None]
    swaps_models = any(
        (start.other_model_s, start.same_architecture_s) != (None, None) for start in starts
    )
    shares_instances = swaps_models or any(pool.lends for pool in fleet.pools)
    count = 1 if fleet.faults or shares_instances else min(max_parts, len(instances))
    models_by_part: list[set[str]] = [set() for _ in range(count)]
    instances_by_part = [0] * count
    # Largest model first, each to the smallest part: the usual greedy balance.
    for model in sorted(instances, key=lambda name: -instances[name]):
        smallest = instances_by_part.index(min(instances_by_part))
        models_by_part[smallest].add(model)
        instances_by_part[smallest] += instances[model]
    parts = []
    for models in models_by_part:
        pool_indices = tuple(p for p, pool in enumerate(fleet.pools) if pool.model in models)
        pools = tuple(fleet.pools[p] for p in pool_indices)
        parts.append(Part(replace(fleet, pools=pools), pool_indices))
    return parts


def merge_parts(
    fleet: Fleet, parts: Sequence[Part], results: Sequence[StreamResult]
) -> StreamResult:
    """Merge the results of the parts of ``fleet`` into the result of the whole fleet.

    Raises ``SimulationError`` if a part ended with requests left although the simulation of the
    whole fleet would have gone on longer.
    """
    if len(parts) == 1:
        return results[0]
    due_s = max(result.last_due_s for result in results)
    for result in results:
        # Whether requests are unfinished or not due (columns 2 and 3)
        has_requests_left = result.tally.outcomes[:, 2:].any()
        if has_requests_left and result.after.until_s < due_s:
            raise SimulationError("Requests remained after the window. Simulate it in one part.")
    # Parts list their own pools; restore the order of the whole fleet.
    pool_order = np.argsort(np.concatenate([part.pool_indices for part in parts]))
    reasons: Counter[str] = Counter()
    for result in results:
        reasons.update(result.reject_reasons)
    no_pool = results[0].tally.served[:0]  # pools are not summed over parts, but concatenated
    tally = reduce(Tally.plus, (result.tally._replace(served=no_pool) for result in results))
    served_by_pool = np.concatenate([result.tally.served for result in results])[pool_order]
    until_s = max(result.after.until_s for result in results)
    return replace(
        results[0],
        fleet=fleet,
        series=merge_columns([r.series for r in results], pool_order),
        totals=merge_columns([r.totals for r in results], pool_order),
        after=merge_columns([r.after for r in results], pool_order, until_s=until_s),
        reject_reasons=dict(sorted(reasons.items())),
        wall_seconds=max(r.wall_seconds for r in results),
        tally=tally._replace(served=served_by_pool),
        last_due_s=due_s,
    )


def merge_columns(tables: Sequence[T], pool_order: Array, **replaced: float) -> T:
    """Merge dataclasses of arrays by pool into one, in the pool order of the whole fleet.

    ``pool_order`` sorts the concatenated pools. Fields that are not arrays are those of the first
    table, except those given in ``replaced``.
    """
    changed: dict[str, Any] = {}
    for field in fields(tables[0]):  # type: ignore[arg-type]
        values = [getattr(table, field.name) for table in tables]
        if isinstance(values[0], np.ndarray):
            changed[field.name] = np.concatenate(values)[pool_order]
    return replace(tables[0], **changed | replaced)  # type: ignore[type-var]
