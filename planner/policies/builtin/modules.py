"""Scale by modules: today's instances borrow idle GPUs (methods.md B; CoCoServe).

A module is a layer of a model, or a part of one. A unit is as many GPUs as an instance of the
borrowing pool has. A device of an instance is its own GPUs, or a unit that it borrows.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, Literal

import numpy as np
from pydantic import Field

from planner.errors import ScenarioError
from planner.policies.base import Above, Group, Interval, Policy, Traits, TunedParameter, factors
from planner.policies.context import BuiltPolicy, Modules, PolicyContext
from planner.schema_types import Share
from simulation.arrays import IntArray
from simulation.fleet import Fleet, Pool
from simulation.modules.layout import Layout
from simulation.performance.adjusted_profile import adjust_profile
from simulation.performance.memory import MEMORY_SHARE, OVERHEAD_BYTES
from simulation.policies.modules import ModuleScaling as Rule
from simulation.provisioning.replay import MESSAGE_S

MAX_BORROWED = (
    3  # devices that an instance may borrow; with its own: four copies, the source's largest
)


@dataclass(frozen=True, slots=True)
class _Lender:
    """GPUs that the instances of a pool may borrow, in units (the GPUs of one instance)."""

    source: int  # index of a pool on the lent GPU type; with ``serves``, of the lending pool
    count: int  # number of units
    devices: int  # units that one instance may borrow
    serves: bool = False  # True: the GPUs serve the lending pool, and only idle memory is lent


@dataclass(slots=True)
class _SharedType:
    """The pools that share GPUs of one type, and the GPUs that they do not use."""

    pools: list[int]
    idle_gpus: int


@dataclass(frozen=True, slots=True)
class _Device:
    """A device of an instance: its own GPUs, or a unit that it borrows; see ``Layout``."""

    host: int  # index of the pool whose GPUs these are; -1: the instance's own
    owner_instances: int  # of ``host``, that all instances use together; 0: the instance's own
    room_bytes: float  # memory for layers and KV cache, per instance
    speed: float  # relative to the instance's own GPUs
    sharers: float  # instances that share one such device


class ModuleLevel(Policy):
    """Copy layers to idle GPUs, and move modules under pressure (CoCoServe)."""

    kinds: ClassVar = {
        "modules": Traits(
            "Module scaling (CoCoServe)",
            "Copies layers to idle GPUs. Moves modules if memory is short or requests are late.",
            Group.REACTIVE,
            complexity=31,
        )
    }

    name: Literal["modules"]
    instances_factor: Above = 1.0  # factor on current instances
    # Time of a layer with p copies. source: 1 / p of its time. split: that of 1 / p of the batch.
    reading: Literal["source", "split"] = "split"
    copies: bool = True  # whether layers are copied (Algorithm 1)
    moves: bool = True  # whether modules are moved (Algorithm 2)
    devices: Annotated[int, Field(ge=1, le=16)] = MAX_BORROWED  # devices that a replica may borrow
    other_gpus: bool = True  # whether other GPU types may be borrowed
    shared_gpus: bool = True  # whether idle memory of GPUs that serve other pools may be used
    # Free share of a device that allows copies.
    vacancy_threshold: Annotated[float, Field(ge=0, le=1)] = Rule.vacancy_threshold
    violation_threshold: Share = Rule.violation_threshold  # late share that reduces modules
    interval_s: Interval = Rule.interval_s  # seconds between decisions (ours)

    @property
    def tuned_parameter(self) -> TunedParameter:
        return TunedParameter("instances_factor", factors(0.25, 3.0))

    def build(self, context: PolicyContext) -> BuiltPolicy:
        """Return the policy, on a fleet with pools for the idle GPUs that instances borrow.

        The KV capacity of a borrowing pool is that of its layout on own and borrowed GPUs. Raises
        ScenarioError for prefill and decode pools, and for a model whose layers are not known.
        """
        today, modules = context.fleet(context.today), context.modules()
        counts = self._counts(context, today)
        _check_pools(today, counts, modules)
        borrowers = {p: known for p, known in enumerate(modules) if known is not None and counts[p]}
        lent = self._lent(context, today, counts, borrowers)
        fleet = context.fleet(counts)
        # These three are by pool of the new fleet: today's pools, and then those of lent GPUs.
        pools, source_pools = list(fleet.pools), list(range(len(fleet.pools)))
        layouts: list[Layout | None] = [None] * len(pools)
        for p, pool_modules in borrowers.items():
            lenders = lent[p]
            borrowed = _borrowed_devices(today, p, int(counts[p]), borrowers, lenders, len(pools))
            devices = [_own_device(today.pools[p], pool_modules), *borrowed]
            layout = layouts[p] = self._layout(pool_modules, devices, context.lengths[p])
            kv_capacity_tokens = int(layout.max_kv_tokens())
            profile = adjust_profile(pools[p].profile, kv_capacity_tokens=kv_capacity_tokens)
            pools[p] = replace(pools[p], profile=profile)
            for lender in lenders:
                if not lender.serves:
                    source = today.pools[lender.source]
                    pools.append(_lending_pool(source, today.pools[p], lender.count))
                    source_pools.append(lender.source)
        layouts += [None] * (len(pools) - len(layouts))
        policy = Rule(layouts, **self.fields_for(Rule), name=self.key)
        with_lenders = replace(fleet, pools=tuple(pools))
        built = context.limited_to_shared_gpus(policy, with_lenders, source_pools)
        return replace(built, modules=policy)

    def _counts(self, context: PolicyContext, today: Fleet) -> IntArray:
        """Return the instances of each pool, within its limits and the available GPUs.

        They are today's count times ``instances_factor``. If the fleet does not fit, the factor is
        lowered until it does.
        """
        minimums = np.array([pool.minimum for pool in today.pools])
        maximums = np.array([pool.maximum for pool in today.pools])
        for share in np.linspace(1.0, 0.0, 101):
            scaled = context.today * self.instances_factor * share
            counts = np.clip(np.ceil(scaled - 1e-9).astype(np.int64), minimums, maximums)
            if context.fits_available_gpus(context.fleet(counts), range(len(counts))):
                break
        return np.asarray(counts, np.int64)

    def _lent(
        self,
        context: PolicyContext,
        today: Fleet,
        counts: IntArray,
        borrowers: Mapping[int, Modules],
    ) -> list[list[_Lender]]:
        """Return the lenders of each pool, in the order in which it borrows from them.

        Idle GPUs of the same type come first. Pools of that type divide them in proportion to the
        GPUs of their instances. Idle GPUs of other types follow, the fastest first, and at last
        memory of GPUs that serve. ``counts [pools]`` are the instances. ``borrowers`` are the pools
        with instances, with the layers of their model.
        """
        gpus_each = np.array([pool.gpus_per_instance for pool in today.pools])
        used = counts * gpus_each
        groups = [
            _SharedType(list(limit.pools), limit.amount - int(used[list(limit.pools)].sum()))
            for limit in context.shared_limits
            if limit.per_instance is None  # a limit on GPUs, not on power
        ]
        lenders: list[list[_Lender]] = [[] for _ in today.pools]

        def borrow(p: int, group: _SharedType, source: int, count: int) -> None:
            """Lend pool p up to ``count`` units of the idle GPUs of ``group``, named by ``source``.

            A unit is the GPUs of one instance.
            """
            borrowed = self._borrow(lenders[p], source, count, int(counts[p]))
            group.idle_gpus -= int(gpus_each[p]) * borrowed

        for group in groups:
            serving = [p for p in group.pools if counts[p]]
            idle_gpus = group.idle_gpus  # before the pools borrow
            gpus_in_use = int(used[serving].sum())
            for p in serving:
                borrow(p, group, source=p, count=int(idle_gpus * counts[p] // gpus_in_use))
        for p in borrowers if self.other_gpus else {}:
            for group in _reachable_types(groups, p, today, borrowers[p]):
                units = group.idle_gpus // int(gpus_each[p])
                borrow(p, group, source=group.pools[0], count=units)
        for p in borrowers if self.shared_gpus else {}:
            self._add_serving_lenders(lenders[p], p, today, counts, borrowers)
        return lenders

    def _add_serving_lenders(
        self, lenders: list[_Lender], p: int, today: Fleet, counts: IntArray,
        borrowers: Mapping[int, Modules],
    ) -> None:  # fmt: skip
        """Add to ``lenders`` the pools that lend idle memory to pool ``p`` while they serve.

        ``counts [pools]`` are the instances. ``borrowers`` are the pools with instances, with the
        layers of their model.
        """
        for lending_pool in borrowers:  # all of them serve
            lending = today.pools[lending_pool]
            devices_left = self.devices - sum(lender.devices for lender in lenders)
            same_size = lending.gpus_per_instance == today.pools[p].gpus_per_instance
            can_reach = np.isfinite(borrowers[p].relative_speeds[lending_pool]) and not lending.spot
            if lending_pool != p and same_size and can_reach and devices_left > 0:
                units = int(counts[lending_pool])
                per_instance = -(-units // int(counts[p]))  # rounded up
                devices = min(devices_left, per_instance)
                lenders.append(_Lender(lending_pool, units, devices, serves=True))

    def _borrow(self, lenders: list[_Lender], source: int, count: int, instances: int) -> int:
        """Add a lender of up to ``count`` units of pool ``source``; return the units added.

        A unit is the GPUs of one instance. Each of the borrowing ``instances`` uses at most
        ``self.devices`` units of all its ``lenders``.
        """
        devices_left = self.devices - sum(lender.devices for lender in lenders)
        count = min(count, devices_left * instances)
        if count <= 0:
            return 0
        per_instance = -(-count // instances)  # rounded up
        lenders.append(_Lender(source, count, devices=min(devices_left, per_instance)))
        return count

    def _layout(
        self, pool_modules: Modules, devices: list[_Device], lengths: tuple[float, float]
    ) -> Layout:
        """Return the layout of an instance, with all layers on the first of its ``devices``.

        ``lengths`` are the mean input and output tokens of a request.
        """
        isl, osl = lengths
        return Layout(
            home=np.zeros(pool_modules.layers, np.int64),
            room_bytes=np.array([device.room_bytes for device in devices]),
            layer_bytes=pool_modules.layer_bytes,
            kv_layer_token_bytes=pool_modules.kv_layer_token_bytes,
            hidden_bytes=pool_modules.hidden_bytes,
            link_bytes_s=pool_modules.link_bytes_s,
            link_s=MESSAGE_S,
            isl=isl,
            osl=osl,
            reading=self.reading,
            copies=self.copies,
            moves=self.moves,
            attention_weight_share=pool_modules.attention_share,
            speed_of=np.array([device.speed for device in devices]),
            sharers=np.array([device.sharers for device in devices]),
            hosts=tuple(device.host for device in devices),
            owner_instances=tuple(device.owner_instances for device in devices),
        )


def _check_pools(today: Fleet, counts: IntArray, modules: Sequence[Modules | None]) -> None:
    """Raise ScenarioError for a pool with instances that the policy has no rule or layers for."""
    for pool, count, known in zip(today.pools, counts, modules, strict=True):
        if count and pool.role != "both":
            raise ScenarioError(
                "policies: 'modules' has no rule for prefill and decode pools, only for "
                "aggregated ones."
            )
        if count and known is None:
            raise ScenarioError(
                f"policies: 'modules' needs the layers of {pool.model}. Give the model by "
                "shape or config instead of weight_gb, or use a built-in one."
            )


def _reachable_types(
    groups: Sequence[_SharedType], p: int, today: Fleet, pool_modules: Modules
) -> list[_SharedType]:
    """Return those of ``groups`` with another GPU type from which pool ``p`` may borrow.

    The fastest type comes first. ``pool_modules`` are the layers of the pool's model.
    """
    reachable = []
    for index, group in enumerate(groups):
        first_pool = group.pools[0]  # all pools of a group have the same GPU type
        speed = float(pool_modules.relative_speeds[first_pool])
        same_market = today.pools[first_pool].spot == today.pools[p].spot
        can_run = np.isfinite(speed)  # NaN: the type cannot run the model
        if can_run and same_market and p not in group.pools:
            reachable.append((speed, index))
    return [groups[index] for _, index in sorted(reachable, reverse=True)]


def _own_device(pool: Pool, pool_modules: Modules) -> _Device:
    """Return the device of an instance's own GPUs, with the memory of its weights and KV cache."""
    weight_bytes = pool_modules.layers * pool_modules.layer_bytes
    room_bytes = weight_bytes + _kv_bytes(pool, pool_modules)
    return _Device(host=-1, owner_instances=0, room_bytes=room_bytes, speed=1.0, sharers=1.0)


