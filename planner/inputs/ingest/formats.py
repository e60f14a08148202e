"""List the formats of traces, for detection, readers, forms, API, command line and guide."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import polars as pl

from planner.errors import IngestError
from planner.inputs.ingest import options
from planner.inputs.ingest.arrivals import read_arrivals
from planner.inputs.ingest.columns import counts_per_bin, panel_like, without_answers
from planner.inputs.ingest.connectors import CONNECTORS
from planner.inputs.ingest.demand import read_demand_file
from planner.inputs.ingest.file_content import Format
from planner.inputs.ingest.options import (
    AUTO,
    DEMAND_FIELDS,
    REQUEST_FIELDS,
    IngestOptions,
    OptionLabel,
)
from planner.inputs.ingest.requests import read_request_file

_ANSWERS = ("output_tokens", "hash_ids", "utility")  # fields that counts per bin do not keep
CSV = Format(
    name="csv",
    title="Other table, one row per request",
    words="any columns, mapped by `arrival=..., input_tokens=..., output_tokens=...`; units "
    "such as `arrival=ts:ms`; sums such as `input_tokens=a+b`",
    read=read_request_file,
)
ARRIVALS = Format(
    name="arrivals",
    title="Requests without lengths of answers (CSV, JSONL or Parquet)",
    words="one row per request with `arrival` and `input_tokens` only; the scenario assumes "
    "output lengths",
    read=read_arrivals,
    fields=tuple(name for name in REQUEST_FIELDS if name not in _ANSWERS),
)
DEMAND = Format(
    name="demand",
    title="Demand: counts per bin (CSV or Parquet)",
    words="counts per bin, one or more series, with or without tokens: `time=..., requests=...`",
    read=read_demand_file,
    suits=lambda probe: (
        not without_answers(probe) and (counts_per_bin(probe.columns) or panel_like(probe))
    ),
    fields=DEMAND_FIELDS,
)
_READERS = {
    "requests": (read_request_file, REQUEST_FIELDS),
    "demand": (read_demand_file, DEMAND_FIELDS),
}
_OF_TOOLS = [
    Format(tool.name, tool.title, tool.words, reader, tool, fields=fields)
    for tool in CONNECTORS.values() for reader, fields in (_READERS[tool.kind],)
]  # fmt: skip
# The first format that recognises the first rows of a file reads it. CSV is the fallback.
FORMATS: Mapping[str, Format] = {each.name: each for each in (*_OF_TOOLS, CSV, ARRIVALS, DEMAND)}
NAMES = (AUTO, *FORMATS)
_BY_TITLE = sorted(_OF_TOOLS, key=lambda each: each.title.lower())
_TITLES = {AUTO: "Find out from the file"} | {
    each.name: each.title for each in (*_BY_TITLE, CSV, ARRIVALS, DEMAND)
}
# The options that web, API and command line offer for a file.
OFFERED: Mapping[str, OptionLabel] = {
    name: replace(option, choices=_TITLES) if name == "format" else option
    for name, option in options.OFFERED.items()
}


def choose_format(probe: pl.DataFrame, options: IngestOptions) -> Format:
    """Return the format of a file: the caller's, else the one the mapping implies, else detected.

    Raises IngestError for an unknown format, or for a mapped field that its files do not have.
    """
    mapped = set(options.mapping)
    if options.format in FORMATS:
        chosen = FORMATS[options.format]
    elif options.format != AUTO:
        raise IngestError(
            f"There is no format {options.format!r}. Choose one of {', '.join(NAMES)}."
        )
    else:
        known = (format for format in FORMATS.values() if format.known_by(probe))
        chosen = next(known, CSV)
        if mapped & (set(DEMAND_FIELDS) - set(REQUEST_FIELDS)) and chosen.fields != DEMAND_FIELDS:
            chosen = DEMAND
        elif "arrival" in mapped and chosen.fields != REQUEST_FIELDS:
            chosen = CSV
    if strange := mapped.difference(chosen.fields):
        raise IngestError(
            f"The field {min(strange)} does not belong to a file of format {chosen.name}. Map only "
            f"{', '.join(chosen.fields)}."
        )
    return chosen
