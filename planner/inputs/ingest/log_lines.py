"""Turn the lines of a text log into one JSON object per row.

A connector's ``line`` is a pattern whose named groups are columns. Other lines are no rows. The
group ``json`` holds the row itself. ``finished`` less ``took_s`` becomes ``arrival``, and
``monthday``, a time without a year, becomes ``seconds`` since the first line.

Collectors such as Loki, and loggers such as Python's, put each line into an envelope with its time.
A line in it that is JSON or has ``key=value`` pairs is a row, with that time as ``log_timestamp``.
"""

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime

import polars as pl

from planner.errors import IngestError
from planner.inputs.ingest.blocks import record_blocks
from planner.inputs.ingest.connectors import CONNECTORS
from planner.inputs.ingest.json_text import json_object
from planner.inputs.ingest.names import SYNONYMS, compact_name

PROBED_LINES = 400  # lines in which a row of the log has to stand
LEAP_YEAR = 1972  # a year with 366 days stands for the one that the log does not state
YEAR_S = 366 * 86_400
_ACCESS = re.compile(r'INFO:? +\S+:\d+ - "(POST|GET) /\S* HTTP/|Received request \S+: ')
_TIME = r"(?:\d{4}-\d\d-\d\d[T ][\d:.,]+(?: ?Z|[+-]\d\d:?\d\d)?|\d{19})"
# Before a line: time and labels of logcli, of container logs, or time alone.
_BEFORE = re.compile(
    rf"^(?P<time>{_TIME})\s+(?:\{{[^{{}}]*=[^{{}}]*\}} |std(?:out|err) [FP] )?(?P<line>\S.*)"
)
# Fields of JSON that hold a line and its time.
_WRAPPED = (("line", "timestamp"), ("1", "0"), ("log", "time"), ("textPayload", "timestamp"),
            ("message", "@timestamp"), ("message", "timestamp"))  # fmt: skip
_PAIR = re.compile(r'([A-Za-z_][\w.]*)=("(?:[^"\\]|\\.)*"|[^\s,]*)')


def log_pattern(head: bytes, name: str) -> str:
    """Return the pattern of a tool's log lines in ``head``, or ""; refuse an access log."""
    lines = head.decode("utf-8", errors="replace").splitlines()[:PROBED_LINES]
    for connector in CONNECTORS.values():
        if connector.line and any(map(re.compile(connector.line).search, lines)):
            return connector.line
    if any(map(_ACCESS.search, lines)) and lines[0][:1] not in "{[":
        raise IngestError(
            f"{name} is an engine's log without tokens of answers. Give the log of requests "
            "(SGLang: --log-requests) or of a gateway, or the metrics of Prometheus."
        )
    return ""


def log_rows(pieces: Iterable[bytes], pattern: str, name: str, size: int) -> Iterator[bytes]:
    """Yield the rows of a text log as JSON lines, in blocks of about ``size`` bytes.

    The named groups of ``pattern``, a connector's ``line``, are columns, but for these: ``json`` is
    the row itself, ``finished`` less ``took_s`` becomes ``arrival``, and ``monthday``, a time
    without a year, becomes ``seconds``. Lines that do not match are dropped.
    """
    first: datetime | None = None
    for block in record_blocks(pieces, name=name, size=size, quoted=False):
        lines = pl.Series("line", block.data.decode("utf-8", errors="replace").splitlines())
        groups = lines.str.extract_groups(pattern).struct.unnest()
        # ``_line_of_envelope`` puts the time of the collector in front of a line.
        groups = groups.with_columns(log_ns=lines.str.extract(r"^(\d{19})\t"))
        groups = groups.filter(pl.any_horizontal(pl.exclude("log_ns").is_not_null()))
        if not groups.height:
            continue
        if "json" in groups.columns:  # the line holds the row itself
            yield "".join(f"{row}\n" for row in groups["json"]).encode()
            continue
        if {"finished", "took_s"} <= set(groups.columns):
            moment = pl.col("finished").str.replace("T", " ").str.strip_suffix("Z")
            finished = moment.str.to_datetime("%Y-%m-%d %H:%M:%S%.f", strict=False)
            took = pl.duration(microseconds=pl.col("took_s").cast(pl.Float64) * 1e6)
            utc_mark = pl.col("finished").str.extract("(Z?)$")  # "Z" or ""
            arrival = (finished - took).dt.to_string("iso:strict") + utc_mark
            groups = groups.with_columns(arrival=arrival)
        if "monthday" in groups.columns:  # seconds by the collector's time, else since line 1
            text = f"{LEAP_YEAR}-" + pl.col("monthday")
            moment = text.str.to_datetime("%Y-%m-%d %H:%M:%S", strict=False)
            groups = groups.with_columns(moment=moment).filter(pl.col("moment").is_not_null())
            if not groups.height:  # a month and a day that do not exist
                continue
            first = first or groups["moment"][0]
            since_first_s = (pl.col("moment") - first).dt.total_seconds() % YEAR_S
            collected_s = pl.col("log_ns").cast(pl.Int64) // 1_000_000_000
            seconds = pl.coalesce(collected_s, since_first_s)
            groups = groups.with_columns(seconds=seconds).drop("moment")
        yield groups.write_ndjson().encode()


