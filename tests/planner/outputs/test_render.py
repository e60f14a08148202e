"""Every renderer draws every block of a report."""

import io
import zipfile
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.domain.report import (
    Axis,
    Chart,
    Fact,
    Facts,
    Form,
    Group,
    Head,
    Meaning,
    Note,
    Report,
    Role,
    Section,
    Series,
    Shape,
    Table,
    shortfall,
    step_series,
)
from planner.outputs.cover import Cover, SignOff
from planner.outputs.render.document import document_of
from planner.outputs.render.drawing import HEIGHT, WIDTH, Box, Path, Text, draw_chart
from planner.outputs.render.html import display_sections, html_of
from planner.outputs.render.plotly import figure_of
from planner.outputs.render.terminal import terminal_text
from planner.outputs.render.xlsx import xlsx_of

START = datetime(2024, 5, 18, tzinfo=UTC)
TIMES = tuple(START + timedelta(hours=6 * i) for i in range(5))
SHORT = shortfall(TIMES, (1.0, 3.0, 2.0, 4.0, 1.0), (2.0, 2.0, 2.0, 5.0, 5.0))
assert SHORT is not None
OVER_TIME = Chart(
    "Demand and capacity", Axis(), Axis(unit="req/s"),
    (
        Series("Demand", TIMES, (1.0, 3.0, 2.0, 4.0, 1.0), Role.DEMAND),
        Series("Forecast", TIMES, (2.0, 4.0, 3.0, 5.0, 2.0), Role.FORECAST, Shape.BAND,
               low=(0.0, 2.0, 1.0, 3.0, 0.0)),
        Series("Capacity", TIMES, (2.0, 2.0, 2.0, 5.0, 5.0), Role.RECOMMENDED, Shape.STEP),
        Series("Rate", TIMES, (0.1, None, 0.3, 0.4, 0.5), right=True),
        SHORT,
    ),
    right=Axis("share", form=Form.SHARE),
)  # fmt: skip
BARS = Chart(
    "Cost by month", Axis(), Axis(unit="$"),
    (
        Series("owned", ("Jan", "Feb"), (3.0, 4.0), shape=Shape.BAR),
        Series("spot", ("Jan", "Feb"), (1.0, 2.0), shape=Shape.BAR),
    ),
    stacked=True,
)  # fmt: skip
RANKED = Chart(
    "Cost by policy", Axis(), Axis(unit="$"),
    (Series("cost", ("static", "hpa"), (9.0, 5.0), shape=Shape.BAR),), horizontal=True,
)  # fmt: skip
POINTS = Chart(
    "Latency", Axis("rate", "req/s", log=True), Axis(unit="ms", top=10.0),
    (Series("p95", (1.0, 10.0, 100.0), (1.0, 5.0, 50.0)),
     Series("measured", (10.0,), (6.0,), Role.MEASURED, Shape.POINTS)),
)  # fmt: skip
CHARTS = (OVER_TIME, BARS, RANKED, POINTS)
HEAT = Table(
    (Head("ISL"), Head("128", Form.TEXT), Head("512", Form.TEXT)),
    (("256", "1P:3D", "1P:7D"),), title="Best ratio", shades=((None, 0.25, 0.125),),
)  # fmt: skip
REPORT = Report(
    title="Chat", answer="Run 4 to 6 replicas", meaning=Meaning.MET, about="One day",
    why="It is the cheapest.", warnings=("No N+1.",),
    facts=(Fact("Cost per day", 1781.2, "$", change="-63%", meaning=Meaning.SAVING),
           Fact("SLO attainment", 0.988, form=Form.SHARE, note="target 95.0%")),
    sections=(
        Section("Schedule", (
            Note("Each row applies until the next."),
            Table((Head("From", Form.MOMENT, "UTC"), Head("Replicas", Form.COUNT)),
                  ((START, 4), (TIMES[2], 6)), marked=frozenset({1}), note="Ready replicas."),
            HEAT,
            Facts((Fact("Peak", 6, "replicas", Form.COUNT),)),
        )),
        Section("Charts", CHARTS),
        Section("Sources and assumptions",
                (Note("A guess."), Table((Head("Input"),), (("Price",),))), "Sources", Group.BASIS),
    ),
)  # fmt: skip
COVER = Cover(7, "Plan", "today", "now", "0.1.0", (SignOff("Approved by", "anna"),))


def test_a_terminal_has_the_answer_first_and_aligned_tables() -> None:
    lines = terminal_text(REPORT).splitlines()
    assert lines[0] == REPORT.answer
    first = next(i for i, line in enumerate(lines) if line.split()[:1] == ["From"])
    assert [line.split()[-1] for line in lines[first : first + 3]] == ["Replicas", "4", "6"]
    assert len({len(line) for line in lines[first : first + 3]}) == 1
    assert "\033" not in terminal_text(REPORT)
    assert "\033[32m" + REPORT.answer in terminal_text(REPORT, colour=True)
    assert any("A guess." in line for line in lines) and not any("Price" in line for line in lines)


@given(st.integers(1, 50), st.integers(1, 7200))
def test_the_last_period_of_a_line_lasts_as_long_as_the_others(count: int, seconds: int) -> None:
    starts = [START + i * timedelta(seconds=seconds) for i in range(count)]
    line = step_series("x", starts, range(count))
    assert line.x[:-1] == tuple(starts) and line.y == (*range(count), count - 1)
    assert count == 1 or line.x[-1] - line.x[-2] == timedelta(seconds=seconds)


