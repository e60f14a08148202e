"""A week of requests replayed as a stream, whole and in parts side by side."""

import hashlib
import json
import multiprocessing
import resource
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, fields
from typing import Any

import numpy as np

from bench.scale.week import WEEK_S, fleet, week
from simulation.engine.compilation import warm_up
from simulation.engine.stream_run import simulate_stream
from simulation.policies.reactive import UnifiedReactive
from simulation.stream.parts import Part, merge_parts, parts_of
from simulation.stream.result import StreamResult, summarise_stream

START_S = 600.0  # at most, until workers are ready


@dataclass(frozen=True, slots=True)
class Told:
    """The result of one part, and what its process took."""

    result: StreamResult
    rss_mb: float
    cpu_seconds: float


@dataclass(frozen=True, slots=True)
class Job:
    """Replays the requests of a part's models; endpoints scale by themselves."""

    requests: int

    def __call__(self, part: Part) -> Told:
        stream = week(self.requests).stream(part.fleet.models)
        began = time.process_time()
        result = simulate_stream(stream, part.fleet, UnifiedReactive(), duration_s=WEEK_S)
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        return Told(result, peak, time.process_time() - began)


@dataclass(frozen=True, slots=True)
class ReplayFigures:
    """Figures of a replay by one number of workers."""

    seconds: float  # with the start of every worker
    ready_seconds: float  # from when all were ready to take a part, as a product's workers are
    rss_mb: float  # of all processes together
    cpu_seconds: float
    digest: str
    summary: dict[str, Any]


def _ready(all_ready: Any) -> None:
    """Load the engine, as a worker does before its first run, and wait for the others."""
    warm_up()
    all_ready.wait(START_S)


def replay(requests: int, workers: int) -> ReplayFigures:
    """Replay the week in as many parts as workers, each in its own process."""
    full_fleet = fleet(requests)
    parts = parts_of(full_fleet, workers)
    began = time.perf_counter()
    context = multiprocessing.get_context("spawn")
    all_ready = context.Barrier(len(parts) + 1)
    with ProcessPoolExecutor(
        len(parts), mp_context=context, initializer=_ready, initargs=(all_ready,)
    ) as pool:
        jobs = [pool.submit(Job(requests), part) for part in parts]
        all_ready.wait(START_S)
        ready = time.perf_counter()
        answers = [job.result() for job in jobs]
    result = merge_parts(full_fleet, parts, [part.result for part in answers])
    ended = time.perf_counter()
    here = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return ReplayFigures(
        ended - began,
        ended - ready,
        here + sum(part.rss_mb for part in answers),
        sum(part.cpu_seconds for part in answers),
        digest(result),
        asdict(summarise_stream(result)),
    )


def digest(result: StreamResult) -> str:
    """Return a digest of every byte of a result except its wall time."""
    sha = hashlib.sha256()
    for table in (result.series, result.totals, result.after, result.tally):
        for field in fields(table):
            sha.update(np.asarray(getattr(table, field.name)).tobytes())
    summary = asdict(summarise_stream(result)) | {"wall_seconds": 0.0}
    sha.update(json.dumps(summary, sort_keys=True).encode())
    return sha.hexdigest()
