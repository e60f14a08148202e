"""Write the queue and the durations of runs for /metrics."""

from collections.abc import Iterator

from planner.models import Run
from planner.outputs.prometheus_text import family, labels
from planner.selectors.queue_statistics import UnfinishedRuns, WorkStatistics

WAITING = "waiting"  # label of the state that the database calls pending


def exposition(work: WorkStatistics) -> str:
    """Return the figures in the Prometheus text format."""
    return "".join(f"{line}\n" for line in _lines(work))


def _lines(work: WorkStatistics) -> Iterator[str]:
    """Yield the lines on unfinished runs, on ended runs, and on how long runs took."""
    yield from family("headroom_runs_going", "Runs that wait for a worker, or run.")
    for going in work.going:
        yield f"headroom_runs_going{labels(_run_labels(going))} {going.runs}"
    yield from family(
        "headroom_runs_oldest_seconds", "Since the oldest one was requested or started."
    )
    for going in work.going:
        yield f"headroom_runs_oldest_seconds{labels(_run_labels(going))} {going.oldest_s:.3f}"
    yield from family(
        "headroom_runs_ended", "Stored runs with this end state, without removed runs."
    )
    for ended in work.ended:
        sample_labels = {
            "workspace": ended.workspace,
            "kind": ended.kind,
            "state": ended.state,
            "reason": ended.reason,
        }
        yield f"headroom_runs_ended{labels(sample_labels)} {ended.runs}"
    yield from family(
        "headroom_run_seconds",
        "How long the newest completed runs took: median and longest.",
        kind="summary",
    )
    for took in work.took:
        for quantile, seconds in (("0.5", took.median_s), ("1", took.longest_s)):
            sample_labels = {"workspace": took.workspace, "kind": took.kind, "quantile": quantile}
            yield f"headroom_run_seconds{labels(sample_labels)} {seconds:.3f}"


def _run_labels(going: UnfinishedRuns) -> dict[str, str]:
    """Return the labels of runs that wait or run."""
    state = WAITING if going.state == Run.State.PENDING else going.state
    return {"workspace": going.workspace, "kind": going.kind, "state": state}
