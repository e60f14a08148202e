"""Write the counts of sign-ins and refused requests for /metrics."""

from collections.abc import Iterator, Mapping

from planner.outputs.prometheus_text import family, labels


def exposition(events: Mapping[str, int], refusals: Mapping[tuple[int, str], int]) -> str:
    """Return the counters of security events and of refused requests in Prometheus text format.

    ``events`` are counts by event of the audit log. ``refusals`` are counts by HTTP status and by
    caller.
    """
    return "".join(f"{line}\n" for line in _lines(events, refusals))


def _lines(events: Mapping[str, int], refusals: Mapping[tuple[int, str], int]) -> Iterator[str]:
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
