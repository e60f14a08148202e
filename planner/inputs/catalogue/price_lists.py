"""Read a user's price list: GPU prices by region, on demand, spot and committed."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from planner.errors import CatalogueError
from planner.files.documents import csv_rows, utf8_text, yaml_document
from planner.inputs.catalogue.hardware import gpu_known_as
from planner.inputs.numbers import finite_number

MOST_ROWS = 20_000
MOST_USD = 1_000_000
# columns of the file and fields of a row, in USD per GPU and hour
AMOUNTS = {
    "on_demand_usd": "on_demand",
    "spot_usd": "spot",
    "one_year_usd": "one_year",
    "three_years_usd": "three_years",
}
NAMES = ("region", "gpu")
COLUMNS = (*NAMES, *AMOUNTS, "provider")


@dataclass(frozen=True, slots=True)
class OwnPrice:
    """The hourly price of one GPU in a region of a user's contract. None: no such offer."""

    region: str
    gpu: str  # the catalogue's name, if it has one
    provider: str = ""
    on_demand: float | None = None
    spot: float | None = None
    one_year: float | None = None
    three_years: float | None = None


def read_price_list(data: bytes, file_name: str) -> tuple[OwnPrice, ...]:
    """Read a CSV with ``COLUMNS``, or a YAML list of such rows; or raise CatalogueError."""
    text = utf8_text(data, file_name, "Give a CSV or YAML file.", CatalogueError)
    is_yaml = file_name.lower().endswith((".yml", ".yaml"))
    rows: dict[tuple[str, str], OwnPrice] = {}
    for location, cells in _yaml(text, file_name) if is_yaml else _csv(text, file_name):
        row = _row(cells, location)
        key = row.region, row.gpu
        if key in rows:
            raise CatalogueError(
                f"{location}: {row.gpu} in {row.region} is listed twice. Keep one."
            )
        rows[key] = row
        if len(rows) > MOST_ROWS:
            raise CatalogueError(f"{file_name} has more than {MOST_ROWS:,} prices. Split it.")
    if not rows:
        raise CatalogueError(f"{file_name} has no price. Its columns: {', '.join(COLUMNS)}.")
    return tuple(rows.values())


def _csv(text: str, file_name: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the location (for messages) and the cells by column of each CSV row."""
    rows = csv_rows(text, file_name, CatalogueError)
    _, header = next(rows, (1, []))
    columns = [column.strip() for column in header]
    _check_keys(columns, f"{file_name}, line 1")
    for line, row in rows:
        location = f"{file_name}, line {line}"
        if len(row) > len(columns):
            raise CatalogueError(f"{location}: more values than the {len(columns)} columns.")
        if row:
            yield location, dict(zip(columns, row, strict=False))


def _yaml(text: str, file_name: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the location (for messages) and the cells of each row under ``prices``."""
    document = yaml_document(text, file_name, CatalogueError)
    rows = document.get("prices") if isinstance(document, Mapping) else None
    if not isinstance(rows, list):
        raise CatalogueError(f"{file_name}: give a list of prices under 'prices'.")
    for i, row in enumerate(rows):
        location = f"{file_name}, prices[{i}]"
        if not isinstance(row, Mapping):
            raise CatalogueError(f"{location}: give {', '.join(COLUMNS)} of each price.")
        _check_keys([str(key) for key in row], location)
        yield location, row


def _check_keys(keys: list[str], location: str) -> None:
    """Raise CatalogueError for unknown columns, missing names, or no price column."""
    for key in keys:
        if key not in COLUMNS:
            raise CatalogueError(
                f"{location}: {key!r} is not known. Choose from {', '.join(COLUMNS)}."
            )
    missing = [name for name in NAMES if name not in keys]
    if missing:
        raise CatalogueError(f"{location}: {' and '.join(missing)} missing. Add it.")
    if not set(keys) & set(AMOUNTS):
        raise CatalogueError(f"{location}: no price. Add one of {', '.join(AMOUNTS)}.")


def _row(cells: Mapping[str, Any], location: str) -> OwnPrice:
    """Return the price in a row (cells by column); raise CatalogueError without name or price."""
    names = {name: str(cells.get(name) or "").strip() for name in (*NAMES, "provider")}
    for name in NAMES:
        if not names[name]:
            raise CatalogueError(f"{location}: {name} is empty. Give it.")
    amounts: dict[str, float] = {}
    for column, field in AMOUNTS.items():
        cell = cells.get(column)
        if cell is None or (isinstance(cell, str) and not cell.strip()):
            continue
        usd = finite_number(cell)
        if usd is None or not 0 <= usd <= MOST_USD:
            raise CatalogueError(
                f"{location}: {column} must be a number from 0 to {MOST_USD:,} (USD per GPU and "
                f"hour), not {cell!r:.40}."
            )
        amounts[field] = usd
    if not amounts:
        raise CatalogueError(f"{location}: no price. Give one of {', '.join(AMOUNTS)}.")
    return OwnPrice(names["region"], gpu_known_as(names["gpu"]), names["provider"], **amounts)
