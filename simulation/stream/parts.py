"""A replay cut where its parts know nothing of each other, and put together again to the byte.

Requests of one model never meet another's instances; what models can share is what one lends the
other, faults (drawn over all pools at once) and a policy that looks at them together. A fleet with
none of these is as many fleets, which may be simulated side by side, on cores or machines.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from functools import reduce
from typing import Any, TypeVar

import numpy as np

from simulation.errors import SimulationError
from simulation.fleet import Fleet
from simulation.stream.result import StreamResult
from simulation.stream.tally import Tally

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Part:
    """The pools of some models, ``whence`` in the whole fleet."""

    fleet: Fleet
    whence: tuple[int, ...]


def parts_of(fleet: Fleet, most: int) -> list[Part]:
    """Up to ``most`` parts of whole models, of about as many instances each, for policies that
    decide by pools of one model; one part where models meet."""
    sizes = dict.fromkeys(fleet.models, 0)
    for pool in fleet.pools:
        sizes[pool.model] += max(pool.initial, 1)
    count = min(most, len(sizes)) if _apart(fleet) else 1
    chosen: list[list[str]] = [[] for _ in range(count)]
    load = [0] * count
    for model in sorted(sizes, key=lambda name: -sizes[name]):
        least = load.index(min(load))
        chosen[least].append(model)
        load[least] += sizes[model]
    return [_part(fleet, set(models)) for models in chosen]


def _apart(fleet: Fleet) -> bool:
    starts = [pool.start_up for pool in fleet.pools if pool.start_up is not None]
    others = any(
        (start.other_model_s, start.same_architecture_s) != (None, None) for start in starts
    )
    return not (fleet.faults or others or any(pool.lends for pool in fleet.pools))


def _part(fleet: Fleet, models: set[str]) -> Part:
    whence = tuple(p for p, pool in enumerate(fleet.pools) if pool.model in models)
    return Part(replace(fleet, pools=tuple(fleet.pools[p] for p in whence)), whence)


def together(fleet: Fleet, parts: Sequence[Part], results: Sequence[StreamResult]) -> StreamResult:
    """The result of the whole fleet. Where a part was left with requests that others would have
    given longer to, it is not the whole's, and is refused."""
    if len(parts) == 1:
        return results[0]
    ends = [result.after.until_s for result in results]
    left = [bool(result.tally.outcomes[:, 2:].any()) for result in results]
    due_s = max(result.last_due_s for result in results)
    if any(more and end < due_s for more, end in zip(left, ends, strict=True)):
        raise SimulationError(
            "Requests were left after the window that the whole fleet would have had longer for: "
            "simulate it in one part."
        )
    order = np.argsort(np.concatenate([part.whence for part in parts]))
    first = results[0]
    reasons = [reason for result in results for reason in result.reject_reasons]
    tally = reduce(Tally.plus, (replace(r.tally, served=first.tally.served[:0]) for r in results))
    tally = replace(tally, served=np.concatenate([r.tally.served for r in results])[order])
    return replace(
        first,
        fleet=fleet,
        series=_joined([r.series for r in results], order, {"interval_s": first.series.interval_s}),
        totals=_joined([r.totals for r in results], order, {}),
        after=_joined([r.after for r in results], order, {"until_s": max(ends)}),
        reject_reasons={
            reason: sum(r.reject_reasons.get(reason, 0) for r in results)
            for reason in dict.fromkeys(sorted(reasons))
        },
        wall_seconds=max(r.wall_seconds for r in results),
        tally=tally,
        last_due_s=due_s,
    )


def _joined(tables: Sequence[T], order: Any, same: dict[str, float]) -> T:
    """Columns by pool, in the order of the whole fleet's."""
    names = [field.name for field in fields(tables[0]) if field.name not in same]  # type: ignore[arg-type]
    columns = {name: np.concatenate([getattr(t, name) for t in tables])[order] for name in names}
    return replace(tables[0], **columns, **same)  # type: ignore[type-var]
