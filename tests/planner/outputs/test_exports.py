"""Tables as CSV: what a file said cannot run in the spreadsheet that opens the download."""

import polars as pl
import pytest

from planner.api.renderers import CsvRenderer
from planner.outputs import csv_text


@pytest.mark.parametrize("written", [csv_text, lambda table: CsvRenderer().render(table).decode()])
def test_text_that_a_spreadsheet_would_run_is_defused(written):
    table = pl.DataFrame({"model": ["=cmd()", "+1", "-1", "@x", "a=b", None], "n": [-1.0] * 6})
    rows = written(table).splitlines()[1:]
    assert rows == ["'=cmd(),-1.0", "'+1,-1.0", "'-1,-1.0", "'@x,-1.0", "a=b,-1.0", ",-1.0"]


def test_figures_have_no_dust_of_binary_sums():
    table = pl.DataFrame({"usd": [912.0000000001352, 5.000000000000017, 0.1 + 0.2, 1_234_567.25]})
    assert csv_text(table).splitlines()[1:] == ["912.0", "5.0", "0.3", "1234567.25"]


def test_a_head_that_a_spreadsheet_would_run_is_defused():
    table = pl.DataFrame({"=cmd()": [1], "ok": ["＝wide"]})
    assert csv_text(table) == "'=cmd(),ok\n1,'＝wide\n"
