"""JSON lines: one object per line, its fields turned into columns of text."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import NoReturn

import numpy as np
import polars as pl

from planner.errors import IngestError
from planner.ingest.blocks import Records
from planner.ingest.names import check_names
from planner.ingest.rows import BAD_IDS, Batch, Fault, holes

NOT_JSON = "not a JSON object"


def read_probe(found: Records, name: str, rows: int) -> tuple[tuple[str, ...], pl.DataFrame]:
    """Every field named in the first ``rows`` lines, and those lines as text columns."""
    found = found.keep(np.arange(found.start.size) < rows)
    columns: dict[str, None] = {}
    good = np.zeros(found.start.size, dtype=np.bool_)
    for i in range(found.start.size):
        value = _object(found.text(i))
        if value is not None:
            good[i] = True
            columns |= dict.fromkeys(value)
    if not columns:
        raise IngestError(
            f"{name}, line {found.line[0]} is not a JSON object; write one object per line "
            "(JSON lines), not one array or an indented document."
        )
    check_names(list(columns), name)
    return tuple(columns), _parse(found.keep(good), dict.fromkeys(columns, pl.String()), name)


def batch(found: Records, columns: Sequence[str], ids: str | None, name: str) -> Batch:
    """The records as text columns, ``ids`` as lists of integers; lines that are not JSON apart."""
    schema: dict[str, pl.DataType] = dict.fromkeys(columns, pl.String())
    if ids:
        schema[ids] = pl.List(pl.Int64)
    try:
        frame = pl.read_ndjson(found.joined(), schema=schema)
    except pl.exceptions.PolarsError:
        frame = None
    if (
        frame is not None
        and frame.height == found.start.size
        and not (ids and holes(frame[ids]).any())
    ):
        return Batch(frame, found.line, found.text)
    verdicts = np.array([_verdict(found.text(i), ids) for i in range(found.start.size)])
    faults = tuple(
        Fault(reason, bad.line, bad.text)
        for reason in (NOT_JSON, BAD_IDS)
        if (verdicts == reason).any()
        for bad in (found.keep(verdicts == reason),)
    )
    found = found.keep(verdicts == "")
    return Batch(_parse(found, schema, name), found.line, found.text, faults)


def _parse(found: Records, schema: dict[str, pl.DataType], name: str) -> pl.DataFrame:
    if not found.start.size:
        return pl.DataFrame(schema=schema)
    try:
        frame = pl.read_ndjson(found.joined(), schema=schema)
    except pl.exceptions.PolarsError as error:
        raise IngestError(
            f"{name}, lines {found.line[0]} to {found.line[-1]} cannot be read as JSON lines "
            f"({error}); write one object per line."
        ) from None
    if frame.height != found.start.size:
        raise IngestError(
            f"{name}, lines {found.line[0]} to {found.line[-1]} do not hold one JSON object each; "
            "write one object per line."
        )
    return frame


def _verdict(text: str, ids: str | None) -> str:
    """Why a line is refused; empty when it is not."""
    value = _object(text)
    if value is None:
        return NOT_JSON
    return BAD_IDS if ids and not _is_ids(value.get(ids)) else ""


def _object(text: str) -> dict[str, object] | None:
    """The object in a line; None when there is no such thing."""
    try:
        value = json.loads(text, parse_constant=_refuse, parse_float=_finite)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _finite(number: str) -> float:
    value = float(number)
    return value if math.isfinite(value) else _refuse(number)


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")


def _is_ids(value: object) -> bool:
    return value is None or (
        isinstance(value, list)
        and all(isinstance(x, int) and not isinstance(x, bool) and abs(x) < 2**63 for x in value)
    )