@given(st.lists(st.tuples(st.integers(0, 30), st.booleans()), max_size=5), st.integers(0, 9))
def test_a_document_loses_nothing(tables: list[tuple[int, bool]], warnings: int) -> None:
    """Rows before the appendix are the first ones, and what is cut is whole in the appendix."""
    heads = (Head("Name"), Head("Source", width=4))
    sections = tuple(
        Section(f"S{i}", (Table(heads, tuple((f"{i}-{r}", "x") for r in range(rows))),),
                group=Group.BASIS if folded else None)
        for i, (rows, folded) in enumerate(tables)
    )  # fmt: skip
    report = replace(REPORT, sections=sections, warnings=tuple(map(str, range(warnings))))
    document = document_of(report)
    for section in sections:
        (table,) = section.tables
        copies = [t for s in (*document.decision, *document.appendix)
                  for t in s.tables if s.title.split(",")[0] == section.title]  # fmt: skip
        assert table in copies
        for copy in copies:
            assert [row[0] for row in copy.rows] == [row[0] for row in table.rows][: len(copy.rows)]
    notes = [block.text for s in document.appendix for block in s.blocks if isinstance(block, Note)]
    assert (*document.warnings, *notes) == report.warnings


TEXTS = st.text("abc -", min_size=1, max_size=60).filter(lambda text: text.strip())


@given(
    st.integers(60, 200),
    st.lists(TEXTS, min_size=1, max_size=8),
    st.lists(st.lists(st.floats(0, 1e6), min_size=8, max_size=8), min_size=1, max_size=5),
)
def test_a_table_fits_the_terminal_and_keeps_its_figures(
    width: int, names: list[str], rows: list[list[float]]
) -> None:
    heads = tuple(Head(f"Figure {i}", Form.NUMBER) for i in range(len(names)))
    figures = Table((Head("Name", width=2), *heads), tuple(
        (name, *row[: len(names)]) for name, row in zip(names, rows, strict=False)
    ))  # fmt: skip
    report = replace(REPORT, sections=(Section("Figures", (figures,)),), facts=())
    lines = terminal_text(report, width=width).splitlines()
    assert max(map(len, lines)) <= width
    words = {word for line in lines for word in line.split()}
    assert {text for row in figures.texts() for text in row[1:]} <= words


def test_a_workbook_has_typed_cells_on_a_sheet_per_table() -> None:
    book = zipfile.ZipFile(io.BytesIO(xlsx_of(REPORT, COVER)))
    space = {"m": "http://schemas.openxmlformats.org/spreadsheetml/2006/main"}
    names = [
        sheet.get("name")
        for sheet in ElementTree.fromstring(book.read("xl/workbook.xml")).iterfind(
            ".//m:sheet", space
        )
    ]
    assert names == ["Answer", "Schedule notes", "Schedule", "Best ratio", "Sources notes",
                     "Sources"]  # fmt: skip
    sheet = ElementTree.fromstring(book.read("xl/worksheets/sheet3.xml"))
    cells = {cell.get("r"): cell for cell in sheet.iterfind(".//m:c", space)}
    value = cells["B3"].find("m:v", space)
    assert value is not None and value.text == "6" and cells["B3"].get("t") is None


def test_a_page_has_a_live_chart_and_a_file_a_drawn_one() -> None:
    live = [block for shown in display_sections(REPORT, live=True) for block in shown.blocks]
    assert [block.figure is not None for block in live if block.kind == "chart"] == [True] * 4
    elements = [block.element for block in live]
    assert len(set(elements)) == len(elements)
    page = html_of(REPORT, COVER)
    assert page.count("<svg") == 4 and "heat-3" in page and "<script" not in page
    assert "$1,781" in page and "98.8%" in page


@pytest.mark.parametrize("chart", CHARTS, ids=lambda chart: chart.title)
def test_a_drawing_stays_within_its_area(chart: Chart) -> None:
    drawing = draw_chart(chart)
    assert drawing.width == WIDTH
    height = drawing.height if chart.horizontal else HEIGHT
    for part in drawing.parts:
        match part:
            case Path():
                places = list(part.points)
            case Box():
                places = [(part.x, part.y), (part.x + part.width, part.y + part.height)]
            case Text():
                places = [(part.x, part.y)]
        for x, y in places:
            assert -0.01 <= x <= WIDTH + 0.01 and -0.01 <= y <= height + 0.01


@pytest.mark.parametrize("chart", CHARTS, ids=lambda chart: chart.title)
def test_a_figure_has_every_value_of_its_chart(chart: Chart) -> None:
    traces = figure_of(chart)["data"]
    axis = "x" if chart.horizontal else "y"
    drawn_values = [list(trace[axis]) for trace in traces]
    for series in chart.series:
        assert list(series.y) in drawn_values
        if series.shape is Shape.BAND:
            assert list(series.low) in drawn_values
    widths = {
        series.role: trace["line"]["width"]
        for series in chart.series
        for trace in traces
        if trace["name"] == series.label and series.shape in (Shape.LINE, Shape.STEP)
    }
    if Role.RECOMMENDED in widths:
        assert widths[Role.RECOMMENDED] == max(widths.values())
