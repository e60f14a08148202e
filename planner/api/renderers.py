"""Bodies other than JSON: the scenario file and tables."""

from __future__ import annotations

from typing import Any

import polars as pl
from rest_framework.negotiation import DefaultContentNegotiation
from rest_framework.renderers import BaseRenderer

from planner.exports import PARQUET, without_formulas

ISO = "%Y-%m-%dT%H:%M:%S%.fZ"  # UTC, a fraction of a second only where there is one


class YamlRenderer(BaseRenderer):
    """The scenario as its author wrote it."""

    media_type = "application/yaml"
    format = "yaml"
    charset = "utf-8"

    def render(self, data: Any, *_: Any) -> bytes:
        if data is None:  # it was removed
            return b""
        document: str = data["document"]
        return document.encode()


class TextYamlRenderer(YamlRenderer):
    media_type = "text/yaml"


class CsvRenderer(BaseRenderer):
    """A table; times as ISO 8601 in UTC, an empty cell where there is no finite number, and text
    that a spreadsheet would run prefixed with an apostrophe."""

    media_type = "text/csv"
    format = "csv"
    charset = "utf-8"

    def render(self, data: pl.DataFrame, *_: Any) -> bytes:
        return without_formulas(_finite(data)).write_csv(datetime_format=ISO).encode()


class ParquetRenderer(BaseRenderer):
    """For the choice alone: the view sends the file as it lies, and refusals are JSON."""

    media_type = PARQUET
    format = "parquet"
    charset = None
    render_style = "binary"

    def render(self, data: Any, *_: Any) -> bytes:
        raise NotImplementedError


def table_rows(table: pl.DataFrame) -> list[dict[str, Any]]:
    """Rows for JSON: times as ISO 8601 in UTC, null where there is no finite number."""
    return _finite(table).with_columns(pl.col(pl.Datetime).dt.strftime(ISO)).to_dicts()


def _finite(table: pl.DataFrame) -> pl.DataFrame:
    numbers = pl.col(pl.Float32, pl.Float64)
    return table.with_columns(pl.when(numbers.is_finite()).then(numbers).name.keep())


class AcceptOnly(DefaultContentNegotiation):
    """For lists that filter by ``format``: only the Accept header says the form of the answer."""

    def filter_renderers(self, renderers: Any, format: str) -> Any:
        return renderers


class AnyAccept(DefaultContentNegotiation):
    """For a file whose form a parameter says: whatever the Accept header, and a refusal is JSON."""

    def select_renderer(self, request: Any, renderers: Any, format_suffix: Any = None) -> Any:
        return renderers[0], renderers[0].media_type
