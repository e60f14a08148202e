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
    count = min(max_parts, len(instances)) if _models_are_independent(fleet) else 1
    models_of: list[set[str]] = [set() for _ in range(count)]
    size = [0] * count
    # Largest model first, each to the smallest part: the usual greedy balance.
    for model in sorted(instances, key=lambda name: -instances[name]):
        smallest = size.index(min(size))
        models_of[smallest].add(model)
        size[smallest] += instances[model]
    return [_part(fleet, models) for models in models_of]


def _models_are_independent(fleet: Fleet) -> bool:
    """Return whether the models can be simulated in separate parts.

    They cannot with faults, with model swaps, or with pools that lend instances.
    """
    starts = [pool.start_up for pool in fleet.pools if pool.start_up is not None]
    swaps_models = any(
        (start.other_model_s, start.same_architecture_s) != (None, None) for start in starts
    )
    return not (fleet.faults or swaps_models or any(pool.lends for pool in fleet.pools))


def _part(fleet: Fleet, models: set[str]) -> Part:
    """Return the part of a fleet with the pools of ``models``."""
    pool_indices = tuple(p for p, pool in enumerate(fleet.pools) if pool.model in models)
    return Part(replace(fleet, pools=tuple(fleet.pools[p] for p in pool_indices)), pool_indices)


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
    order = np.argsort(np.concatenate([part.pool_indices for part in parts]))
    reasons: Counter[str] = Counter()
    for result in results:
        reasons.update(result.reject_reasons)
    until_s = max(result.after.until_s for result in results)
    return replace(
        results[0],
        fleet=fleet,
        series=merge_columns([r.series for r in results], order),
        totals=merge_columns([r.totals for r in results], order),
        after=merge_columns([r.after for r in results], order, until_s=until_s),
        reject_reasons=dict(sorted(reasons.items())),
        wall_seconds=max(r.wall_seconds for r in results),
        tally=_merged_tally([r.tally for r in results], order),
        last_due_s=due_s,
    )


def _merged_tally(tallies: Sequence[Tally], order: Array) -> Tally:
    """Return the sum of ``tallies``, with the sums of pools in the order of the whole fleet."""
    no_pool = tallies[0].served[:0]
    total = reduce(Tally.plus, (tally._replace(served=no_pool) for tally in tallies))
    return total._replace(served=np.concatenate([tally.served for tally in tallies])[order])


def merge_columns(tables: Sequence[T], order: Array, **replaced: float) -> T:
    """Merge dataclasses of arrays by pool into one, in the pool order of the whole fleet.

    ``order`` sorts the concatenated pools. Fields that are not arrays are those of the first table,
    except those given in ``replaced``.
    """
    changed: dict[str, Any] = {}
    for field in fields(tables[0]):  # type: ignore[arg-type]
        values = [getattr(table, field.name) for table in tables]
        if isinstance(values[0], np.ndarray):
            changed[field.name] = np.concatenate(values)[order]
    return replace(tables[0], **changed | replaced)  # type: ignore[type-var]
