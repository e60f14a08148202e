"""Turn the lines of an engine's text log into one JSON object per row.

A connector's ``line`` is a pattern whose named groups are columns. Other lines are no rows. The
group ``json`` holds the row itself. ``finished`` less ``took_s`` becomes ``arrival``, and
``monthday``, a time without a year, becomes ``seconds`` since the first line.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import datetime

import polars as pl

from planner.errors import IngestError
from planner.inputs.ingest.blocks import record_blocks
from planner.inputs.ingest.connectors import CONNECTORS

PROBED = 400  # lines in which a row of the log has to stand
LEAP = 1972  # a year with 366 days stands for the one that the log does not state
YEAR_S = 366 * 86_400
_ACCESS = re.compile(r'^(\S+ )?INFO:? +\S+:\d+ - "(POST|GET) /\S* HTTP/', re.MULTILINE)


def log_pattern(head: bytes, name: str) -> str:
    """Return the pattern of a text log, or "" for another file.

    Raises IngestError for an access log without times.
    """
    lines = head.decode("utf-8", errors="replace").splitlines()[:PROBED]
    for connector in CONNECTORS.values():
        if connector.line and any(map(re.compile(connector.line).search, lines)):
            return connector.line
    if lines and any(map(_ACCESS.match, lines)) and "," not in lines[0]:
        raise IngestError(
            f"{name} is an engine's access log: its lines have no tokens. Give the log of requests "
            "(SGLang: --log-requests) or of a gateway, or the metrics of Prometheus."
        )
    return ""


def log_rows(pieces: Iterator[bytes], pattern: str, name: str, size: int) -> Iterator[bytes]:
    """Yield the rows of a log as JSON lines."""
    first: datetime | None = None
    for block in record_blocks(pieces, name=name, size=size, quoted=False):
        lines = pl.Series("line", block.data.decode("utf-8", errors="replace").splitlines())
        found = lines.str.extract_groups(pattern).struct.unnest()
        found = found.filter(pl.any_horizontal(pl.all().is_not_null()))
        if not found.height:
            continue
        if "json" in found.columns:
            yield "".join(f"{row}\n" for row in found["json"]).encode()
            continue
        if "finished" in found.columns:
            took = pl.duration(microseconds=pl.col("took_s").cast(pl.Float64) * 1e6)
            ended = pl.col("finished").str.to_datetime("%Y-%m-%d %H:%M:%S", strict=False)
            found = found.with_columns(arrival=(ended - took).dt.to_string("iso:strict"))
        if "monthday" in found.columns:
            text = f"{LEAP}-" + pl.col("monthday")
            moment = text.str.to_datetime("%Y-%m-%d %H:%M:%S", strict=False)
            found = found.with_columns(moment=moment).filter(pl.col("moment").is_not_null())
            first = first or found["moment"][0]
            since = (pl.col("moment") - first).dt.total_seconds() % YEAR_S
            found = found.with_columns(seconds=since).drop("moment")
        yield found.write_ndjson().encode()
