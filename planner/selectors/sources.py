"""Read live sources and their series."""

from dataclasses import dataclass
from datetime import datetime

from django.db.models import QuerySet

from planner.inputs.live.samples import Samples
from planner.inputs.live.series_store import GrowingSeries
from planner.models import Source, SourceReading
from planner.selectors.lookup import row_by_name
from planner.storage import row_arrays


@dataclass(frozen=True, slots=True)
class Gaps:
    """The number of bins of a source's series, and of bins without a request count."""

    bins: int
    missing: int
    last: datetime | None  # end of the last bin that is known


def sources_list() -> QuerySet[Source]:
    """Return all live sources."""
    return Source.objects.select_related("owner", "trace")


def source_get(name: str) -> Source:
    """Return a source by name or id; raise NotFound with the known names."""
    return row_by_name(sources_list(), "source", name)


def readings_list(source: Source) -> QuerySet[SourceReading]:
    """Return the readings of a source, the newest first."""
    return source.readings.all()


def source_series(
    source: Source, start: datetime | None = None, end: datetime | None = None
) -> Samples:
    """Return the bins in ``[start, end)`` (None: no limit) by model, region, tier and time."""
    series = GrowingSeries(row_arrays.local_path(source.store), source.bin_s)
    return series.read(
        until_s=end.timestamp() if end else None, since_s=start.timestamp() if start else None
    )


def source_gaps(source: Source) -> Gaps:
    """Return the gaps of the source's trace as last published."""
    report = source.trace.report if source.trace is not None else {}
    series = report.get("series", [])
    known_until = source.trace.end_at if source.trace is not None else None
    return Gaps(sum(row["bins"] for row in series), sum(row["gaps"] for row in series), known_until)
