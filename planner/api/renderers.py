"""Render bodies other than JSON: scenario files and tables."""

from typing import Any

import polars as pl
from rest_framework.negotiation import DefaultContentNegotiation
from rest_framework.renderers import BaseRenderer

from planner.api.serializers.fields import Values
from planner.outputs import PARQUET, without_formulas

ISO = "%Y-%m-%dT%H:%M:%S%.fZ"  # UTC; fractions of a second only if not zero


class YamlRenderer(BaseRenderer):
    """A renderer of the scenario file as its author wrote it."""

    media_type = "application/yaml"
    format = "yaml"
    charset = "utf-8"

    def render(self, data: Any, *_: Any) -> bytes:
        if data is None:  # the scenario was removed
            return b""
        document: str = data["document"]
        return document.encode()


class TextYamlRenderer(YamlRenderer):
    media_type = "text/yaml"


class CsvRenderer(BaseRenderer):
    """A renderer of tables as CSV.

    Times are in ISO 8601 UTC. Numbers that are not finite become empty cells. Text that a
    spreadsheet would run as a formula is prefixed with an apostrophe.
    """

    media_type = "text/csv"
    format = "csv"
    charset = "utf-8"

    def render(self, data: pl.DataFrame, *_: Any) -> bytes:
        return without_formulas(_finite(data)).write_csv(datetime_format=ISO).encode()


class ParquetRenderer(BaseRenderer):
    """A renderer that only takes part in content negotiation.

    The view sends the stored file itself, and errors are JSON.
    """

    media_type = PARQUET
    format = "parquet"
    charset = None
    render_style = "binary"

    def render(self, data: Any, *_: Any) -> bytes:
        raise NotImplementedError


def table_rows(table: pl.DataFrame) -> list[Values]:
    """Return the rows of a table for JSON: times in ISO 8601 UTC, null for NaN and infinity."""
    times = pl.col(pl.Datetime)  # every column of times
    return _finite(table).with_columns(times.dt.strftime(ISO)).to_dicts()


def _finite(table: pl.DataFrame) -> pl.DataFrame:
    """Return the table with null in place of NaN and infinity."""
    numbers = pl.col(pl.Float32, pl.Float64)  # every column of numbers
    finite_or_null = pl.when(numbers.is_finite()).then(numbers)
    return table.with_columns(finite_or_null.name.keep())


class AcceptHeaderNegotiation(DefaultContentNegotiation):
    """Content negotiation by the Accept header only, for lists with a filter named ``format``."""

    def filter_renderers(self, renderers: Any, format: str) -> Any:
        return renderers


class AnyAccept(DefaultContentNegotiation):
    """Content negotiation that ignores Accept, because a parameter chooses the format.

    Errors are JSON.
    """

    def select_renderer(self, request: Any, renderers: Any, format_suffix: Any = None) -> Any:
        return renderers[0], renderers[0].media_type
