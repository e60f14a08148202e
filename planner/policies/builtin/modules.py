"""Scale by modules: today's instances borrow idle GPUs (methods.md B; CoCoServe)."""

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
from simulation.performance.adjusted_profile import adjusted
from simulation.performance.memory import MEMORY_SHARE, OVERHEAD_BYTES
from simulation.policies.modules import ModuleScaling as Rule
from simulation.provisioning.replay import MESSAGE_S

MOST = 3  # devices that an instance may borrow; with its own: four copies, the source's largest


@dataclass(frozen=True, slots=True)
class _Lender:
    """GPUs that the instances of a pool may borrow, in units of one instance's GPUs."""

    source: int  # pool of the lending GPU type, or the pool that the GPUs serve
    count: int  # units
    devices: int  # units per borrowing instance
    serves: bool = False  # only the idle memory is lent


class ModuleLevel(Policy):
    """Copy layers to idle GPUs, and move modules under pressure (CoCoServe)."""

    kinds: ClassVar = {
        "modules": Traits(
            "Module scaling",
            "Copies layers to idle GPUs, and moves modules under pressure (CoCoServe).",
            Group.REACTIVE,
            complexity=31,
        )
    }

    name: Literal["modules"]
    instances_factor: Above = 1.0  # factor on today's instances
    # Time of a layer with p copies. source: 1 / p of its time. split: that of 1 / p of the batch.
    reading: Literal["source", "split"] = "split"
    copies: bool = True  # whether layers are copied (Algorithm 1)
    moves: bool = True  # whether modules are moved (Algorithm 2)
    devices: Annotated[int, Field(ge=1, le=16)] = MOST  # devices that a replica may borrow
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
        today, modules = context.fleet(context.today), context.modules()
        counts = self._counts(context, today)
        for p, pool in enumerate(today.pools):
            if counts[p] and pool.role != "both":
                raise ScenarioError(
                    "policies: 'modules' has no rule for prefill and decode pools, only for "
                    "aggregated ones."
                )
            if counts[p] and modules[p] is None:
                raise ScenarioError(
                    f"policies: 'modules' needs the layers of {pool.model}. Give the model by "
                    "shape or config instead of weight_gb, or use a built-in one."
                )
        lent = self._lent(context, today, counts, modules)
        fleet = context.fleet(counts)
        pools, source_pools = list(fleet.pools), list(range(len(fleet.pools)))
        layouts: list[Layout | None] = [None] * len(pools)
        for p, count in enumerate(counts.tolist()):
            pool_modules = modules[p]
            if not count or pool_modules is None:
                continue
            lenders, first = lent[p], len(pools)
            layout = self._layout(context, today, p, count, modules, lenders, first)
            layouts[p] = layout
            profile = adjusted(pools[p].profile, kv_capacity_tokens=int(layout.most_tokens()))
            pools[p] = replace(pools[p], profile=profile)
            for lender in lenders:
                if not lender.serves:
                    pools.append(
                        _lending_pool(today.pools[lender.source], today.pools[p], lender.count)
                    )
                    source_pools.append(lender.source)
        layouts += [None] * (len(pools) - len(layouts))
        policy = Rule(
            layouts,
            vacancy_threshold=self.vacancy_threshold,
            violation_threshold=self.violation_threshold,
            interval_s=self.interval_s,
            name=self.key,
        )
        return replace(
            context.limited_to_shared_gpus(
                policy, replace(fleet, pools=tuple(pools)), source_pools
            ),
            modules=policy,
        )

    def _counts(self, context: PolicyContext, today: Fleet) -> IntArray:
        """Return the instances of each pool, within its limits and the available GPUs.

        They are today's count times ``instances_factor``. If the fleet does not fit, the factor is
        lowered until it does.
        """
        minimums = np.array([pool.minimum for pool in today.pools])
        maximums = np.array([pool.maximum for pool in today.pools])
        for share in np.linspace(1.0, 0.0, 101):
            counts_wanted = np.ceil(context.today * self.instances_factor * share - 1e-9).astype(
                np.int64
            )
            counts = np.clip(counts_wanted, minimums, maximums)
            if context.fits_available_gpus(context.fleet(counts), range(len(counts))):
                break
        return np.asarray(counts, np.int64)

    def _lent(
        self,
        context: PolicyContext,
        today: Fleet,
        counts: IntArray,
        modules: tuple[Modules | None, ...],
    ) -> list[list[_Lender]]:
        """Return the idle GPUs that each pool may borrow.

        A pool first borrows GPUs of the same type. Pools of that type share them in proportion to
        the GPUs of their instances. Then it borrows of other types, the fastest first. ``modules``
        has those of each pool's model; None: its layers are not known.
        """
        gpus_each = np.array([pool.gpus_per_instance for pool in today.pools])
        # By group of pools that share GPUs of one type: the pools, and the GPUs they do not use.
        idle = [
            (group[0], group[1] - int((counts * gpus_each)[list(group[0])].sum()))
            for group in context.gpus
            if len(group) == 2
        ]
        lenders: list[list[_Lender]] = [[] for _ in today.pools]
        left = [free for _, free in idle]
        for i, (pools, free) in enumerate(idle):
            wanting = [p for p in pools if counts[p]]
            gpus_wanted = sum(int(counts[p] * gpus_each[p]) for p in wanting)
            for p in wanting:
                count = int(free * counts[p] // gpus_wanted)
                borrowed = self._borrow(lenders[p], p, count, int(counts[p]))
                left[i] -= int(gpus_each[p]) * borrowed
        for p, pool_modules in enumerate(modules):
            if pool_modules is None or not counts[p] or not self.other_gpus:
                continue
            others = [
                (pool_modules.relative_speeds[pools[0]], i) for i, (pools, _) in enumerate(idle)
            ]
            reachable = [
                (pace, i) for pace, i in others if np.isfinite(pace) and p not in idle[i][0]
            ]
            for _, i in sorted(reachable, reverse=True):
                if today.pools[idle[i][0][0]].spot == today.pools[p].spot:
                    count, source = left[i] // int(gpus_each[p]), idle[i][0][0]
                    borrowed = self._borrow(lenders[p], source, count, int(counts[p]))
                    left[i] -= int(gpus_each[p]) * borrowed
        if self.shared_gpus:
            for p, pool_modules in enumerate(modules):
                if pool_modules is not None and counts[p]:
                    self._add_serving_lenders(lenders[p], p, today, counts, modules)
        return lenders

    def _add_serving_lenders(
        self, lenders: list[_Lender], p: int, today: Fleet, counts: IntArray,
        modules: tuple[Modules | None, ...],
    ) -> None:  # fmt: skip
        """Add the pools to ``lenders`` that lend idle memory to pool ``p`` while they serve.

        ``modules`` has those of each pool's model; None: its layers are not known.
        """
        pool_modules = modules[p]
        assert pool_modules is not None
        for q, other in enumerate(today.pools):
            room = self.devices - sum(lender.devices for lender in lenders)
            alike = other.gpus_per_instance == today.pools[p].gpus_per_instance
            reached = np.isfinite(pool_modules.relative_speeds[q]) and not other.spot
            if q != p and counts[q] and alike and reached and modules[q] is not None and room > 0:
                devices = min(room, -(-int(counts[q]) // int(counts[p])))
                lenders.append(_Lender(q, int(counts[q]), devices, serves=True))

    def _borrow(self, lenders: list[_Lender], source: int, count: int, instances: int) -> int:
        """Add a lender of up to ``count`` units of ``source``; return the units added.

        Each of the borrowing ``instances`` uses at most ``devices`` in total.
        """
        room = self.devices - sum(lender.devices for lender in lenders)
        count = min(count, room * instances)
        if count <= 0:
            return 0
        lenders.append(_Lender(source, count, min(room, -(-count // instances))))
        return count

    def _layout(
        self, context: PolicyContext, today: Fleet, p: int, count: int,
        modules: tuple[Modules | None, ...], lenders: list[_Lender], first: int,
    ) -> Layout:  # fmt: skip
        """Return the layout of a pool: its layers, and the room and speed of each device.

        ``count`` instances borrow from ``lenders``. ``modules`` has those of each pool's model.
        """
        pool_modules = modules[p]
        assert pool_modules is not None
        kv_bytes = _kv_bytes(today.pools[p], pool_modules)
        room, pace, sharers = (
            [pool_modules.layers * pool_modules.layer_bytes + kv_bytes],
            [1.0],
            [1.0],
        )
        hosts, held = [-1], [0]
        for lender in lenders:
            source, host = today.pools[lender.source], lender.source
            if lender.serves:
                whole_device = _kv_bytes(source, modules[lender.source])
            else:
                host, first = first, first + 1
                tp = today.pools[p].profile.tp
                whole_device = tp * (MEMORY_SHARE * source.gpu.memory_bytes - OVERHEAD_BYTES)
            for device in range(lender.devices):
                instances_with_device = lender.count // lender.devices + (
                    device < lender.count % lender.devices
                )
                hosts.append(host)
                held.append(instances_with_device)
                room.append(whole_device * min(1.0, instances_with_device / count))
                pace.append(float(pool_modules.relative_speeds[lender.source]))
                sharers.append(max(1.0, count / instances_with_device))
        isl, osl = context.lengths[p]
        return Layout(
            home=np.zeros(pool_modules.layers, np.int64),
            room_bytes=np.array(room),
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
            attention_share=pool_modules.attention_share,
            speed_of=np.array(pace),
            sharers=np.array(sharers),
            hosts=tuple(hosts),
            held=tuple(held),
        )


def _kv_bytes(pool: Pool, pool_modules: Modules | None) -> float:
    """Return the bytes of KV memory of an instance; 0 if its layers are not known."""
    if pool_modules is None:
        return 0.0
    per_token = pool_modules.kv_layer_token_bytes * pool_modules.layers
    return pool.profile.kv_capacity_tokens * per_token


def _lending_pool(source: Pool, borrower: Pool, count: int) -> Pool:
    """Return a pool of lent GPUs of ``source``, in units as large as ``borrower``'s instances.

    The pool takes no requests. Its GPUs are available at once, and paid while they are held. Their
    power by layer is not known, so they draw the power of decoding all the time, an upper bound.
    """
    profile = adjusted(source.profile, tp=borrower.profile.tp)
    gpu = replace(source.gpu, idle_w=source.gpu.decode_w)
    return replace(
        source, gpu=gpu, power=None, profile=profile, tiers=(), initial=0, minimum=0,
        maximum=count, startup_s=0.0, start_up=None, role="both", link=None, scheduler="fcfs",
        prefix_cache=False,
    )  # fmt: skip
