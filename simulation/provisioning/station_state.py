"""What stations are made of, and what of them changes while requests pass through."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from simulation.arrays import FloatArray


class Graph(NamedTuple):
    """Stations ``[V]`` and what comes after each; replicas ``[Q]`` and shards in their order."""

    curves: Any  # numbers of all curves in a row
    curve: Any  # [V + 1] where each begins
    batch: Any  # [V] most requests of a batch
    sticky: Any  # [V]
    places: Any  # [V] requests that a sticky replica holds at once
    room: Any  # [Q] tokens of KV cache that a sticky one holds
    hop_s: Any  # [V] latency of handing on
    row_s: Any  # [V] seconds on the sender's link per token of a prompt, or per sequence
    before: Any  # [V] how many stations come before it
    child: Any  # [V + 1] and
    children: Any  # what comes after each
    first: Any  # [V + 1] its replicas
    station: Any  # [Q]
    shard: Any  # [Q + 1] and
    device: Any  # the devices of a replica
    home: Any  # [D + 1] and
    housed: Any  # the replicas of a device
    compute: Any  # [V] share of a device's arithmetic while it runs
    bandwidth: Any  # [V]
    beside: Any  # [V, V] measured: what u's running adds to v's time; empty: by shares


class Passes(NamedTuple):
    """Requests ``[N]`` in the order they come."""

    arrival_s: Any
    isl: Any
    passes: Any  # 1, or tokens that are decoded
    decodes: bool
    aligned: bool  # a request's replica has the same number at every station
    ordered: bool = False  # else they wait as they come
    key: Any = np.zeros(1)  # [N] who has less goes first


class Run(NamedTuple):
    """Everything that changes."""

    after: Any  # [V, N] who waits behind, or is in the same batch
    head: Any  # [queues]
    tail: Any
    waiting: Any
    need: Any  # [N, V] stations before that are not done
    left: Any  # [N] stations of the pass that are not done
    done: Any  # [N] passes
    own: Any  # [V, N] replica of a sticky station
    held: Any  # [Q] requests
    tokens: Any  # [Q] of KV cache
    busy: Any  # [Q] first of its batch, -1: idle
    work: Any  # [Q] seconds alone that are left
    since: Any  # [Q]
    slow: Any  # [Q]
    tree: Any  # [2 W] earliest end of replicas
    idle: Any  # [Q] of each station a stack
    idles: Any  # [V]
    compute: Any  # [D] in use
    bandwidth: Any
    active: Any  # [D, V] empty without measured slowdowns
    link_free: Any  # [D]
    flights: Any  # [F, 2] heap: when, slot
    flight: Any  # [F, 2] station, first of the batch
    free: Any  # slots
    count: Any  # [4] flights, free slots, visits, passes that begin
    again: Any  # [N] requests whose next pass begins
    kicked: Any  # queues to look at
    kicks: Any  # [1]
    finish: Any  # [N]


def at_rest(g: Graph, p: Passes, devices: int, finish: FloatArray) -> Run:
    """Nobody has come; when each is done goes into ``finish``."""
    n, stations, replicas = p.arrival_s.size, g.batch.size, g.station.size
    leaves = 1 << (max(2, replicas) - 1).bit_length()
    flights = 2 * n + 16
    idle = [np.arange(g.first[v + 1] - 1, g.first[v] - 1, -1) for v in range(stations)]
    finish[:] = np.nan
    return Run(
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
        idles=np.diff(g.first),
        compute=np.zeros(devices),
        bandwidth=np.zeros(devices),
        active=np.zeros((devices, g.beside.shape[0])),
        link_free=np.zeros(devices),
        flights=np.zeros((flights, 2)),
        flight=np.zeros((flights, 2), np.int64),
        free=np.arange(flights),
        count=np.array([0, flights, 0, 0]),
        again=np.zeros(n, np.int64),
        kicked=np.zeros(4 * replicas + 4 * stations + 16, np.int64),
        kicks=np.zeros(1, np.int64),
        finish=finish,
    )
