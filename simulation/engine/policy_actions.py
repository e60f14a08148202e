"""Application of a policy's actions to the engine."""

from typing import Any

import numpy as np
import numpy.typing as npt

from simulation.arrays import FloatArray, IntArray
from simulation.engine import entry_points
from simulation.engine.state import State
from simulation.errors import SimulationError
from simulation.fleet import Fleet, replica_switch_key
from simulation.policy import Actions

ALL = np.iinfo(np.int64).max  # of lent instances: none is taken back


def place(state: State, fleet: Fleet, counts: npt.NDArray[np.int64]) -> None:
    """Place ``counts [pool]`` instances at time 0."""
    entry_points.place(state.handle, _pool_array(counts, np.int64, fleet, "instance count"))


class Actor:
    """Applies the actions of a policy to the state of a simulation."""

    def __init__(self, state: State, fleet: Fleet) -> None:
        pools = len(fleet.pools)
        self._state, self._fleet = state, fleet
        self._no_soft_s = np.zeros(pools)
        self._no_lending = np.zeros(pools, np.bool_)
        self._keep_all_lent = np.full(pools, ALL)
        self._shares: FloatArray | None = None  # last shares applied

    def act(self, actions: Actions, now: float) -> None:
        """Apply ``actions`` at ``now``.

        Raises ``SimulationError`` if an array has the wrong shape or range.
        """
        state, fleet = self._state, self._fleet
        # Limits and speeds come first, so that runs that start now already use them.
        if actions.speed is not None:
            _set_speeds(state, fleet, actions.speed, now)
        if actions.max_batch is not None or actions.kv_share is not None:
            _limit_batches(state, fleet, actions, now)
        if actions.link_share is not None:
            _limit_links(state, fleet, actions.link_share)
        state.clock["has_region_shares"] = actions.shares is not None
        if actions.shares is not None:
            self._set_shares(actions.shares)
        if actions.release_tokens is not None:
            _limit_releases(state, fleet, actions.release_tokens)
        self._scale(actions, now)
        if actions.moves is not None and actions.moves.any():
            moves = _checked_moves(actions.moves, fleet)
            entry_points.switch(state.handle, moves, float(actions.switch_s), now)
        if actions.prompt_chunk is not None:
            _divert_prompts(state, fleet, actions)

    def _scale(self, actions: Actions, now: float) -> None:
        """Start and remove instances, or lend them, to reach the targets."""
        fleet = self._fleet
        lend, max_lent = self._no_lending, self._keep_all_lent
        if actions.lend is not None:
            lend = _pool_array(actions.lend, np.bool_, fleet, "lend")
        if actions.keep_lent is not None:
            max_lent = _pool_array(actions.keep_lent, np.int64, fleet, "keep_lent")
        targets = _pool_array(actions.targets, np.int64, fleet, "instance count")
        soft_s = self._soft_seconds(actions)
        entry_points.scale(self._state.handle, targets, soft_s, lend, max_lent, now)

    def _soft_seconds(self, actions: Actions) -> FloatArray:
        """Return the seconds for which each pool can restore a removed instance, ``[pool]``."""
        if actions.soft_s == 0:
            return self._no_soft_s
        if not 0 <= actions.soft_s < np.inf:
            raise SimulationError("A policy's soft_s must be a number of seconds >= 0.")
        soft = np.full(len(self._no_soft_s), float(actions.soft_s))
        if actions.firm is not None:
            soft[_pool_array(actions.firm, np.bool_, self._fleet, "firm")] = 0.0
        return soft

    def _set_shares(self, shares: FloatArray) -> None:
        """Set ``shares [model, home region, serving region]`` of the tokens of each home region.

        Paths that requests may not take get no tokens.
        """
        state, fleet = self._state, self._fleet
        # Most policies repeat their shares at most decisions, so compare first.
        if self._shares is not None and np.array_equal(shares, self._shares):
            return
        if shares.shape != (len(fleet.models), *fleet.latency_s.shape):
            raise SimulationError("A policy's shares must be models by home by serving regions.")
        if not np.all((shares >= 0) & np.isfinite(shares)):
            raise SimulationError("A policy's shares of regions must be numbers >= 0.")
        gets_first = state.service_model >= 0  # services that get requests from the router first
        allowed_shares = np.where(np.isfinite(fleet.latency_s), shares, 0.0)
        total = allowed_shares.sum(axis=2, keepdims=True)
        normalised = allowed_shares / np.where(total > 0, total, 1.0)
        state.shares[gets_first] = normalised[state.service_model[gets_first]]
        self._shares = shares.copy()