def _borrowed_devices(
    today: Fleet,
    p: int,
    count: int,
    borrowers: Mapping[int, Modules],
    lenders: list[_Lender],
    next_pool: int,
) -> Iterator[_Device]:
    """Yield the devices that each instance of pool ``p`` borrows from ``lenders``.

    ``count`` is the number of these instances. ``borrowers`` are the pools with instances, with the
    layers of their model. Lent GPUs that serve no pool become pools of their own, numbered from
    ``next_pool`` on.
    """
    for lender in lenders:
        source = today.pools[lender.source]
        if lender.serves:
            host = lender.source
            lent_bytes = _kv_bytes(source, borrowers[lender.source])
        else:
            host, next_pool = next_pool, next_pool + 1
            usable_bytes = MEMORY_SHARE * source.gpu.memory_bytes - OVERHEAD_BYTES
            lent_bytes = today.pools[p].profile.tp * usable_bytes
        for device in range(lender.devices):
            # The units are divided evenly among the devices; the first ones get the remainder.
            units = lender.count // lender.devices + (device < lender.count % lender.devices)
            yield _Device(
                host,
                units,
                room_bytes=lent_bytes * min(1.0, units / count),
                speed=float(borrowers[p].relative_speeds[lender.source]),
                sharers=max(1.0, count / units),
            )


def _kv_bytes(pool: Pool, pool_modules: Modules) -> float:
    """Return the bytes of KV cache that an instance of ``pool`` can hold."""
    token_bytes = pool_modules.kv_layer_token_bytes * pool_modules.layers
    return pool.profile.kv_capacity_tokens * token_bytes


def _lending_pool(source: Pool, borrower: Pool, count: int) -> Pool:
    """Return a pool of up to ``count`` units of lent GPUs of the type of ``source``.

    A unit has the GPUs of an instance of ``borrower``. The pool takes no requests. Its GPUs are
    available at once, and paid while they are lent. They count as decoding all the time, an upper
    bound of their power.
    """
    profile = adjust_profile(source.profile, tp=borrower.profile.tp)
    gpu = replace(source.gpu, idle_w=source.gpu.decode_w)
    return replace(
        source, gpu=gpu, power=None, profile=profile, tiers=(), initial=0, minimum=0,
        maximum=count, startup_s=0.0, start_up=None, role="both", link=None, scheduler="fcfs",
        prefix_cache=False,
    )  # fmt: skip