def unwrap_envelopes(
    pieces: Iterable[bytes], head: bytes, name: str, size: int
) -> Iterator[bytes] | None:
    """Return the log lines in the envelopes of a log collector; None if the file has no envelopes.

    ``head`` are the file's first bytes. At least half of the lines there must have an envelope, and
    one a request. The log lines come back in pieces of about ``size`` bytes.
    """
    lines = [text for text in head.decode("utf-8", errors="replace").splitlines() if text.strip()]
    # The last line may be cut off.
    probed = [line for line in lines[:PROBED_LINES] if line != lines[-1] or len(lines) == 1]
    unwrapped = _unwrap_lines(probed)
    patterns = ["^{", *(connector.line for connector in CONNECTORS.values() if connector.line)]
    has_request = any(re.search(pattern, line) for line in unwrapped for pattern in patterns)
    if not has_request or len(unwrapped) < len(probed) / 2:
        return None
    blocks = record_blocks(pieces, name=name, size=size, quoted=False)
    texts = (block.data.decode("utf-8", errors="replace") for block in blocks)
    unwrapped_blocks = (_unwrap_lines(text.splitlines()) for text in texts)
    return ("".join(f"{line}\n" for line in block).encode() for block in unwrapped_blocks)


def _unwrap_lines(lines: Sequence[str]) -> list[str]:
    """Return the log lines in ``lines`` of a log collector, without those in no envelope."""
    envelopes = map(_unwrap_line, lines)
    return [_line_of_envelope(*envelope) for envelope in envelopes if envelope]


def _unwrap_line(line: str) -> tuple[str, str] | None:
    """Return time and text in a log collector's envelope; None if the line is no envelope.

    An envelope is a JSON object with fields of both, or a time in front of the text. A line of
    pairs (``key=value``) counts as a text without a time ("").
    """
    if line[:1] == "{":
        record = json_object(line) or {}
        if any("token" in key for key in record):  # the object is a row itself
            return None
        for text_key, time_key in _WRAPPED:
            if isinstance(record.get(text_key), str) and time_key in record:
                return str(record[time_key]), record[text_key]
        return None
    match = _BEFORE.match(line)
    if match:
        return match["time"], match["line"]
    return ("", line) if _PAIR.match(line) and _pairs(line) else None


def _line_of_envelope(time: str, text: str) -> str:
    """Return the log line in an envelope: a JSON object with its time, or time, tab and text."""
    record = json_object(text) if text[:1] == "{" else _pairs(text)
    if record:
        return json.dumps(record | ({"log_timestamp": time} if time else {}))
    text = text.rstrip("\n")
    if not time.isdecimal():
        moment = pl.Series([time]).str.to_datetime(time_zone="UTC", time_unit="ns", strict=False)
        time = str(moment.cast(pl.Int64)[0])
    return f"{time}\t{text}"


def _pairs(text: str) -> dict[str, str]:
    """Return the pairs in a line such as ``ts=... prompt_tokens=7``; empty without tokens."""
    pairs = {key: value.strip('"') for key, value in _PAIR.findall(text)}
    has_tokens = any(compact_name(key) in SYNONYMS["input_tokens"] for key in pairs)
    return pairs if has_tokens else {}
