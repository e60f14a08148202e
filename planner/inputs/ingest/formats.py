"""List the formats of traces, for detection, readers, forms, API, command line and guide."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from planner.errors import IngestError
from planner.inputs.ingest import options
from planner.inputs.ingest.arrivals import read_arrivals
from planner.inputs.ingest.columns import counts_per_bin
from planner.inputs.ingest.demand import read_demand_file
from planner.inputs.ingest.options import (
    AUTO,
    DEMAND_FIELDS,
    REQUEST_FIELDS,
    IngestOptions,
    Offered,
)
from planner.inputs.ingest.reading import Format
from planner.inputs.ingest.requests import read_request_file

_ANSWERS = ("output_tokens", "hash_ids", "utility")  # fields that counts per bin do not keep
CSV = Format(
    name="csv",
    title="Other CSV or Parquet, one row per request",
    words="any columns: map them with `arrival=..., input_tokens=..., output_tokens=...`, and "
    "`model`, `region`, `tier` if there are any; a unit may follow: `arrival=ts:ms`",
    read=read_request_file,
)
ARRIVALS = Format(
    name="arrivals",
    title="Requests without lengths of answers (CSV, JSONL or Parquet)",
    words="one row per request with `arrival` and `input_tokens` alone: counted by 10 s, prompts "
    "kept as a sample; a scenario then assumes how long answers are",
    read=read_arrivals,
    suits=lambda _: False,  # never detected: output lengths may have an unknown name
    fields=tuple(name for name in REQUEST_FIELDS if name not in _ANSWERS),
)
DEMAND = Format(
    name="demand",
    title="Demand: counts per bin (CSV or Parquet)",
    words="counts per bin, one or more series, with or without tokens: `time=..., requests=...`",
    read=read_demand_file,
    suits=counts_per_bin,
    fields=DEMAND_FIELDS,
)
# The first format that recognises the columns of a file reads it. CSV is the fallback.
FORMATS: Mapping[str, Format] = {
    each.name: each
    for each in (
        Format(
            name="azure",
            title="Azure LLM trace (CSV)",
            words="Azure 2023 and 2024: TIMESTAMP, ContextTokens, GeneratedTokens",
            read=read_request_file,
            columns={
                "arrival": "timestamp",
                "input_tokens": "contexttokens",
                "output_tokens": "generatedtokens",
            },
        ),
        Format(
            name="burstgpt",
            title="BurstGPT (CSV)",
            words="BurstGPT",
            read=read_request_file,
            columns={
                "arrival": "timestamp",
                "input_tokens": "requesttokens",
                "output_tokens": "responsetokens",
            },
            unit="s",
            no_output="failed request (0 response tokens)",
        ),
        Format(
            name="mooncake",
            title="Mooncake (JSONL)",
            words="Mooncake JSON lines; prefix block hashes are kept",
            read=read_request_file,
            columns={
                "arrival": "timestamp",
                "input_tokens": "inputlength",
                "output_tokens": "outputlength",
            },
            written="jsonl",
            unit="ms",
        ),
        CSV,
        ARRIVALS,
        DEMAND,
    )
}
NAMES = (AUTO, *FORMATS)
_TITLES = {AUTO: "Find out from the file"} | {name: each.title for name, each in FORMATS.items()}
# The options that web, API and command line offer for a file.
OFFERED: Mapping[str, Offered] = {
    name: replace(option, choices=_TITLES) if name == "format" else option
    for name, option in options.OFFERED.items()
}


def detect_format(columns: Sequence[str], written: str) -> Format:
    """Return the format of a file with these columns; ``written`` is csv, jsonl or parquet."""
    return next((each for each in FORMATS.values() if each.known_by(columns, written)), CSV)


def choose_format(columns: Sequence[str], options: IngestOptions, written: str) -> Format:
    """Return the caller's format, else the one that the mapping implies, else the detected one.

    Raises IngestError for an unknown format, or for a mapped field that its files do not have.
    """
    mapped = set(options.mapping)
    if options.format not in NAMES:
        raise IngestError(
            f"There is no format {options.format!r}; choose one of {', '.join(NAMES)}."
        )
    if options.format != AUTO:
        chosen = FORMATS[options.format]
    elif mapped & (set(DEMAND_FIELDS) - set(REQUEST_FIELDS)):
        chosen = DEMAND
    elif "arrival" in mapped:
        chosen = CSV
    else:
        chosen = detect_format(columns, written)
    if strange := mapped.difference(chosen.fields):
        raise IngestError(
            f"The field {min(strange)} does not belong to a file of format {chosen.name}; map only "
            f"{', '.join(chosen.fields)}."
        )
    return chosen