def _limit_releases(state: State, fleet: Fleet, tokens: FloatArray) -> None:
    """Limit the tokens of deferred requests that each region releases, ``[model, region]``."""
    if tokens.shape != (len(fleet.models), len(fleet.regions)) or not np.all(tokens >= 0):
        raise SimulationError("A policy's release_tokens must be >= 0, models by regions.")
    gets_first = state.service_model >= 0  # services that get requests from the router first
    state.releasable_tokens[gets_first] = tokens[state.service_model[gets_first]]


def _checked_moves(moves: IntArray, fleet: Fleet) -> IntArray:
    """Return the counts ``[from pool, to pool]`` of instances that switch pools, for compiled code.

    Raises ``SimulationError`` for a move that is not possible.
    """
    pools = fleet.pools
    if moves.shape != (len(pools), len(pools)) or (moves < 0).any():
        raise SimulationError("A policy's moves must be counts >= 0, pools by pools.")
    for from_pool, to_pool in np.argwhere(moves):
        same_kind = replica_switch_key(pools[from_pool]) == replica_switch_key(pools[to_pool])
        if from_pool == to_pool or not same_kind:
            raise SimulationError(
                "A policy's moves must lead to another pool of the same model, region, GPU type "
                "and number of GPUs."
            )
    return np.ascontiguousarray(moves, np.int64)


def _divert_prompts(state: State, fleet: Fleet, actions: Actions) -> None:
    """Let decode pools compute prompts, in chunks of at most ``actions.prompt_chunk`` tokens.

    A decode instance takes a prompt over if the prompts ahead of it at its prefill instance need
    more than ``actions.overflow_s`` seconds.
    """
    assert actions.prompt_chunk is not None
    chunks = _pool_array(actions.prompt_chunk, np.int64, fleet, "prompt_chunk")
    for p in np.flatnonzero(chunks):
        pool = fleet.pools[p]
        if chunks[p] < 0 or pool.role != "decode" or pool.batching != "chunked":
            raise SimulationError("A policy's prompt_chunk is for decode pools with chunked batch.")
        state.pools[p]["prompt_limit_tokens"] = chunks[p]
    state.pools["takes_prompts"] = chunks > 0
    state.clock["overflow_s"] = actions.overflow_s if chunks.any() else np.inf


def _limit_links(state: State, fleet: Fleet, link_share: FloatArray) -> None:
    """Limit each instance's KV link to the share ``link_share [pool]`` of its bandwidth.

    It applies to transfers that start from now on.
    """
    shares = _pool_array(link_share, np.float64, fleet, "link_share")
    if not np.all((link_share > 0) & (link_share <= 1)):
        raise SimulationError("A policy's link_share must be a share above 0, at most 1.")
    for p, pool in enumerate(fleet.pools):
        if pool.link is not None:
            state.pools[p]["link_bytes_s"] = pool.link.bytes_s * shares[p]


def _set_speeds(state: State, fleet: Fleet, speed: FloatArray, now: float) -> None:
    """Set the factor on the speed of iterations of each pool, ``[pool]``, from ``now`` on."""
    if not np.all((speed > 0) & np.isfinite(speed)):
        raise SimulationError("A policy's speeds must be above 0: 1 is the profile's.")
    speeds = _pool_array(speed, np.float64, fleet, "speed")
    entry_points.set_speed(state.handle, speeds, now)


def _limit_batches(state: State, fleet: Fleet, actions: Actions, now: float) -> None:
    """Apply the batch limits and shares of KV memory of ``actions``, where they are given."""
    pools = len(fleet.pools)
    # 0 and -1 leave a limit unchanged.
    max_batch = np.zeros(pools, np.int64) if actions.max_batch is None else actions.max_batch
    kv_share = np.full(pools, -1.0) if actions.kv_share is None else actions.kv_share
    if actions.max_batch is not None and not np.all(actions.max_batch >= 1):
        raise SimulationError("A policy's max_batch must be at least 1.")
    if actions.kv_share is not None and not np.all((kv_share >= 0) & (kv_share <= 1)):
        raise SimulationError("A policy's kv_share must be a share between 0 and 1.")
    batch_limits = _pool_array(max_batch, np.int64, fleet, "max_batch")
    kv_shares = _pool_array(kv_share, np.float64, fleet, "kv_share")
    entry_points.limit(state.handle, batch_limits, kv_shares, now)


def _pool_array(
    values: npt.ArrayLike, dtype: type[np.generic], fleet: Fleet, what: str
) -> npt.NDArray[Any]:
    """Return ``values`` as a writable C-ordered array ``[pool]`` of type ``dtype``.

    Compiled code then needs only one signature. Raises SimulationError for another shape; ``what``
    names the values in its message.
    """
    array = values
    # Copy only if needed: this runs for every field at every decision.
    if not isinstance(array, np.ndarray) or array.dtype != dtype or not array.flags.carray:
        array = np.array(values, dtype, order="C")
    if array.shape != (len(fleet.pools),):
        raise SimulationError(f"A policy must name one {what}, one per pool of the fleet.")
    return array
