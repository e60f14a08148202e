"""Instances stepped one iteration at a time, in plain Python: slow and meant to be obviously right.

Shares no code with the engine. Every request carries its own counts; every iteration touches every
request of its batch; routing looks at every request of every instance.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from tests.simulation.builders import linear_seconds


def linear_s(profile, contexts, pieces):
    """Seconds of an iteration, and whether it is inside the measured range, by C1. ``contexts``:
    KV tokens each decode attends to; ``pieces``: (tokens before it, tokens) of prompt chunks."""
    prefill = sum(take for _, take in pieces)
    return linear_seconds(profile, len(contexts), prefill), True


def interpolated(xs, values, x):
    """Constant before the first knot, linear between and beyond."""
    if len(xs) == 1 or x <= xs[0]:
        return values[0]
    i = max(i for i in range(len(xs) - 1) if xs[i] <= x)
    return values[i] + (x - xs[i]) * (values[i + 1] - values[i]) / (xs[i + 1] - xs[i])


@dataclass
class GridTiming:
    """The same from the parts of a GRID curve, by its definition."""

    dense: object
    decode: object
    prefill: object
    beside: object = None
    overlap_s: float = 0.0
    mixed: float = 0.0

    def __call__(self, profile, contexts, pieces):
        b, c = len(contexts), sum(contexts)
        p = sum(take for _, take in pieces)
        a = sum(take * (before + take / 2) for before, take in pieces)
        if b and p and self.mixed:
            read = [(self.prefill, p + b, a / p)]
            seconds = self.mixed * self.value(*read[0])
        else:
            read = [(self.dense, b + p, 0.0)]
            decode = self.beside if p and self.beside else self.decode
            read += [(decode, b, c / b)] if b else []
            read += [(self.prefill, p, a / p)] if p else []
            seconds = sum(self.value(*each) for each in read) - (self.overlap_s if b and p else 0)
        return max(seconds, 0.0), all(self.inside(*each) for each in read)

    @staticmethod
    def value(part, x, y):
        return interpolated(part.x, [interpolated(part.y, row, y) for row in part.seconds], x)

    @staticmethod
    def inside(part, x, y):
        if part.seconds.size == 1:
            return True
        low, high = (np.interp(x, part.x, limit) for limit in (part.low, part.high))
        return part.x[0] <= x <= part.x[-1] and low <= y <= high


@dataclass(eq=False)
class Job:
    """One request; equal to itself alone."""

    arrival: float
    isl: int
    osl: int
    home: int = 0
    given: int = 0  # tokens given out so far
    to_prefill: int = 0  # of the admission now running
    kv: int = 0
    first: float | None = None
    last: float | None = None
    region: int = -1
    running: bool = False
    carried: bool = False  # its KV cache came from a prefill instance
    tier: int = 0
    blocks: tuple = ()  # ids of its prompt's blocks
    index: int = 0
    held: list = field(default_factory=list)  # blocks it shares
    cached: int = 0  # tokens of its prompt that were found
    sender: object = None
    lost: bool = False
    preempted: bool = False


@dataclass(eq=False)
class Instance:
    profile: object
    region: int = 0
    timing: Callable = linear_s
    batching: str = "chunked"
    role: str = "both"
    tiers: tuple[int, ...] | None = None  # None: takes all
    pool: int = 0
    slow: float = 1.0
    alive: bool = True
    link: object = None
    link_free: float = 0.0
    handed: list = field(default_factory=list)  # (job, when its KV cache is there)
    queue: list[Job] = field(default_factory=list)
    batch: list[Job] = field(default_factory=list)  # in order of admission
    chunks: list[tuple[Job, int]] = field(default_factory=list)
    decoding: list[Job] = field(default_factory=list)
    next_event: float = math.inf
    in_iteration: bool = False
    iterations: int = 0
    shared: dict = field(default_factory=lambda: {"free": 0.0})  # the pool's link
    preemptions: int = 0
    outside: int = 0
    held: float = 0.0  # KV token-seconds
    tokens: list[tuple[float, int]] = field(default_factory=list)  # given out, and when
    prefill_s: float = 0.0
    decode_s: float = 0.0
    sending: list[Job] = field(default_factory=list)
    block: int = 0  # tokens of a cached block; 0: no prefix cache
    idle: list[int] = field(default_factory=list)  # blocks nobody holds, the oldest first
    hit: int = 0
    looked_up: int = 0
    evicted: int = 0
    scheduler: str = "fcfs"
    limits: tuple = (math.inf,)  # TTFT of each tier, the strictest first
    tau_n: float = 0.0
    tau_p: float = 0.0
    when_full: str = "preempt"
    slot: int = 0
    chunk: int = 0  # most prompt tokens of an iteration; 0: no limit, and it takes no prompts over
    taking: bool = True  # new requests
    goes_to: int | None = None  # pool whose role it takes once it is empty

    @property
    def empty(self) -> bool:
        return not (self.in_iteration or self.batch or self.queue or self.sending)

    @property
    def kv(self) -> int:
        jobs = self.batch + self.sending
        shared = {block for job in jobs for block in job.held}
        return sum(job.kv - self.block * len(job.held) for job in jobs) + self.block * len(shared)

    @property
    def pending(self) -> int:
        total = 0
        for job in self.queue + self.batch:
            total += 1
            if job.running and job.to_prefill:
                total += job.isl + job.given - job.cached
            elif not job.running and not job.carried:
                total += job.isl + job.given
        return total

    def found(self, job: Job) -> int:
        """Leading blocks of the prompt that are here, leaving a token to compute."""
        if not self.block:
            return 0
        here = {b for other in self.batch + self.sending for b in other.held} | set(self.idle)
        most = min(job.isl, job.isl + job.given - 1) // self.block  # whole ones
        n = 0
        while n < min(most, len(job.blocks)) and job.blocks[n] in here:
            n += 1
        return n

    def keep(self, job: Job, tokens: int) -> None:
        if self.block:
            for block in job.blocks[len(job.held) : min(job.isl, tokens) // self.block]:
                if block in self.idle:
                    self.idle.remove(block)
                job.held.append(block)

    def release(self, job: Job) -> None:
        """Of a job that has left batch and link."""
        held = {b for other in self.batch + self.sending for b in other.held}
        self.idle += [block for block in reversed(job.held) if block not in held]
        job.held, job.kv = [], 0

    def evict(self) -> None:
        while self.idle and self.kv + self.block * len(self.idle) > self.profile.kv_capacity_tokens:
            self.idle.pop(0)
            self.evicted += self.block

    def first(self, now: float) -> Job:
        """The waiting request that the scheduler takes next."""
        if self.scheduler == "fcfs":
            begun = [job for job in self.queue if job.carried or job.first is not None]
            return begun[0] if self.chunk and begun else self.queue[0]

        def standing(place):
            job = self.queue[place]
            left = job.arrival + self.limits[job.tier] - now
            if job.preempted:
                return (-1, 0, job.tier, place)
            if self.scheduler == "edf":
                return (0, left, job.tier, place)
            if self.scheduler == "pf":
                return (0, 0, job.tier, place)
            if left < -self.tau_n:
                return (0, left, job.tier, place)
            if 0 <= left <= self.tau_p:
                return (1, 0, job.tier, place)
            return (2, 0, job.tier, place) if left > self.tau_p else (3, left, job.tier, place)

        return self.queue[min(range(len(self.queue)), key=standing)]

    @property
    def remaining(self) -> int:
        total = 0
        for job in self.queue + self.batch:
            total += 1 if self.role == "prefill" else job.osl - job.given
            if job.running:
                total += job.to_prefill
            elif not job.carried:
                total += job.isl + job.given
        return total

    def enqueue(self, job: Job, now: float) -> None:
        job.region = self.region
        self.queue.append(job)
        if not self.in_iteration:
            self.next_event = now

    def event(self, now: float) -> None:
        if not self.taking and self.goes_to is None:  # its switch has ended
            self.taking, self.next_event = True, math.inf
            return
        if self.in_iteration:
            self.finish(now)
        self.begin(now)

    def finish(self, now: float) -> None:
        self.in_iteration = False
        for job in self.decoding:
            job.given += 1
        for job, take in self.chunks:
            job.to_prefill -= take
            if job.to_prefill == 0:
                job.given += 1
                if job.first is None:
                    job.first = now
                if self.role == "prefill" and job.given < job.osl:
                    self.hand_over(job, now)
        prompts = [job for job, _ in self.chunks]
        done = [job for job in self.batch if job.given == job.osl]
        done.sort(key=lambda j: (1, prompts.index(j)) if j in prompts else (0, j.index))
        for job in done:
            job.last = now
            self.batch.remove(job)
            self.release(job)

    def hand_over(self, job: Job, now: float) -> None:
        self.batch.remove(job)
        self.sending.append(job)
        job.kv -= 1
        job.running, job.carried, job.sender = False, True, self
        size = job.isl * self.link.kv_bytes_per_token
        start = max(now, self.link_free, self.shared["free"])
        self.link_free = start + size / self.link.bytes_s
        self.shared["free"] = start + size / self.link.shared_bytes_s
        self.handed.append((job, max(self.link_free, self.shared["free"])))

    def through(self, job: Job, now: float) -> None:
        self.sending.remove(job)
        self.release(job)
        if not self.in_iteration and self.queue:
            self.next_event = now

    def begin(self, now: float) -> None:
        profile = self.profile
        capacity = profile.kv_capacity_tokens
        self.decoding = [job for job in self.batch if job.to_prefill == 0]
        preempted = False
        while self.kv + len(self.decoding) > capacity:
            victim = self.batch.pop()
            if victim.to_prefill:
                self.keep(victim, victim.isl + victim.given - victim.to_prefill)
            self.release(victim)
            victim.to_prefill = victim.cached = 0
            victim.running = victim.carried = False
            if self.when_full == "fail":
                victim.lost, victim.first = True, None
            else:
                victim.preempted = True
                self.queue.insert(0, victim)
                self.preemptions += 1
            self.decoding = [job for job in self.batch if job.to_prefill == 0]
            preempted = True
        for job in self.decoding:
            job.kv += 1
        self.evict()

        undivided = self.batching != "chunked"
        budget = profile.max_batch_tokens - (0 if undivided else len(self.decoding))
        self.chunks = []
        prompts = self.chunk or math.inf  # prompt tokens left in this iteration
        for job in self.batch:
            if job.to_prefill and budget:
                take = min(budget, job.to_prefill, prompts)
                self.chunks.append((job, take))
                budget -= take
                prompts -= take
                if take == job.to_prefill:
                    self.keep(job, job.isl)
        most = min(profile.max_batch, profile.max_batch_tokens)
        while budget > 0 and not preempted and len(self.batch) < most and self.queue:
            job = self.first(now)
            if not prompts and not job.carried:
                break
            prompt = job.isl + job.given
            spare = int(0.01 * capacity) if self.batch else 0
            cached = job.blocks[: self.found(job)]
            held = {b for other in self.batch + self.sending for b in other.held}
            there = self.block * sum(block in held for block in cached)
            if self.kv + prompt + 1 - there + spare > capacity:
                break
            missing = prompt - len(cached) * self.block
            if undivided and self.chunks and not job.carried and missing > budget:
                break
            self.queue.remove(job)
            job.preempted = False
            job.running, job.kv, job.cached = True, prompt + 1, self.block * len(cached)
            job.to_prefill = missing
            job.held = list(cached)
            self.idle = [block for block in self.idle if block not in cached]
            self.batch.append(job)
            if job.carried:
                job.to_prefill = 0
                self.decoding.append(job)
                budget -= 1
                continue
            self.evict()
            if self.block:
                self.hit += job.cached
                self.looked_up += prompt
            take = job.to_prefill if undivided else min(budget, job.to_prefill, prompts)
            self.chunks.append((job, take))
            budget -= take
            prompts -= take
            if take == job.to_prefill:
                self.keep(job, job.isl)
        if undivided and self.chunks and (self.batching == "alone" or len(self.decoding) > budget):
            for job in self.decoding:  # they sit this iteration out
                job.kv -= 1
            self.decoding = []

        if not self.batch:
            self.next_event = math.inf
            return
        prefill = sum(take for _, take in self.chunks)
        contexts = [job.isl + job.given for job in self.decoding]
        pieces = [(job.isl + job.given - job.to_prefill, take) for job, take in self.chunks]
        length, measured = self.timing(profile, contexts, pieces)
        length *= self.slow
        self.outside += not measured
        self.held += self.kv * length
        produced = len(self.decoding) + sum(job.to_prefill == take for job, take in self.chunks)
        self.tokens.append((now + length, produced))
        if prefill:
            self.prefill_s += length
        else:
            self.decode_s += length
        self.in_iteration = True
        self.iterations += 1
        self.next_event = now + length

    def lose(self) -> list[Job]:
        """It is gone; its requests, with the tokens they have, in the order they go elsewhere."""
        displaced = self.batch + self.queue
        for job in displaced:
            job.kv = job.to_prefill = 0
            job.running = job.carried = False
            job.held, job.cached, job.preempted = [], 0, False
        for job in self.sending:  # what is on its way arrives
            job.held, job.sender = [], None
        self.batch, self.queue, self.decoding = [], [], []
        self.sending, self.idle = [], []
        self.alive, self.in_iteration, self.next_event = False, False, math.inf
        return displaced


def serve(
    instances: list[Instance],
    jobs: list[Job],
    latency=((0.0,),),
    threshold=0.7,
    faults=(),
    router="least-remaining",
    sees="queues",
    shares=None,
    endpoint="least-memory",
    moves=(),
    switch_s=0.0,
    overflow_s=math.inf,
    made=(),
) -> None:
    """Serve ``jobs`` (in order of arrival) to the end, routed as methods.md E4 says. ``faults``, in
    order of time: (time, n, factor), the n-th instance alive is slow by a factor, or lost at 0.
    ``shares`` [home][region] of tokens are kept by owing each region what it has not got. A way of
    infinite ``latency`` is closed: nobody goes there, and its share goes by the others. ``moves``,
    in order of time: (time, pool, other pool, instances) that switch, each within ``switch_s`` of
    its last work; ``made[pool]()`` is a new instance of a pool."""
    router_queue: list[Job] = []
    regions = range(len(latency))
    owed = [[0.0 for _ in regions] for _ in regions]
    is_open = [[wire < math.inf for wire in ways] for ways in latency]
    if shares and not all(map(all, is_open)):
        kept = [[row[r] * is_open[h][r] for r in regions] for h, row in enumerate(shares)]
        shares = [[x / sum(row) if sum(row) else 0.0 for x in row] for row in kept]
    for index, job in enumerate(jobs):
        job.index = index

    def eligible(job, region):
        return [
            i
            for i in instances
            if i.region == region
            and i.role != "decode"
            and i.alive
            and i.taking
            and (i.tiers is None or job.tier in i.tiers)
        ]

    def best(job, region):
        def load(i):
            if router != "prefix-aware":
                return (i.remaining,)
            hit = i.found(job) * i.block
            return i.pending - hit, i.remaining - hit

        pools = {i.pool: None for i in eligible(job, region)}
        if endpoint == "together" or len(pools) < 2 or router == "prefix-aware":
            return min(eligible(job, region), key=load, default=None)

        def standing(p):
            here = [i for i in eligible(job, region) if i.pool == p]
            chosen = min(here, key=load)
            if sees == "memory" or has_room(chosen, job):
                return 0, used(here), chosen
            return 1, chosen.pending * token_s(chosen), chosen

        return min((standing(p) for p in pools), key=lambda state: state[:2])[2]

    def used(here):
        return sum(i.kv for i in here) / sum(i.profile.kv_capacity_tokens for i in here)

    def utilisation(job, region):
        return used(eligible(job, region))

    def decoders(region):
        return [i for i in instances if i.region == region and i.role == "decode" and i.taking]

    def is_below(job, region):
        apart = best(job, region).role == "prefill"
        return utilisation(job, region) < threshold and (
            not apart or used(decoders(region)) < threshold
        )

    def has_room(i, job):
        most = min(i.profile.max_batch, i.profile.max_batch_tokens)
        waiting = sum(j.isl + j.given for j in i.queue)
        return (
            i.pending < i.profile.max_batch_tokens
            and len(i.queue) + len(i.batch) < most
            and i.kv + waiting + job.isl + job.given + 1 <= i.profile.kv_capacity_tokens
        )

    def takes(job, region):
        if not has_room(best(job, region), job):
            return False
        if best(job, region).role != "prefill":
            return True
        held = {id(i): i.kv + sum(j.isl + j.given for j in i.queue) for i in decoders(region)}
        return has_room(min(decoders(region), key=lambda i: held[id(i)]), job)

    def seconds(job, region):
        i = best(job, region)
        return latency[job.home][region] + i.pending * token_s(i)

    def token_s(i):
        tokens = min(i.profile.max_batch_tokens, 2048)
        return i.timing(i.profile, [], [(0, tokens)])[0] / tokens

    def destination(job):
        """The region it goes to."""
        if sees == "memory":
            return by_memory(job, lambda r: True)
        if shares and sum(shares[job.home]):
            owed_here = owed[job.home]
            for r in regions:
                owed_here[r] += shares[job.home][r] * job.isl
            planned = max((r for r in regions if shares[job.home][r]), key=lambda r: owed_here[r])
            owed_here[planned] -= job.isl
            if best(job, planned) is not None and takes(job, planned):
                return planned
        region = by_memory(job, lambda r: takes(job, r))
        if takes(job, region):
            return region
        order = in_order(job)
        at_once = [r for r in order if takes(job, r)]
        return min(at_once or order, key=lambda r: seconds(job, r))

    def in_order(job):
        order = sorted(regions, key=lambda r: (r != job.home, latency[job.home][r]))
        return [r for r in order if is_open[job.home][r] and best(job, r) is not None]

    def by_memory(job, which):
        order = in_order(job)
        under = [r for r in order if is_below(job, r) and which(r)]
        return under[0] if under else min(order, key=lambda r: utilisation(job, r))

    def route(job, now):
        if len(latency) == 1 and best(job, 0) is None:
            router_queue.append(job)
            return
        region = destination(job) if len(latency) > 1 else 0
        wire = latency[job.home][region]
        if wire > 0:
            on_wire.append((now + wire, job.index, region))
        else:
            taker(best(job, region), job).enqueue(job, now)

    def taker(i, job):
        """The decode instance that computes a prompt sooner than the prefill instance, or that."""
        ahead = i.pending * token_s(i)
        if ahead <= overflow_s or i.role != "prefill":
            return i
        chosen, soonest = i, ahead + (job.isl + job.given) * token_s(i)
        for d in decoders(i.region):
            chunk = min(d.chunk, d.profile.max_batch_tokens - len(d.decoding))
            if chunk < 1 or not has_room(d, job):
                continue
            tokens = d.pending - len(d.batch) - len(d.queue) + job.isl + job.given
            contexts = [j.isl + j.given for j in d.decoding]
            seconds = math.ceil(tokens / chunk) * d.timing(d.profile, contexts, [(0, chunk)])[0]
            if seconds < soonest:
                chosen, soonest = d, seconds
        return chosen

    def to_decode(job, region, now):
        held = {id(i): i.kv + sum(j.isl + j.given for j in i.queue) for i in decoders(region)}
        if not held:
            router_queue.append(job)
            return
        min(decoders(region), key=lambda i: held[id(i)]).enqueue(job, now)

    def move(p, q, count):
        for _ in range(count):
            ready = [i for i in instances if i.pool == p and i.alive and i.taking]
            opening = [i for i in instances if i.pool == p and i.alive and not i.taking]
            coming_here = [i for i in instances if i.alive and i.goes_to == p]
            kept = len(ready) + len([i for i in opening if i.goes_to is None]) + len(coming_here)
            if not ready or kept < 2:
                return
            leaving = min(ready, key=lambda i: i.remaining)
            leaving.taking, leaving.goes_to = False, q
            enter(now)

    def enter(now):
        """Switch what is empty: its GPUs go on in the lowest free place of the other pool."""
        for left in [i for i in instances if i.alive and i.goes_to is not None and i.empty]:
            left.alive, left.next_event = False, math.inf
            new = made[left.goes_to]()
            new.pool, new.taking, new.next_event = left.goes_to, False, now + switch_s
            taken = {i.slot for i in instances if i.pool == new.pool and i.alive}
            new.slot = min(set(range(len(taken) + 1)) - taken)
            instances.append(new)
            instances.sort(key=lambda i: (i.pool, i.slot))

    coming, faults, moves = list(jobs), list(faults), list(moves)
    on_wire: list[tuple[float, int, int]] = []
    while True:
        arrival = coming[0].arrival if coming else math.inf
        delivery = min(on_wire)[0] if on_wire else math.inf
        event = min(i.next_event for i in instances)
        fault = faults[0][0] if faults else math.inf
        decided = moves[0][0] if moves else math.inf
        now = min(arrival, delivery, event, fault, decided)
        if now == math.inf:
            return
        if decided == now:
            move(*moves.pop(0)[1:])
        elif fault == now:
            _, n, factor = faults.pop(0)
            struck = [i for i in instances if i.alive][n]
            if factor:
                struck.slow = factor
            else:
                for job in struck.lose():
                    route(job, now)
        elif arrival == now:
            route(coming.pop(0), now)
        elif delivery == now:
            top = min(on_wire)
            on_wire.remove(top)
            job = jobs[top[1]]
            if job.carried:
                if job.sender:
                    job.sender.through(job, now)
                to_decode(job, top[2], now)
            else:
                taker(best(job, top[2]), job).enqueue(job, now)
        else:
            stepping = next(i for i in instances if i.next_event == now)
            stepping.event(now)
            on_wire += [(when, job.index, stepping.region) for job, when in stepping.handed]
            stepping.handed.clear()
            waiting, router_queue[:] = list(router_queue), []
            for job in waiting:
                if job.carried:
                    to_decode(job, 0, now)
                else:
                    route(job, now)
        enter(now)
