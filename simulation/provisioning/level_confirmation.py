"""Confirm the plans of each granularity by replay, since planning only uses means.

Planning uses mean latencies of queues with full batches. Here every plan is replayed with the same
requests (``replay``). It is accepted if the target share of them is within the latency limit. If a
plan misses it, another is made for a tighter limit, and for whole replicas also for more load. A
finer level falls back to the coarser one in two cases: it is not confirmed, or its requests wait
longer.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from simulation.provisioning.level import Level, fallback_to, fewest_devices, level_order
from simulation.provisioning.levels import level_of
from simulation.provisioning.replay import LevelReplay
from simulation.provisioning.replicas import ReplicaPlan, plan_whole_replicas, under_load
from simulation.provisioning.sm_shares import confined_to_shares
from simulation.provisioning.workload import PhaseProblem, at_rate, with_slo

SAFETY_STEPS = (  # shares of the limit, and factors on the load, to plan whole replicas for
    (1.0, 1.0), (1.0, 1.05), (1.0, 1.1), (1.0, 1.2), (1.0, 1.35), (1.0, 1.7),
    (0.7, 1.0), (0.7, 1.1), (0.7, 1.35), (0.5, 1.0), (0.5, 1.2), (0.5, 1.7), (0.5, 2.5),
    (0.35, 1.0), (0.35, 1.35), (0.25, 1.0), (0.25, 1.35), (0.25, 2.0),
    (0.15, 1.0), (0.15, 2.0), (0.08, 1.0), (0.08, 2.0),
)  # fmt: skip
TIGHTER_SHARES = (1.0, 0.7, 0.5)  # shares of the limit to plan finer levels for
SM_SLOWDOWNS = (1.0, 1.5)  # allowed slowdowns of operators in shares of the multiprocessors
LATENCY_TOLERANCE = 1.001  # allowed P95 latency of a finer level over that of a coarser one


@dataclass(frozen=True, slots=True, eq=False)
class Confirmation:
    """Confirms plans of ``phase`` by ``replay``.

    ``attainment`` is the share of replayed requests that must keep the limit.
    """

    phase: PhaseProblem
    replay: LevelReplay
    attainment: float

    def replayed(self, level: Level) -> Level:
        """Return ``level`` with the latencies of its replay."""
        return replace(level, replayed=self.replay.latency_of(level))

    def keeps_limit(self, level: Level) -> bool:
        """Return whether a replayed level keeps the limit for enough requests."""
        return level.replayed is not None and level.replayed.attainment >= self.attainment

    def whole_replicas(self) -> Level | None:
        """Return the plan with the fewest whole replicas that a replay confirms.

        If no plan is confirmed, the one with the highest attainment is returned. None if there is
        no plan at all.
        """
        started = time.perf_counter()
        plans = self._plans_of_whole_replicas()
        if not plans:
            return None
        levels: list[Level] = []
        for plan in plans:  # fewest devices first, so the first confirmed plan is the best
            levels.append(self.replayed(level_of(self.phase, plan)))
            if self.keeps_limit(levels[-1]):
                break
        best = max(levels, key=lambda level: level.replayed.attainment if level.replayed else 0.0)
        # Fewest devices that meet the limit on average, which no replay confirmed.
        by_means = plan_whole_replicas(self.phase, self.replay.device_bytes)
        fewest = best.devices if by_means is None else min(by_means.devices, best.devices)
        seconds = time.perf_counter() - started
        return replace(best, least_devices=fewest, devices_by_means=fewest, seconds=seconds)

    def _plans_of_whole_replicas(self) -> list[ReplicaPlan]:
        """Return plans for ``SAFETY_STEPS``, sorted by devices, replicas, GPUs and batch."""
        phase = self.phase
        plans: dict[tuple[int, ...], ReplicaPlan] = {}
        for share, load_factor in SAFETY_STEPS:
            harder_phase = at_rate(phase, phase.service.requests_s * load_factor)
            harder_phase = with_slo(harder_phase, share * phase.problem.slo_s)
            planned = plan_whole_replicas(harder_phase, self.replay.device_bytes)
            plan = None if planned is None else under_load(phase, planned)
            if plan is not None:
                plans[plan.devices, plan.replicas, plan.parallel, plan.batch] = plan
        return [plans[key] for key in sorted(plans)]

    def level(
        self, name: str, coarser: Sequence[Level], plan: Callable[[PhaseProblem], Level | None]
    ) -> Level | None:
        """Return a plan of the level ``name`` that a replay confirms, or else the best coarser one.

        A replay confirms a plan if enough requests keep the limit, and P95 is no longer than that
        of ``coarser`` levels. ``plan`` makes a level for a phase; it is called with the limit, then
        with tighter ones. ``least_devices`` and ``devices_by_means`` of the result are those of the
        plan for the whole limit. None if no plan is confirmed and there is no coarser one.
        """
        limit_s = self.phase.problem.slo_s
        trade_off: Level | None = None
        devices_by_means: int | None = None
        least_devices: int | None = None
        for share in TIGHTER_SHARES:
            planned = plan(with_slo(self.phase, share * limit_s))
            if planned is None:
                break
            if share == TIGHTER_SHARES[0]:  # the whole limit
                devices_by_means, least_devices = planned.devices_by_means, planned.least_devices
            # Keep the first trade-off that a replay confirms.
            if planned.trade_off is not None and trade_off is None:
                replayed_trade_off = self.replayed(planned.trade_off)
                trade_off = replayed_trade_off if self.keeps_limit(replayed_trade_off) else None
            if planned.is_fallback:  # a plan for a tighter limit is no better
                break
            latency = self.replay.latency_of(planned)
            replayed = replace(planned, replayed=latency)
            p95_s = [other.replayed.p95_s for other in coarser if other.replayed]
            longest_p95_s = LATENCY_TOLERANCE * min(p95_s, default=float("inf"))
            if self.keeps_limit(replayed) and latency.p95_s <= longest_p95_s:
                return replace(
                    replayed,
                    slo_s=limit_s,
                    trade_off=trade_off,
                    devices_by_means=devices_by_means,
                    least_devices=least_devices,
                )
        if not coarser:
            return None
        fallback = fallback_to(min(coarser, key=level_order), name)
        return replace(
            fallback,
            trade_off=trade_off,
            devices_by_means=devices_by_means,
            least_devices=least_devices,
        )

    def operators_in_shares(
        self, coarser: Sequence[Level], plan: Callable[..., Level | None]
    ) -> Level | None:
        """Return the best plan of operators with reserved multiprocessors that a replay confirms.

        The shares of the multiprocessors follow equation 6 of the operator paper. None if no such
        plan is better than those of ``coarser``, which reserve none. ``plan`` makes a level for a
        phase.
        """

        def plan_with_slowdown(within: PhaseProblem, max_slowdown: float) -> Level | None:
            """Return the level planned with shares that slow operators by ``max_slowdown``."""
            shares = confined_to_shares(within, max_slowdown)
            level = plan(shares, coarser=tuple(coarser), proofs=False)
            if level is None:
                return None
            if level.trade_off is not None:
                trade_off = replace(level.trade_off, max_sm_slowdown=max_slowdown)
                level = replace(level, trade_off=trade_off)
            # A fallback has no shares, and is dropped below.
            return replace(level, max_sm_slowdown=None if level.is_fallback else max_slowdown)

        levels = []
        for max_slowdown in SM_SLOWDOWNS:
            with_shares = partial(plan_with_slowdown, max_slowdown=max_slowdown)
            level = self.level("operator", coarser, with_shares)
            if level is not None and level.max_sm_slowdown is not None:
                levels.append(level)
        best = fewest_devices(levels)
        if best is None:
            return None
        bounds = [level.least_devices for level in coarser if level.level == "operator"]
        proven = [bound for bound in bounds if bound is not None]
        least_devices = min(*proven, best.devices) if proven else None
        method = f"{best.method}, in shares of the multiprocessors"
        return replace(best, method=method, least_devices=least_devices)
