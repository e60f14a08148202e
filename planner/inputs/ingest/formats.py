"""List the formats of traces, for detection, forms, API, command line and guide."""

from collections.abc import Mapping
from dataclasses import replace

import polars as pl

from planner.errors import IngestError
from planner.inputs.ingest import options
from planner.inputs.ingest.columns import counts_per_bin, without_answers
from planner.inputs.ingest.connectors import CONNECTORS, Connector
from planner.inputs.ingest.demand_columns import panel_like
from planner.inputs.ingest.options import (
    AUTO,
    DEMAND_FIELDS,
    REQUEST_FIELDS,
    IngestOptions,
    OptionLabel,
)

CSV = Connector(
    name="csv",
    title="Other table, one row per request",
    words="any columns, mapped by `arrival=..., input_tokens=..., output_tokens=...`; units "
    "such as `arrival=ts:ms`; sums such as `input_tokens=a+b`",
    kind="requests",
)
ARRIVALS = Connector(
    name="arrivals",
    title="Requests without lengths of answers (CSV, JSONL or Parquet)",
    words="one row per request with `arrival` and `input_tokens` only; the scenario assumes "
    "output lengths",
    kind="arrivals",
)
DEMAND = Connector(
    name="demand",
    title="Demand: counts per bin (CSV or Parquet)",
    words="counts per bin, one or more series, with or without tokens: `time=..., requests=...`",
    kind="demand",
)
_GENERAL = (CSV, ARRIVALS, DEMAND)
FORMATS: Mapping[str, Connector] = {**CONNECTORS, **{each.name: each for each in _GENERAL}}
NAMES = (AUTO, *FORMATS)
_BY_TITLE = sorted(CONNECTORS.values(), key=lambda each: each.title.lower())
_TITLES = {AUTO: "Detect from the file"} | {
    each.name: each.title for each in (*_BY_TITLE, *_GENERAL)
}
# The options that web, API and command line offer for a file.
OFFERED: Mapping[str, OptionLabel] = {
    name: replace(option, choices=_TITLES) if name == "format" else option
    for name, option in options.OFFERED.items()
}


def choose_format(probe: pl.DataFrame, options: IngestOptions) -> Connector:
    """Return the format of a file: as the caller states it, or as its first rows show it.

    Raise IngestError for an unknown format, or if a mapped field does not belong to the format.
    """
    mapped = set(options.mapping)
    if options.format not in NAMES:
        raise IngestError(
            f"There is no format {options.format!r}. Choose one of {', '.join(NAMES)}."
        )
    chosen = FORMATS.get(options.format) or _detected(probe, mapped)
    if unknown := mapped.difference(chosen.fields):
        raise IngestError(
            f"The field {min(unknown)} does not belong to a file of format {chosen.name}. Map only "
            f"{', '.join(chosen.fields)}."
        )
    return chosen


def _detected(probe: pl.DataFrame, mapped: set[str]) -> Connector:
    """Return the format that the first rows show, unless the ``mapped`` fields need another."""
    is_demand = counts_per_bin(probe.columns) or panel_like(probe)
    general = DEMAND if is_demand and not without_answers(probe) else CSV
    tools = (tool for tool in CONNECTORS.values() if tool.recognises(probe.columns))
    chosen = next(tools, general)
    demand_only = set(DEMAND_FIELDS) - set(REQUEST_FIELDS)
    if mapped & demand_only and chosen.kind != "demand":
        return DEMAND
    if "arrival" in mapped and chosen.kind != "requests":
        return CSV
    return chosen
