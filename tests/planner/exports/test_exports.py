"""Tables as CSV: what a file said cannot run in the spreadsheet that opens the download."""

import polars as pl
import pytest

from planner.api.renderers import CsvRenderer
from planner.exports import csv_text


@pytest.mark.parametrize("written", [csv_text, lambda table: CsvRenderer().render(table).decode()])
def test_text_that_a_spreadsheet_would_run_is_defused(written):
    table = pl.DataFrame({"model": ["=cmd()", "+1", "-1", "@x", "a=b", None], "n": [-1.0] * 6})
    rows = written(table).splitlines()[1:]
    assert rows == ["'=cmd(),-1.0", "'+1,-1.0", "'-1,-1.0", "'@x,-1.0", "a=b,-1.0", ",-1.0"]
