"""Reports: what they say is what the run says, in every format, and nothing in them runs."""

import io
import re
import zipfile
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from html.parser import HTMLParser
from xml.etree import ElementTree
from zoneinfo import ZoneInfo

import polars as pl
import pytest

from planner.domain.formats import ZONE
from planner.domain.report import (
    Axis,
    Chart,
    Form,
    Head,
    Meaning,
    Role,
    Series,
    Shape,
    Table,
    without_constants,
)
from planner.errors import NotFound, NotReady
from planner.models import Run
from planner.outputs.cover import Cover, SignOff
from planner.outputs.files import export_file, formats_of
from planner.outputs.options import ExportOptions
from planner.outputs.plans import plan_of
from planner.outputs.render.document import document_of
from planner.outputs.render.drawing import LEFT, WIDTH, draw_chart
from planner.outputs.render.pdf import (
    TEXT_WIDTH,
    min_widths,
    page_wide_parts,
    pdf_of,
    printable,
)
from planner.outputs.reports import report_about, run_report
from planner.storage import row_arrays
from planner.web.pages.fleet import with_data_age
from tests.planner.web.study import BIN_S, POOLS, START, completed_run

NOW = datetime(2026, 6, 1, 12, tzinfo=UTC)
COVER = Cover(
    1, "Plan", "today", "now", "0.1.0", tuple(map(SignOff, ("Prepared by", "Approved by")))
)
EVIL = "=cmd|' /C calc'!A0 <script>alert(1)</script> 計画"


@pytest.fixture
def run(planner) -> Run:
    run = completed_run(planner)
    run.result["recommended"] = {
        "policy": "flat-peak", "label": "Flat at peak", "sentence": "Run 6 all day.",
        "why": "Take it.", "equal_slo_saving": 0.2, "cost_usd": 800.0,
        "timetable": {
            "pools": [{"region": "us-east", "replica": {
                "model": EVIL, "gpu": "A100-80GB", "tp": 1, "role": "mixed", "market": "owned",
                "arrangement": "1 x A100-80GB"}}],
            "rows": [{"begins": "2024-05-18T00:00:00Z", "replicas": [6]},
                     {"begins": "2024-05-18T12:00:00Z", "replicas": [9]}],
            "by_itself": False,
        },
        "assurance": "balanced", "qualifies": True,
    }  # fmt: skip
    on_day = {"cost_usd": 790.0, "attainment": {"IW-F": 0.96}, "passes": True}
    run.result["test_days"] = [
        {"name": "Past: Monday", "kind": "past", "parameters": {}, "required": True, "weight": 1.0,
         "cases": 1, "pass_share": 1.0, "not_applicable": "",
         "policies": {"flat-peak": on_day,
                      "lt-i": on_day | {"cost_usd": 700.0, "passes": False}}},
        {"name": "Region lost", "kind": "region_lost", "parameters": {}, "required": False,
         "weight": 0.0, "cases": 0, "pass_share": 1.0,
         "not_applicable": "The scenario has one region.", "policies": {}},
    ]  # fmt: skip
    run.result["assurance"] = {
        level: {"policy": "flat-peak", "label": "Flat at peak", "parameters": {"replicas": 6.0},
                "cost_usd": 790.0, "qualifies": True, "failing": [], "spare": False,
                "expected": {"cost_usd": {"mean": 790.0, "low": 780.0, "high": 800.0},
                             "attainment": {"IW-F": {"mean": 0.96, "low": 0.95, "high": 0.97}}}}
        for level in ("economy", "balanced", "safe")
    }  # fmt: skip
    run.result["assumptions"] = [
        {"what": "Price", "value": "$2 an hour", "provenance": "assumed", "source": "a guess",
         "key": "regions", "matters": ""},
    ]  # fmt: skip
    run.save()
    return run


def content(run: Run, to: str) -> bytes:
    return export_file(run=run, to=to, options=ExportOptions(), now=NOW).content


