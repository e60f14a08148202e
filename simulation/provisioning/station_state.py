"""Arrays of stations and requests, and the state that changes during a replay."""

from typing import Any, NamedTuple

import numpy as np


class Graph(NamedTuple):
    """The stations ``[V]`` of a replay, with their replicas ``[Q]`` and the edges between stations.

    Replicas and shards are in station order. Pairs such as ``child`` and ``children`` are offsets
    and values: the values of item i are ``children[child[i] : child[i + 1]]``.
    """

    curves: Any  # coefficients of all curves, concatenated
    curve: Any  # [V + 1] offsets into ``curves``
    batch: Any  # [V] largest batch, requests
    sticky: Any  # [V] whether requests stay on one replica of the station
    places: Any  # [V] most requests on a sticky replica
    room: Any  # [Q] KV-cache capacity of a sticky replica, tokens
    hop_s: Any  # [V] latency of a transfer to the next stations, seconds
    row_s: Any  # [V] link seconds per prompt token (prefill) or per sequence (decode)
    budget: Any  # [V] most prompt tokens besides ``batch`` sequences; inf: ``batch`` requests
    # [V, 2] whether passes visit the station, of prompts and of decoding sequences. Both kinds end
    # at a station that both visit.
    visited: Any
    before: Any  # [V, 2] number of preceding stations that these passes visit
    child: Any  # [V + 1] offsets into ``children``
    children: Any  # following stations
    first: Any  # [V + 1] first replica of each station
    station: Any  # [Q] station of each replica
    shard: Any  # [Q + 1] offsets into ``device``
    device: Any  # devices of each replica, one per shard
    home: Any  # [D + 1] offsets into ``housed``
    housed: Any  # replicas on each device
    compute: Any  # [V] share of a device's arithmetic while the station runs
    bandwidth: Any  # [V] share of a device's memory bandwidth while it runs
    interference: Any  # [V, V] measured slowdown of v by a running u; empty: by shares
    span: Any  # [S + 1] first station of each service; services share devices only


class Passes(NamedTuple):
    """The requests ``[N]`` of a replay in order of arrival, and how many passes each makes."""

    arrival_s: Any
    isl: Any
    passes: Any  # [N] of the chunks of the prompt, then one per decoded token
    chunks: Any  # [N] passes of the prompt: 1 if it is computed at once, 0 if only tokens decode
    service: Any  # [N]
    following: Any  # [N] next request of the same service; -1: last
    heads: Any  # [S] first request of each service; -1: none
    aligned: bool  # whether a request uses the replica of the same number at every station
    # Whether waiting requests are sorted by ``key``; else first come, first served.
    ordered: bool = False
    key: Any = np.zeros(1)  # [N] smallest first


class ReplayState(NamedTuple):
    """State of a replay: V stations, N requests, Q replicas, D devices, S services."""

    after: Any  # [V, N] next request in the same queue or batch; -1: last
    head: Any  # [Q] first waiting request of each queue; ``tail`` is the last one
    tail: Any
    waiting: Any
    need: Any  # [N, V] preceding stations not yet done
    left: Any  # [N] stations of the pass not yet done
    done: Any  # [N] finished passes
    own: Any  # [V, N] replica of the request at a sticky station, counted within the station
    held: Any  # [Q] admitted requests
    tokens: Any  # [Q] reserved KV-cache tokens
    busy: Any  # [Q] first request of the running batch; -1: idle
    work: Any  # [Q] remaining seconds without slowdown
    since: Any  # [Q] time of the last update of ``work``
    slow: Any  # [Q] current slowdown factor
    tree: Any  # [2 W] tournament tree of the end times of replicas
    idle: Any  # [Q] stack of idle replicas of each station
    idles: Any  # [V] length of each stack
    compute: Any  # [D] sum of the running shares
    bandwidth: Any
    active: Any  # [D, V] running shards by station; empty without measured slowdowns
    link_free: Any  # [D] time at which the device's link is free
    flights: Any  # [F, 2] heap of transfers: arrival time, slot
    flight: Any  # [F, 2] by slot: station, first request of the batch
    free: Any  # stack of free slots
    count: Any  # [4] transfers, free slots, visits, requests in ``next_pass``
    next_pass: Any  # [N] requests about to begin their next pass
    to_check: Any  # stack of queues whose requests may be able to start now
    checks: Any  # [1] length of ``to_check``
    finish: Any  # [N] completion time; NaN: never
    prefilled: Any  # [N] time at which the prompt was done and decoding began; NaN: never
    next_admitted: Any  # [S] next request of each service to admit; -1: none


def initial_state(graph: Graph, requests: Passes) -> ReplayState:
    """Return the state of a replay before the first arrival."""
    devices = graph.home.size - 1
    n, stations, replicas = requests.arrival_s.size, graph.batch.size, graph.station.size
    leaves = 1 << (max(2, replicas) - 1).bit_length()
    flights = 2 * n + 16
    idle = [np.arange(graph.first[v + 1] - 1, graph.first[v] - 1, -1) for v in range(stations)]
    return ReplayState(
        after=np.full((stations, n), -1, np.int64),
        head=np.full(replicas, -1, np.int64),
        tail=np.full(replicas, -1, np.int64),
        waiting=np.zeros(replicas, np.int64),
        need=np.zeros((n, stations), np.int64),
        left=np.zeros(n, np.int64),
        done=np.zeros(n, np.int64),
        own=np.zeros((stations, n), np.int64),
        held=np.zeros(replicas, np.int64),
        tokens=np.zeros(replicas),
        busy=np.full(replicas, -1, np.int64),
        work=np.zeros(replicas),
        since=np.zeros(replicas),
        slow=np.ones(replicas),
        tree=np.full(2 * leaves, np.inf),
        idle=np.concatenate(idle),
        idles=np.diff(graph.first),
        compute=np.zeros(devices),
        bandwidth=np.zeros(devices),
        active=np.zeros((devices, graph.interference.shape[0])),
        link_free=np.zeros(devices),
        flights=np.zeros((flights, 2)),
        flight=np.zeros((flights, 2), np.int64),
        free=np.arange(flights),
        count=np.array([0, flights, 0, 0]),
        next_pass=np.zeros(n, np.int64),
        to_check=np.zeros(4 * replicas + 4 * stations + 16, np.int64),
        checks=np.zeros(1, np.int64),
        finish=np.full(n, np.nan),
        prefilled=np.full(n, np.nan),
        next_admitted=requests.heads.copy(),
    )
