"""Store the figures of a trace with it, so that they are computed once."""

import json
from pathlib import Path
from typing import Any

import polars as pl

from forecasting.demand import DemandSeries
from planner.domain.serialise import as_json
from planner.domain.trace_statistics.figures import Characterisation
from planner.domain.trace_statistics.statistics import characterise
from planner.domain.traffic.window_rank import ALL
from planner.errors import DamagedFile
from planner.files.atomic_write import replace_file
from planner.files.damage import damage_reported
from planner.inputs.ingest.store import AGAIN, STORED

VERSION = 4  # of the stored format; other versions are computed again
FIGURES, RATES, TOTAL = "character.json", "character-rates.parquet", "character-total.parquet"


def write_character(store: Path) -> dict[str, Any]:
    """Compute and store the figures of the trace in the folder ``store``; return them as JSON."""
    with damage_reported(STORED, AGAIN):
        characterised = characterise(store)
    figures: dict[str, Any] = as_json(characterised.character)
    for name, table in ((RATES, characterised.rates), (TOTAL, _total_table(characterised))):
        with replace_file(store / name) as draft:
            table.write_parquet(draft)
    # Written last, so that its presence means that the tables exist.
    with replace_file(store / FIGURES) as draft:
        draft.write_text(json.dumps({"version": VERSION, "figures": figures}), encoding="utf-8")
    return figures


def stored_character(store: Path) -> dict[str, Any]:
    """Return the figures of a stored trace as JSON; compute them if they are missing."""
    try:
        stored = json.loads((store / FIGURES).read_text(encoding="utf-8"))
    except (ValueError, FileNotFoundError):
        return write_character(store)
    if not isinstance(stored, dict) or stored.get("version") != VERSION:
        return write_character(store)
    figures: dict[str, Any] = stored["figures"]
    return figures


def stored_rates(store: Path, by: str) -> pl.DataFrame:
    """Return the amounts over time of all labels of the kind ``by``, such as "model"."""
    stored_character(store)
    return _table(store, RATES).filter(pl.col("by") == by)


def stored_total(store: Path) -> DemandSeries:
    """Return the total demand of a trace per bin, in the unit by which days are ranked."""
    figures = stored_character(store)
    table = _table(store, TOTAL)
    unit = figures["unit"]
    return DemandSeries(
        ALL, float(table["start_s"][0]), float(figures["bin_s"]), table[unit].to_numpy(), unit
    )


def _table(store: Path, name: str) -> pl.DataFrame:
    """Return the stored table ``name``; compute it again if the file is damaged."""
    try:
        with damage_reported(name, AGAIN):
            return pl.read_parquet(store / name)
    except DamagedFile:
        write_character(store)
        return pl.read_parquet(store / name)


def _total_table(characterised: Characterisation) -> pl.DataFrame:
    """Return a table of the total demand of a trace, with a row per bin and a column per unit."""
    first = characterised.total[0]
    return pl.DataFrame(
        {
            "start_s": [first.start_s + i * first.bin_s for i in range(first.bins)],
            **{series.unit: series.values for series in characterised.total},
        }
    )
