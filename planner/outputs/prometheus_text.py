"""Write the text that Prometheus scrapes (exposition format 0.0.4), line by line.

Besides the lines of a metric, it has the metrics of runs, sign-ins and refused requests.
"""

from collections.abc import Iterator, Mapping

from planner.models import Run
from planner.selectors.queue_statistics import UnfinishedRuns, WorkStatistics

WAITING = "waiting"  # label of the state that the database calls pending


def family(name: str, help_text: str, kind: str = "gauge") -> Iterator[str]:
    """Yield the HELP and TYPE lines of a metric; ``kind`` summary has quantiles."""
    yield f"# HELP {name} {help_text}"
    yield f"# TYPE {name} {kind}"


def labels(of: Mapping[str, str]) -> str:
    """Return the labels of a sample in braces."""
    return "{" + ",".join(f'{name}="{_escaped(text)}"' for name, text in of.items()) + "}"


def _escaped(text: str) -> str:
    """Escape a label value as the exposition format requires."""
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def queue_exposition(work: WorkStatistics) -> str:
    """Return the queue and the durations of runs in the Prometheus text format."""
    return "".join(f"{line}\n" for line in _queue_lines(work))


def _queue_lines(work: WorkStatistics) -> Iterator[str]:
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


def security_exposition(events: Mapping[str, int], refusals: Mapping[tuple[int, str], int]) -> str:
    """Return the counters of security events and of refused requests in Prometheus text format.

    ``events`` are counts by event of the audit log. ``refusals`` are counts by HTTP status and by
    caller.
    """
    return "".join(f"{line}\n" for line in _security_lines(events, refusals))


def _security_lines(
    events: Mapping[str, int], refusals: Mapping[tuple[int, str], int]
) -> Iterator[str]:
    """Yield the lines, metric by metric."""
    yield from family(
        "headroom_security_events_total", "What the audit log tells of signing in.", kind="counter"
    )
    for event, count in events.items():
        yield f"headroom_security_events_total{labels({'event': event})} {count}"
    yield from family(
        "headroom_refused_total",
        "Refused requests, by status. 404 includes rows of another workspace.",
        kind="counter",
    )
    for (status, who), count in refusals.items():
        yield f"headroom_refused_total{labels({'status': str(status), 'who': who})} {count}"
