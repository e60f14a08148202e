"""One instance, one iteration at a time, in plain Python: slow and meant to be obviously right.

Shares no code with the engine. Every request carries its own counts; every iteration touches every
request of the batch.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class Job:
    arrival: float
    isl: int
    osl: int
    low: bool = False
    given: int = 0  # tokens given out so far
    to_prefill: int = 0
    kv: int = 0
    first: float | None = None
    last: float | None = None


@dataclass
class Outcome:
    jobs: list[Job]
    iterations: int = 0
    preemptions: int = 0
    prefill_s: float = 0.0
    decode_s: float = 0.0
    kv_peak: int = 0
    busy: list[tuple[float, float]] = field(default_factory=list)


def serve(profile, requests) -> Outcome:
    """``requests``: (arrival, isl, osl[, low]) in order of arrival; every one fits in memory."""
    jobs = [Job(*request) for request in requests]
    out = Outcome(jobs)
    coming = list(jobs)
    urgent: list[Job] = []
    low: list[Job] = []
    batch: list[Job] = []  # in order of admission
    watermark = int(0.01 * profile.kv_capacity_tokens)
    max_batch = min(profile.max_batch, profile.max_batch_tokens)
    now = 0.0
    while coming or urgent or low or batch:
        if not (urgent or low or batch):
            now = max(now, coming[0].arrival)
        while coming and coming[0].arrival <= now:
            job = coming.pop(0)
            (low if job.low else urgent).append(job)

        decoding = [job for job in batch if job.to_prefill == 0]
        preempted = False
        while sum(job.kv for job in batch) + len(decoding) > profile.kv_capacity_tokens:
            victim = batch.pop()
            victim.kv = 0
            victim.to_prefill = 0
            (low if victim.low else urgent).insert(0, victim)
            decoding = [job for job in batch if job.to_prefill == 0]
            preempted = True
            out.preemptions += 1
        for job in decoding:
            job.kv += 1

        budget = profile.max_batch_tokens - len(decoding)
        chunks: list[tuple[Job, int]] = []
        for job in batch:
            if job.to_prefill and budget:
                take = min(budget, job.to_prefill)
                chunks.append((job, take))
                budget -= take
        while budget and not preempted and len(batch) < max_batch and (urgent or low):
            queue = urgent or low
            job = queue[0]
            prompt = job.isl + job.given
            used = sum(other.kv for other in batch)
            spare = watermark if batch else 0
            if used + prompt + 1 + spare > profile.kv_capacity_tokens:
                break
            queue.pop(0)
            job.kv = prompt + 1
            job.to_prefill = prompt
            batch.append(job)
            take = min(budget, prompt)
            chunks.append((job, take))
            budget -= take

        out.kv_peak = max(out.kv_peak, sum(job.kv for job in batch))
        prefill = sum(take for _, take in chunks)
        length = profile.iteration_s(len(decoding), prefill)
        if prefill:
            out.prefill_s += length
        else:
            out.decode_s += length
        now += length
        out.iterations += 1
        for job in decoding:
            job.given += 1
        for job, take in chunks:
            job.to_prefill -= take
            if job.to_prefill == 0:
                job.given += 1
                if job.first is None:
                    job.first = now
        for job in [job for job in batch if job.given == job.osl]:
            job.last = now
            batch.remove(job)
    return out
