"""Roles by token velocity: replicas switch, and decode replicas take prompts over.

The velocity of a role is the tokens/s of one replica. The need of a role is the replicas that its
load requires, as a fraction. Its pressure is the need over its replicas.

Sources: TokenScale (arXiv 2512.03416) compares arriving tokens with the velocity of each role, and
lets decode replicas compute prompts in bursts. DOPD (arXiv 2511.20982) and Arrow (arXiv 2505.11916)
change the number of replicas of each role by load. None of them states all its parameters; the
defaults are ours.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil

import numpy as np

from simulation.arrays import FloatArray, IntArray
from simulation.fleet import Fleet, replica_switch_key
from simulation.performance.profile import iteration_s
from simulation.policies.endpoint_picker import VELOCITY, idle_prefill_tps
from simulation.policies.parts.endpoints import (
    Endpoints,
    Service,
    count_in,
    initial_counts,
    services,
)
from simulation.policies.parts.stability import ROUNDING
from simulation.policy import Actions, ComputedParameter, Observation, ScalingPolicy

# From an idle replica's last work to its new role, with a new communication buffer: 1.46 to 1.59 s
# measured on 16 H200 (github.com/ev-shindin/vllm-conf, tools/pd_role_switch/README.md). Weights
# and CUDA graphs stay. With a parked buffer it is 0.38 s.
SWITCH_S = 1.6
CHUNK = 16  # tokens; chunks are multiples of it
DECODE_BATCH = "largest decode batch within TBT"
# A time, and the prefill and decode replicas needed then
ReplicasNeeded = tuple[float, tuple[int, ...]]


@dataclass(eq=False, kw_only=True)
class TokenVelocity(ScalingPolicy):
    """Move replicas between prefill and decode to the role that is short of capacity.

    - The need of prefill is the arriving prompt tokens/s over the prefill velocity. Without
      ``scales``, it also covers the backlog within one interval.
    - The need of decode is the sequences in flight over the largest batch within the TBT limit.

    If the pressure of a role exceeds ``target``, ``switches`` moves replicas to the split with the
    least pressure, if that is lower than now by the share ``gain``.

    ``scales`` changes the number of each role to its need over ``target`` instead. Replicas beyond
    it are removed after ``keep_s`` of lower need, or switch if the other role is short.

    ``takes_over`` lets decode replicas compute prompts when the prompts ahead take more than
    ``overflow`` of the TTFT limit. Their chunk is the largest at which an iteration of the present
    batch stays within the TBT limit.

    ``lengths [pools]`` are mean input and output tokens. ``ttft_s`` and ``tbt_s`` are limits, one
    or one per pool; NaN: none.
    """

    lengths: Sequence[tuple[float, float]]
    ttft_s: float | FloatArray
    tbt_s: float | FloatArray
    switches: bool = True
    takes_over: bool = True
    scales: bool = False
    target: float = 0.85
    gain: float = 0.1
    overflow: float = 0.5
    keep_s: float = 1800.0
    switch_s: float = SWITCH_S
    interval_s: float = 5.0
    name: str = "token-velocity"
    wants_signals = True

    def reset(self, fleet: Fleet) -> IntArray:
        """Compute the velocities and the decode batch of each pool; return the initial counts."""
        self._endpoints = Endpoints(fleet)
        self._pools = fleet.pools
        self._services = [service for service in services(fleet) if service.has_separate_roles]
        self._switch_keys = [replica_switch_key(pool) for pool in fleet.pools]
        self._isl, osl = np.asarray(self.lengths, np.float64).T
        self._context = self._isl + osl / 2  # tokens of a sequence, on average over its life
        pools = len(fleet.pools)
        self._ttft_s = np.nan_to_num(np.broadcast_to(self.ttft_s, pools), nan=np.inf)
        self._tbt_s = np.nan_to_num(np.broadcast_to(self.tbt_s, pools), nan=np.inf)
        self._prefill_tps = np.array([idle_prefill_tps(pool.profile) for pool in fleet.pools])
        self._max_decode_batch = np.array([self._largest_batch(p) for p in range(pools)])
        self._recent_needs: list[deque[ReplicasNeeded]] = [deque() for _ in self._services]
        self._chunks: dict[tuple[int, int], int] = {}
        return initial_counts(fleet)

    def decide(self, observation: Observation) -> Actions:
        """Scale each P/D service, and set the prompts that decode instances may take over."""
        targets = observation.present
        moves = np.zeros((len(targets),) * 2, np.int64)
        for i, service in enumerate(self._services):
            self._change_service(i, service, observation, targets, moves)
        chunks = None
        if self.takes_over:
            chunks = np.zeros(len(self._pools), np.int64)
            for service in self._services:
                for p in service.decode:
                    chunks[p] = self._prompt_chunk(p, observation)
        overflow_s = self.overflow * float(min(self._ttft_s, default=np.inf))
        return Actions(
            targets, moves=moves, switch_s=self.switch_s, prompt_chunk=chunks, overflow_s=overflow_s
        )

    def computed_parameters(self) -> tuple[ComputedParameter, ...]:
        """Return the prefill and decode velocity of one replica (tokens/s), and the decode batch.

        They are NaN for pools without the role.
        """
        prefill_tps, decode_tps, decode_batch = np.full((3, len(self._pools)), np.nan)
        for service in self._services:
            for p in service.prefill:
                prefill_tps[p] = self._prefill_tps[p]
            for p in service.decode:
                batch = self._max_decode_batch[p]
                decode_batch[p], decode_tps[p] = batch, batch / self._iteration_s(p, batch, 0)
        return (ComputedParameter(VELOCITY, prefill_tps),
                ComputedParameter("decode velocity, tokens/s", decode_tps),
                ComputedParameter(DECODE_BATCH, decode_batch))  # fmt: skip

    def _change_service(
        self, i: int, service: Service, observation: Observation, targets: IntArray, moves: IntArray
    ) -> None:
        """Change ``targets [pools]`` and ``moves [from pool, to pool]`` of service ``i`` in place.

        Replicas switch from a role with too many to the one with too few. With ``scales``, the rest
        of the change is started or removed.
        """
        roles = (service.prefill, service.decode)
        present = tuple(count_in(targets, pools) for pools in roles)
        needs = self._needs(service, observation)
        if self.scales:
            changes = self._change_by_need(i, needs, present, observation)
        else:
            changes = self._change_to_best_split(needs, present)
        switched = 0
        prefill_change, decode_change = changes
        if self.switches and prefill_change * decode_change < 0:  # one role grows, one shrinks
            shrinking, growing = service.prefill, service.decode
            if prefill_change > 0:
                shrinking, growing = service.decode, service.prefill
            wanted = min(abs(prefill_change), abs(decode_change))
            switched = self._move(shrinking, growing, wanted, observation, moves)
        if self.scales:  # start or remove what switching leaves of the change
            for pools, change in zip(roles, changes, strict=True):
                remaining_change = change - switched if change > 0 else change + switched
                self._endpoints.move(targets, pools, remaining_change)

    def _change_to_best_split(
        self, needs: tuple[float, float], present: tuple[int, ...]
    ) -> tuple[int, int]:
        """Return the change of prefill and decode replicas to the split with the least pressure.

        Pressure is the larger need per replica of the two roles. The change is (0, 0) if the
        pressure is within ``target``, or would fall by less than ``gain``.
        """
        if min(present) < 1:
            return 0, 0
        best = best_split(needs, sum(present))
        pressure = max(needs[0] / present[0], needs[1] / present[1])
        best_pressure = max(needs[0] / best[0], needs[1] / best[1])
        if pressure <= self.target or best_pressure > (1 - self.gain) * pressure:
            return 0, 0
        return best[0] - present[0], best[1] - present[1]

    def _change_by_need(
        self, i: int, needs: tuple[float, float], present: tuple[int, ...], observation: Observation
    ) -> tuple[int, int]:
        """Return the changes of prefill and decode replicas of service ``i`` to their ``needs``.

        A role grows to its present need. It shrinks to its largest need of the last ``keep_s``.
        """
        now, recent = observation.time_s, self._recent_needs[i]
        if not recent:  # replicas that run at first stay as long as others
            recent.append((now, present))
        needed_now = tuple(self._replicas(need) for need in needs)
        recent.append((now, needed_now))
        while recent[0][0] < now - self.keep_s:
            recent.popleft()
        changes = []
        for role in range(2):
            most_needed = max(needed[role] for _, needed in recent)
            missing = max(needed_now[role] - present[role], 0)
            superfluous = max(present[role] - most_needed, 0)
            changes.append(missing - superfluous)  # at most one of them is not 0
        return changes[0], changes[1]

    def _replicas(self, need: float) -> int:
        """Return the replicas at which a need has the target pressure, at least one."""
        return max(1, ceil(need / self.target - ROUNDING))

    def _move(
        self,
        from_pools: Sequence[int],
        to_pools: Sequence[int],
        count: int,
        observation: Observation,
        moves: IntArray,
    ) -> int:
        """Write at most ``count`` switches of ready replicas to ``moves``; return their number.

        Only pools of the same model, region and GPUs exchange replicas.
        """
        remaining = count
        for to_pool in to_pools:
            for from_pool in reversed(from_pools):
                if self._switch_keys[from_pool] == self._switch_keys[to_pool]:
                    ready = int(observation.ready[from_pool]) - int(moves[from_pool].sum())
                    moves[from_pool, to_pool] = min(remaining, max(ready, 0))
                    remaining -= int(moves[from_pool, to_pool])
        return count - remaining

    def _needs(self, service: Service, observation: Observation) -> tuple[float, float]:
        """Return the replicas that the prefill and the decode of a service need, as fractions."""
        prefill, decode, pools = list(service.prefill), list(service.decode), list(service.pools)
        tokens = float(observation.input_tps[pools].sum())
        # A start comes too late for the backlog, while a switch works it off.
        if observation.backlog is not None and not self.scales:
            tokens += float(observation.backlog[prefill].sum()) / self.interval_s
        sequences = float(observation.waiting[decode].sum())
        if observation.signals is not None:
            batch = np.nan_to_num(observation.signals.batch[decode])
            sequences += float(batch @ observation.ready[decode])
        return (tokens / float(self._prefill_tps[prefill].mean()),
                sequences / float(self._max_decode_batch[decode].mean()))  # fmt: skip

    def _largest_batch(self, p: int) -> float:
        """Return the largest decode batch of pool ``p`` within its KV memory and TBT limit."""
        profile = self._pools[p].profile
        sizes = np.arange(1, profile.max_batch + 1)
        context = sizes * self._context[p]
        fits = context <= profile.kv_capacity_tokens
        fits &= iteration_s(profile, sizes, context, 0, 0) <= self._tbt_s[p]
        return float(max(1, sizes[fits].max(initial=1)))

    def _prompt_chunk(self, p: int, observation: Observation) -> int:
        """Return the most prompt tokens that an iteration of decode pool ``p`` may take over."""
        batch = 0.0 if observation.signals is None else observation.signals.batch[p]
        decodes = ceil(np.nan_to_num(batch))
        if (p, decodes) not in self._chunks:
            pool = self._pools[p]
            sizes = np.arange(CHUNK, pool.profile.max_batch_tokens - decodes + 1, CHUNK)
            within_tbt = sizes[self._iteration_s(p, decodes, sizes) <= self._tbt_s[p]]
            is_chunked = pool.batching == "chunked"  # only these decode while a prompt is computed
            self._chunks[p, decodes] = int(within_tbt.max(initial=0)) if is_chunked else 0
        return self._chunks[p, decodes]

    def _iteration_s(self, p: int, decodes: float, chunk: IntArray | int) -> FloatArray:
        """Return the seconds of an iteration of pool ``p`` for each size of ``chunk``.

        It computes a token for each of ``decodes`` sequences, and ``chunk`` tokens of a prompt.
        """
        # Pairs of tokens for attention: a prompt token attends to half the prompt on average.
        pairs = np.asarray(chunk) * self._isl[p] / 2
        profile = self._pools[p].profile
        return iteration_s(profile, decodes, decodes * self._context[p], chunk, pairs)


def best_split(needs: tuple[float, float], total: int) -> tuple[int, int]:
    """Return prefill and decode replicas, ``total`` together, with the least pressure.

    Pressure is the larger of both ratios of ``needs`` to replicas. Each role gets at least one.
    """
    prefills = np.arange(1, total)
    pressure = np.maximum(needs[0] / prefills, needs[1] / (total - prefills))
    prefill = int(prefills[int(pressure.argmin())])
    return prefill, total - prefill