class Tags(HTMLParser):
    """Tags that occur, and where anything leads."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.links: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.links += [value or "" for name, value in attrs if name in ("src", "href", "srcset")]


@pytest.mark.django_db
def test_a_report_is_one_file_that_asks_nobody_for_anything(run):
    page = content(run, "html").decode()
    tags = Tags()
    tags.feed(page)
    assert not tags.tags & {"script", "link", "img", "iframe"} and not tags.links
    assert "http" not in re.sub(r"http-equiv", "", page) and "url(" not in page
    for words in ("a guess", "Past: Monday", "Sign-off", "12:00",
                 "A flat fleet of 9 instances beats the plan."):  # fmt: skip
        assert words in page
    assert "<script>" not in page and "&lt;script&gt;" in page


@pytest.mark.django_db
@pytest.mark.parametrize("to", ["html", "xlsx"])
def test_a_report_is_about_the_chosen_policy(run, to):
    def written(policy: str | None) -> bytes:
        options = ExportOptions(policy=policy)
        return export_file(run=run, to=to, options=options, now=NOW).content

    assert written("flat-peak") == written(None) != written("lt-i")
    with pytest.raises(NotFound):
        written("nobody")


@pytest.mark.django_db
def test_a_policy_of_several_levels_is_reported_as_the_lowest(run):
    levels = ("economy", "balanced", "safe")
    run.result["alternatives"] = dict.fromkeys(levels, "flat-peak") | {"static": "flat-peak"}
    run.save()
    assert report_about(run, "flat-peak") == run_report(run, "economy") != run_report(run, "safe")


@pytest.mark.django_db
def test_the_replicas_have_the_peak_that_a_guard_may_reach(run):
    report = run_report(run)
    replicas = next(fact for fact in report.facts if fact.link == "schedule")
    (peak,) = re.findall(r"\d+", replicas.note)
    assert int(peak) > max(map(int, re.findall(r"\d+", replicas.text)))


@pytest.mark.django_db
def test_a_workbook_has_text_as_text_and_its_heads_frozen(run):
    book = zipfile.ZipFile(io.BytesIO(content(run, "xlsx")))
    sheets = [name for name in book.namelist() if name.startswith("xl/worksheets/sheet")]
    space = {"m": "http://schemas.openxmlformats.org/spreadsheetml/2006/main"}
    for name in sheets:
        sheet = ElementTree.fromstring(book.read(name))
        assert sheet.find(".//m:pane[@state='frozen']", space) is not None, name
        assert not sheet.findall(".//m:f", space)
    texts = book.read("xl/sharedStrings.xml").decode()
    for head in ("Cost ($)", "Energy (kWh)", "From (UTC)", "Carbon (kg CO2e)", "計画"):
        assert head in texts


@pytest.mark.django_db
def test_a_pdf_opens_and_says_what_it_could_not_write(run):
    pdf = content(run, "pdf")
    assert pdf.startswith(b"%PDF-") and pdf.rstrip().endswith(b"%%EOF")
    assert len(re.findall(rb"/Type /Page\b", pdf)) >= 2
    assert printable("CO₂ − 計") == "CO2 - ?"
    assert content(run, "pdf") == pdf  # the same bytes for the same moment


def test_a_table_too_wide_for_a_page_is_several():
    heads = tuple(Head(str(i), Form.COUNT) for i in range(40))
    parts = page_wide_parts(Table(heads, (tuple(range(40)),)))
    assert [value for part in parts for value in part.rows[0][1:]] == list(range(1, 40))
    assert all(part.rows[0][0] == 0 and sum(min_widths(part)) <= TEXT_WIDTH for part in parts)


def test_a_constant_column_that_may_go_is_in_the_note():
    heads = tuple(Head(f"pool {i}", Form.COUNT) for i in range(40))
    wide = Table(heads, (tuple(range(40)), (*range(1, 21), *range(20, 40))), note="Of a day.")
    narrow = without_constants(wide, lambda head: head.numeric)
    assert list(narrow.rows) == [row[:20] for row in wide.rows]
    assert all(f"pool {i} {i}" in narrow.note for i in range(20, 40))
    assert narrow.note.endswith(wide.note)
    assert without_constants(wide, lambda head: False) == wide
    same = Table(heads[:2], ((1, 2), (1, 2)))  # the first column names the rows
    assert [head.text for head in without_constants(same, lambda head: True).heads] == ["pool 0"]
    single = Table(heads[:2], ((1, 2),))
    assert without_constants(single, lambda head: True) == single


@pytest.mark.django_db
def test_a_report_is_in_the_zone_of_each_reader(run):
    def about(zone: str) -> str:
        token = ZONE.set(ZoneInfo(zone))
        try:
            return run_report(run).about
        finally:
            ZONE.reset(token)

    zones = ("UTC", "Asia/Tokyo", "UTC")
    assert [about(zone).rpartition(" ")[2] for zone in zones] == [*zones]


@pytest.mark.django_db
def test_the_decision_is_on_two_pages(run):
    report = run_report(run)
    document = document_of(report)
    assert document.appendix
    decision = replace(report, sections=document.decision, warnings=document.warnings)
    pdf = pdf_of(decision, COVER)
    assert len(re.findall(rb"/Type /Page\b", pdf)) <= 2


@pytest.mark.django_db
def test_the_table_of_alternatives_is_the_comparison(run):
    (table,) = next(s.tables for s in run_report(run).sections if s.sheet == "Policies")
    heads = [head.full for head in table.heads]
    for row, name in zip(table.rows, run.result["ranking"], strict=True):
        figures = run.result["policies"][name]
        assert row[heads.index("Cost ($)")] == figures["cost_usd"]
        assert row[heads.index("SLO attainment: IW-F")] == figures["slo_attainment"]["IW-F"]
        if name != "today":
            assert row[heads.index("Saving vs baseline")] == pytest.approx(
                1 - figures["cost_usd"] / 1000
            )
    (marked,) = table.marked
    assert table.rows[marked][0] == "Flat at peak"


@pytest.mark.django_db
def test_test_days_have_the_figures_of_the_result(run):
    sheets = {section.sheet: section for section in run_report(run).sections}
    (policies,) = sheets["Policies"].tables
    heads = [head.full for head in policies.heads]
    passed = {row[0]: row[heads.index("Required test days passed")] for row in policies.rows}
    for key, label in (("flat-peak", "Flat at peak"), ("lt-i", "Planned (LT-I)")):
        days = [day["policies"].get(key) for day in run.result["test_days"] if day["required"]]
        tried = [day for day in days if day]
        assert passed[label] == f"{sum(day['passes'] for day in tried)} of {len(tried)}"
    (days,) = sheets["Test days"].tables
    heads = [head.full for head in days.heads]
    monday, lost = days.rows
    assert monday[heads.index("Cost ($)")] == 790.0 and lost[heads.index("Cost ($)")] is None
    assert lost[heads.index("Not applicable")] == "The scenario has one region."


@pytest.mark.django_db
def test_an_alternative_redraws_tiles_charts_and_schedule(run):
    """Each alternative is the plan of its policy, with the cost of that policy in the window."""
    run.result["alternatives"] = {"economy": "lt-i", "balanced": "flat-peak", "static": "flat-peak"}
    run.save()
    reports = {name: run_report(run, name) for name in ("", "economy", "balanced")}
    assert reports[""] == reports["balanced"]
    for name, key in (("economy", "lt-i"), ("balanced", "flat-peak")):
        report = reports[name]
        facts = {fact.label: fact for fact in report.facts}
        assert facts["Cost per day"].value == run.result["policies"][key]["cost_usd"]
        assert [each.name for each in report.alternatives if each.shown] == [name]
        prices = {each.name: each.price.value for each in report.alternatives}
        assert prices["economy"] == run.result["policies"]["lt-i"]["cost_usd"]
        _, replicas = report.charts
        ready = row_arrays.table_read(run.store, "replicas").filter(pl.col("policy") == key)
        first = ready.filter(pl.col("time") == ready["time"].min())["ready"].sum()
        rounding = 0.5 * len(replicas.series)  # each pool is shown as a count
        assert sum(series.y[0] for series in replicas.series) == pytest.approx(first, abs=rounding)
    assert reports["economy"].charts != reports["balanced"].charts


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("passes", "survives", "safe"),
    [(True, False, False), (True, True, True), (False, True, False), (None, True, True)],
)
def test_a_lost_replica_is_survived_on_its_test_day_and_in_the_window(run, passes, survives, safe):
    run.result["policies"]["flat-peak"] |= {"survives": 0.95, "n_plus_1": survives}
    if passes is not None:
        day = run.result["test_days"][0]
        on_day = day["policies"]["flat-peak"] | {"passes": passes}
        run.result["test_days"].append(
            day | {"name": "N+1", "kind": "replica_lost", "policies": {"flat-peak": on_day}}
        )
    run.result["alternatives"] = {"economy": "lt-i", "balanced": "flat-peak"}
    run.result["assurance"]["balanced"]["spare"] = True
    run.save()
    report = run_report(run)
    (risk,) = [fact for fact in report.facts if fact.label == "Redundancy"]
    (card,) = [each.price for each in report.alternatives if each.shown]
    # The plan is not tested at the error of its profiles, so nothing is green.
    assert risk.meaning is (Meaning.NEUTRAL if safe else Meaning.RISK)
    run.result = run.result | {"speed_error": None}
    run.save()
    (risk,) = [fact for fact in run_report(run).facts if fact.label == "Redundancy"]
    assert risk.meaning is (Meaning.MET if safe else Meaning.RISK)
    assert card.meaning is (Meaning.NEUTRAL if safe else Meaning.RISK)


@pytest.mark.django_db
@pytest.mark.parametrize(("days", "meaning"), [(6, Meaning.MET), (9, Meaning.RISK)])
def test_a_result_states_the_age_of_its_data(run, days, meaning):
    """Data of more than a week ago lacks the newest week, by which demand repeats."""
    report, begins = run_report(run), run_report(run).charts[0].series[0].x[0]
    shown = with_data_age(report, run, begins + timedelta(days=days))
    (age,) = [fact for fact in shown.trust if fact not in report.trust]
    assert age.value == f"{days} days old" and age.meaning is meaning
    assert len(shown.trust) == len(report.trust) + 1 and shown.facts == report.facts


@pytest.mark.django_db
def test_demand_above_the_capacity_of_its_model_is_shaded(run):
    """The surplus of one model does not hide the shortfall of another."""
    capacity = pl.DataFrame([
        {"policy": "flat-peak", "time": START, "model": model, "region": region,
         "capacity_tps": tps}
        for (model, region), tps in zip(POOLS, (1000.0, 1e9), strict=True)
    ])  # fmt: skip
    tables = {
        name: row_arrays.table_read(run.store, name) for name in row_arrays.tables_list(run.store)
    }
    row_arrays.tables_write(run.store, tables | {"capacity": capacity})
    demand, _ = run_report(run).charts
    (short,) = [series for series in demand.series if series.role is Role.SHORTFALL]
    (wanted,) = [series for series in demand.series if series.role is Role.DEMAND]
    of_first = tables["demand"].filter(pl.col("model") == POOLS[0][0], pl.col("time") >= START)
    lacking = (of_first["input_tokens"] / BIN_S - 1000.0).clip(lower_bound=0).to_list()
    shaded = [high - low for high, low in zip(short.y, short.low, strict=True)]
    assert shaded[:-1] == pytest.approx(lacking, abs=0.2)
    assert short.y == wanted.y


@pytest.mark.django_db
def test_only_what_was_planned_or_replayed_has_a_report(run):
    assert [*formats_of(run)] == ["Report", "Where it takes effect"]
    run.kind = Run.Kind.INGEST
    assert not formats_of(run)
    with pytest.raises(NotReady, match="has no report"):
        run_report(run)


@pytest.mark.django_db
def test_a_rule_without_a_timetable_leaves_as_its_target(run):
    """A policy by name: its kept timetable, else what it scales by, else a sentence."""
    run.result["policies"]["hpa-queue"] = {
        "label": "HPA", "settings": [
            {"what": "metric", "where": "", "value": "queue"},
            {"what": "target", "where": "", "value": 5.0},
            {"what": "tolerance", "where": "", "value": 0.1},
            {"what": "replicas at least", "where": "llama-3.1-8b in us-east, 1 x A100", "value": 1},
            {"what": "replicas at most", "where": "llama-3.1-8b in us-east, 1 x A100", "value": 8},
        ],
    }  # fmt: skip
    for decision in run.result["plan"]["decisions"]:
        decision["arrangement"] = "1 x A100"
    plan = plan_of(run, ExportOptions(policy="hpa-queue"), NOW)
    assert plan.rule is not None and (plan.rule.metric, plan.rule.target) == ("queue", 5.0)
    assert [(pool.region, pool.min_replicas, pool.max_replicas) for pool in plan.pools] == [
        ("us-east", 1, 8)
    ]
    with pytest.raises(NotReady, match="no target of a Kubernetes autoscaler"):
        plan_of(run, ExportOptions(policy="lt-i"), NOW)
    rows = {"policy": "lt-i", "begins": START, "model": "m", "region": "r", "gpu": "g", "tp": 1,
            "role": "mixed", "market": "owned", "arrangement": "1 x g", "replicas": 4}  # fmt: skip
    row_arrays.tables_write(run.store, {"timetables": pl.DataFrame([rows])})
    plan = plan_of(run, ExportOptions(policy="lt-i"), NOW)
    assert plan.pools[0].max_replicas == 4 and plan.repeat == "daily"


def test_lines_of_a_chart_are_steps_from_edge_to_edge():
    times = tuple(START + timedelta(hours=h) for h in (0, 6, 24))
    line = Series("Ready", times, (2.0, 3.0, 3.0), shape=Shape.STEP)
    parts = draw_chart(Chart("Replicas", Axis(), Axis(unit="replicas"), (line,))).parts
    path = max((p for p in parts if hasattr(p, "points")), key=lambda p: len(p.points))
    assert [x for x, _ in path.points] == sorted(x for x, _ in path.points)
    assert path.points[0][0] == LEFT and path.points[-1][0] < WIDTH
    rises = [b[1] - a[1] for a, b in zip(path.points, path.points[1:], strict=False)]
    assert sum(rise != 0 for rise in rises) == 1
