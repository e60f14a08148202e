"""Arrays of stations and requests, and the state that changes during a replay."""

from typing import Any, NamedTuple

import numpy as np


class Graph(NamedTuple):
    """The stations ``[V]`` of a replay, with their replicas ``[Q]`` and the edges between stations.

    Replicas and shards are in station order. Lists of different lengths are concatenated, with
    offsets: those after station v are ``next_stations[next_offset[v] : next_offset[v + 1]]``.
    """

    curves: Any  # coefficients of all curves, concatenated
    curve_offset: Any  # [V + 1] offsets into ``curves``
    max_batch: Any  # [V] largest batch, requests
    sticky: Any  # [V] whether requests stay on one replica of the station
    max_requests: Any  # [V] most requests on a sticky replica
    kv_capacity: Any  # [Q] KV-cache capacity of a sticky replica, tokens
    hop_s: Any  # [V] latency of a transfer to the next stations, seconds
    row_s: Any  # [V] link seconds per prompt token (prefill) or per sequence (decode)
    # [V] most prompt tokens of a batch, besides ``max_batch`` sequences; inf: ``max_batch`` limits
    # prompts and sequences together
    token_budget: Any
    # [V, 2] whether passes visit the station, of prompts and of decoding sequences. Both kinds end
    # at a station that both visit.
    visited: Any
    predecessor_count: Any  # [V, 2] number of preceding stations that these passes visit
    next_offset: Any  # [V + 1] offsets into ``next_stations``
    next_stations: Any  # following stations
    first_replica: Any  # [V + 1] first replica of each station
    station_of: Any  # [Q] station of each replica
    shard_offset: Any  # [Q + 1] offsets into ``shard_device``
    shard_device: Any  # devices of each replica, one per shard
    device_offset: Any  # [D + 1] offsets into ``device_replicas``
    device_replicas: Any  # replicas on each device
    compute: Any  # [V] share of a device's arithmetic while the station runs
    bandwidth: Any  # [V] share of a device's memory bandwidth while it runs
    interference: Any  # [V, V] measured slowdown of v by a running u; empty: by shares
    service_offset: Any  # [S + 1] first station of each service; services share devices only


class Passes(NamedTuple):
    """The requests ``[N]`` of a replay in order of arrival, and how many passes each makes."""

    arrival_s: Any
    isl: Any
    passes: Any  # [N] of the chunks of the prompt, then one per decoded token
    chunks: Any  # [N] passes of the prompt: 1 if it is computed at once, 0 if only tokens decode
    service: Any  # [N]
    next_of_service: Any  # [N] next request of the same service; -1: last
    first_of_service: Any  # [S] first request of each service; -1: none
    aligned: bool  # whether a request uses the replica of the same number at every station
    # Whether waiting requests are sorted by ``key``; else first come, first served.
    by_key: bool = False
    key: Any = np.zeros(1)  # [N] smallest first


class ReplayState(NamedTuple):
    """State of a replay: V stations, N requests, Q replicas, D devices, S services."""

    next_in_list: Any  # [V, N] next request in the same queue or batch; -1: last
    queue_head: Any  # [Q] first waiting request of each queue; ``queue_tail`` is the last one
    queue_tail: Any
    waiting: Any
    predecessors_left: Any  # [N, V] preceding stations not yet done
    stations_left: Any  # [N] stations of the pass not yet done
    passes_done: Any  # [N] finished passes
    own_number: Any  # [V, N] request's replica of a sticky station, counted within the station
    admitted: Any  # [Q] admitted requests
    kv_tokens: Any  # [Q] reserved KV-cache tokens
    batch_head: Any  # [Q] first request of the running batch; -1: idle
    work_left_s: Any  # [Q] remaining seconds without slowdown
    work_updated_s: Any  # [Q] time of the last update of ``work_left_s``
    slowdown: Any  # [Q] current slowdown factor
    end_tree: Any  # [2 W] tournament tree of the end times of replicas
    idle_replicas: Any  # [Q] stack of idle replicas of each station
    idle_count: Any  # [V] length of each stack
    compute: Any  # [D] sum of the running shares
    bandwidth: Any
    running_shards: Any  # [D, V] running shards by station; empty without measured slowdowns
    link_free_s: Any  # [D] time at which the device's link is free
    transfer_heap: Any  # [F, 2] heap of transfers: arrival time, slot
    transfers: Any  # [F, 2] by slot: station, first request of the batch
    free_slots: Any  # stack of free slots
    count: Any  # [4] transfers, free slots, visits, requests in ``next_pass``
    next_pass: Any  # [N] requests about to begin their next pass
    queues_to_check: Any  # stack of queues whose requests may be able to start now
    check_count: Any  # [1] length of ``queues_to_check``
    finish: Any  # [N] completion time; NaN: never
    prefilled: Any  # [N] time at which the prompt was done and decoding began; NaN: never
    next_admitted: Any  # [S] next request of each service to admit; -1: none


def initial_state(graph: Graph, requests: Passes) -> ReplayState:
    """Return the state of a replay before the first arrival."""
    devices = graph.device_offset.size - 1
    n, stations, replicas = requests.arrival_s.size, graph.max_batch.size, graph.station_of.size
    leaves = 1 << (max(2, replicas) - 1).bit_length()  # a power of two for the tournament tree
    flights = 2 * n + 16  # places for transfers under way, with a margin
    first = graph.first_replica
    idle = [np.arange(first[v], first[v + 1])[::-1] for v in range(stations)]  # lowest on top
    return ReplayState(
        next_in_list=np.full((stations, n), -1, np.int64),
        queue_head=np.full(replicas, -1, np.int64),
        queue_tail=np.full(replicas, -1, np.int64),
        waiting=np.zeros(replicas, np.int64),
        predecessors_left=np.zeros((n, stations), np.int64),
        stations_left=np.zeros(n, np.int64),
        passes_done=np.zeros(n, np.int64),
        own_number=np.zeros((stations, n), np.int64),
        admitted=np.zeros(replicas, np.int64),
        kv_tokens=np.zeros(replicas),
        batch_head=np.full(replicas, -1, np.int64),
        work_left_s=np.zeros(replicas),
        work_updated_s=np.zeros(replicas),
        slowdown=np.ones(replicas),
        end_tree=np.full(2 * leaves, np.inf),
        idle_replicas=np.concatenate(idle),
        idle_count=np.diff(first),
        compute=np.zeros(devices),
        bandwidth=np.zeros(devices),
        running_shards=np.zeros((devices, graph.interference.shape[0])),
        link_free_s=np.zeros(devices),
        transfer_heap=np.zeros((flights, 2)),
        transfers=np.zeros((flights, 2), np.int64),
        free_slots=np.arange(flights),
        count=np.array([0, flights, 0, 0]),
        next_pass=np.zeros(n, np.int64),
        queues_to_check=np.zeros(4 * replicas + 4 * stations + 16, np.int64),
        check_count=np.zeros(1, np.int64),
        finish=np.full(n, np.nan),
        prefilled=np.full(n, np.nan),
        next_admitted=requests.first_of_service.copy(),
    )
