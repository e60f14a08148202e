"""The recipes of CONTRIBUTING are exact: each is carried out on a toy, in a copy of the tree."""

from __future__ import annotations

from pathlib import Path

from tests.recipes import copy_of_the_tree


def test_a_copy_of_the_tree_stands_by_itself(tmp_path: Path) -> None:
    tree = copy_of_the_tree(tmp_path)
    tree.write("planner/toy.py", "NAME = 'toy'\n")
    tree.patch("planner/toy.py", "'toy'", "'a toy'")
    assert tree.run("import planner.toy; print(planner.toy.NAME, planner.toy.__file__)") == (
        f"a toy {tree.root / 'planner' / 'toy.py'}\n"
    )
    assert tree.touched == {"planner/toy.py"}


EVEN_RULE = '''"""Whole pairs of instances."""

from dataclasses import dataclass

from simulation.arrays import IntArray
from simulation.fleet import Fleet
from simulation.policies.parts.endpoints import initial_counts
from simulation.policy import Observation, ScalingPolicy


@dataclass(eq=False)
class Even(ScalingPolicy):
    """What the fleet begins with, rounded up to a multiple of ``pair``."""

    pair: int = 2
    interval_s: float = 60.0
    name: str = "even"

    def reset(self, fleet: Fleet) -> IntArray:
        self._counts = -(-initial_counts(fleet) // self.pair) * self.pair
        return self._counts.copy()

    def decide(self, observation: Observation) -> IntArray:
        return self._counts.copy()
'''
EVEN_WORDS = '''"""Whole pairs of instances."""

from typing import ClassVar, Literal

from planner.policies.base import Group, Interval, Policy, Traits
from planner.policies.context import BuiltPolicy, PolicyContext
from planner.schema_types import Count
from simulation.policies.even import Even as Rule


class Even(Policy):
    """Whole pairs of instances."""

    kinds: ClassVar = {
        "even": Traits("In pairs", "Rounded up to pairs.", Group.REACTIVE, complexity=3)
    }

    name: Literal["even"]
    pair: Count = Rule.pair
    interval_s: Interval = Rule.interval_s

    def build(self, context: PolicyContext) -> BuiltPolicy:
        return context.with_current_fleet(Rule(**self.arguments, name=self.key))
'''
EVEN_TEST = """from simulation.policies.even import Even
from simulation.policy_check import check


def test_pairs():
    check(Even, fleets=("one",))
"""
EVEN_COMPARED = """
import os, tempfile
from pathlib import Path
os.environ["DJANGO_SETTINGS_MODULE"] = "planner.config.settings"
import django; django.setup()
from planner.policies.choice import policy_of
from planner.inputs.scenario.publish import SCHEMA_PATH, schema_text
from planner.domain.kinds.compare import Options, run
from planner.domain.progress import silent
from planner.web.forms.scenario import StudyForm
from tests.planner.policies import test_registry as declared
from tests.planner.domain import builders as make

assert policy_of("even").pair == 2
assert ("even", "In pairs") in list(StudyForm().fields["policies"].choices)
assert SCHEMA_PATH.read_text() == schema_text()
declared.test_every_policy_is_shown_once_under_its_group()
lengths = {"input_tokens": {"mean": 800}, "output_tokens": {"mean": 40}}
scenario = make.scenario(
    policies=["flat-peak", {"name": "even", "pair": 5}],
    traffic={"sources": [make.source(**lengths)]},
    horizon={"period_s": 300, "duration_s": 900},
)
stored = make.demand_file(Path(tempfile.mkdtemp()), {"a": [900 + 90 * (i % 9) for i in range(60)]})
document = run(scenario, {"t": stored}, Options(), progress=silent).document
even = document["policies"]["even"]
hours = even["instance_hours"] - even["before_gpu_hours"] - even["after_gpu_hours"]
print(document["baselines"][:2], even["label"], round(hours / 0.25, 6) % 5)
"""


def test_a_policy(tmp_path: Path) -> None:
    tree = copy_of_the_tree(tmp_path)
    tree.write("simulation/policies/even.py", EVEN_RULE)
    tree.write("planner/policies/builtin/even.py", EVEN_WORDS)
    tree.write("tests/simulation/policies/test_even.py", EVEN_TEST)
    tree.generate("docs/scenario.schema.json", "planner.inputs.scenario.publish")
    assert len(tree.touched) == 4
    page = (tree.root / "docs/policies.md").read_text()
    assert "| `even` | In pairs |" in page and "| `pair` | 2 |" in page
    assert "1 passed" in tree.pytest("tests/simulation/policies/test_even.py")
    assert tree.run(EVEN_COMPARED).splitlines()[-1] == "['flat-peak', 'even'] In pairs 0.0"


TOY_EXPORT = '''"""Write a plan as counts by pool."""

from planner.outputs.manifests.common import Document, Export, heading, with_head


def documents(export: Export) -> list[Document]:
    """Return one object with the largest count of each pool."""
    body = {"counts": {pool.name: pool.most for pool in export.plan.pools}}
    return with_head([Document(body, "toy")], heading(export))
'''
TOY_EXPORT_EVERYWHERE = """
import os
os.environ["DJANGO_SETTINGS_MODULE"] = "planner.config.settings"
import django; django.setup()
from django.core.management import load_command_class
from planner.outputs.files import FORMATS
from planner.outputs.manifests.kinds import MANIFESTS
from planner.outputs.validation import check
from tests.planner.outputs.samples import asked, plan_of, pool_of, steps_of

(document,) = MANIFESTS["toy"].documents(asked(plan_of(pool_of(steps_of([(60, 2), (60, 5)])))))
check(document.schema, document.body, "it")
parser = load_command_class("planner", "export").create_parser("manage.py", "export")
print(document.body, FORMATS["toy"].label, parser.parse_args(["7", "--to", "toy"]).to)
"""


def test_an_export(tmp_path: Path) -> None:
    tree = copy_of_the_tree(tmp_path)
    tree.write("planner/outputs/manifests/toy.py", TOY_EXPORT)
    kinds = "planner/outputs/manifests/kinds.py"
    tree.patch(kinds, "kserve, llmd, wva", "kserve, llmd, toy, wva")
    tree.patch(kinds, '    "keda": ', '    "toy": Manifest("Toy", toy.documents),\n    "keda": ')
    assert len(tree.touched) == 2
    assert tree.run(TOY_EXPORT_EVERYWHERE) == "{'counts': {'chat': 5}} Toy toy\n"


KEY = """    startup_s: Delay = 600"""
KEY_READ = """
import json
from planner.inputs.scenario.publish import SCHEMA_PATH
from tests.planner.domain import builders as make

assert make.scenario(fleet={"toys": 7}).fleet.toys == 7
assert make.scenario().fleet.toys == 3
fleet = json.loads(SCHEMA_PATH.read_text())["$defs"]["Fleet"]
print(fleet["properties"]["toys"]["description"])
"""


def test_a_scenario_key(tmp_path: Path) -> None:
    tree = copy_of_the_tree(tmp_path)
    section = "planner/inputs/scenario/schema/fleet.py"
    tree.patch(section, KEY, f"    toys: Count = 3  # toys of the fleet\n{KEY}")
    tree.generate("docs/scenario.schema.json", "planner.inputs.scenario.publish")
    assert len(tree.touched) == 2
    page = (tree.root / "docs/scenario.md").read_text()
    assert "| `toys` | integer (3) | Toys of the fleet. |" in page
    assert tree.run(KEY_READ) == "Toys of the fleet.\n"


DOUBLED = """\
from dataclasses import dataclass

from forecasting.arrays import FloatArray, IntArray
from forecasting.panel import Panel
from forecasting.rules.naive import LastValue


@dataclass(frozen=True, slots=True)
class Doubled:
    '''Repeat twice the last observed amount.'''

    def fit(self, panel: Panel) -> Doubled:
        return self

    def paths(self, panel: Panel, origins: IntArray, steps: int) -> FloatArray:
        return 2 * LastValue().paths(panel, origins, steps)
"""
DOUBLED_USED = """
import numpy as np
from forecasting.panel import Panel
from forecasting.panel_forecaster import PanelForecaster
from forecasting.rules.registry import PANEL_METHODS
from tests.planner.domain import builders as make

values = np.full((1, 200), 3.0)
ahead = PanelForecaster("doubled").fit(Panel(0.0, 3600.0, values)).predict(2)
assert "doubled" in PANEL_METHODS
assert make.scenario(forecast={"method": "doubled"}).forecast.method == "doubled"
print(ahead.mean.tolist())
"""


def test_a_forecaster(tmp_path: Path) -> None:
    tree = copy_of_the_tree(tmp_path)
    tree.write("forecasting/rules/doubled.py", f"from __future__ import annotations\n\n{DOUBLED}")
    registry, methods = (
        "forecasting/rules/registry.py",
        "planner/inputs/scenario/schema/planning.py",
    )
    first = "from forecasting.rules.kalman"
    tree.patch(registry, first, f"from forecasting.rules.doubled import Doubled\n{first}")
    tree.patch(registry, '    "kalman": ', '    "doubled": Doubled(),\n    "kalman": ')
    tree.patch(methods, '    "kalman",', '    "doubled",\n    "kalman",')
    tree.generate("docs/scenario.schema.json", "planner.inputs.scenario.publish")
    tree.generate("docs/options.md", "planner.domain.kinds.publish")
    assert len(tree.touched) == 5
    assert tree.run(DOUBLED_USED) == "[[6.0, 6.0]]\n"


TOY_FORMAT = """\
title = "Toy log (CSV)"
words = "Toy log: When, Asked, Told; times in hours"
docs = "https://example.org/toylog"
kind = "requests"
known_by = ["When", "Asked", "Told"]
unit = "h"
where = [["Told != 0", "nothing was told"]]

[columns]
arrival = "When"
input_tokens = "Asked"
output_tokens = "Told"

[example]
file = "toylog.csv"
text = '''
When,Asked,Told,Model
0.5,10,20,m
1.5,30,0,m
2.5,1,2,n
'''
expect = { requests = 2, input_tokens = 11, rows_rejected = 1 }
"""
TOY_FORMAT_TEST = """

def test_toylog_counts_hours_and_names_what_failed(ingest):
    report = ingest("When,Asked,Told,Model\\n0.5,10,20,m\\n1.5,30,0,m\\n2.5,1,2,n\\n")
    assert (report.format, report.kind, report.end) == ("toylog", "requests", "+9000s")
    assert report.reject_reasons == {"nothing was told": 1}
    assert (report.input_tokens, report.models) == (11, ("m", "n"))
"""
TOY_FORMAT_AT_EVERY_DOOR = """
import os
os.environ["DJANGO_SETTINGS_MODULE"] = "planner.config.settings"
import django
django.setup()
from argparse import ArgumentParser
from planner.api.serializers.options import UploadRequest
from planner.management.commands.ingest import Command
from planner.web.views.traces import UploadForm
print(dict(UploadForm().fields["format"].choices)["toylog"])
print(UploadRequest().fields["format"].choices["toylog"])
parser = ArgumentParser()
Command().add_arguments(parser)
print(parser.parse_args(["x.csv", "--format", "toylog"]).format)
"""


def test_a_file_format(tmp_path: Path) -> None:
    tree = copy_of_the_tree(tmp_path)
    tree.write("planner/inputs/ingest/connectors/toylog.toml", TOY_FORMAT)
    tree.generate("docs/formats.md", "planner.inputs.ingest.publish")
    tests = "tests/planner/inputs/ingest/test_formats.py"
    last = "\n\ndef test_the_page_of_formats_is_written_from_their_declarations"
    tree.patch(tests, last, TOY_FORMAT_TEST + last)
    assert len(tree.touched) <= 3
    done = tree.pytest("--confcutdir=tests/planner/inputs/ingest", tests, "-k", "toylog")
    assert "passed" in done
    assert tree.run(TOY_FORMAT_AT_EVERY_DOOR).splitlines() == ["Toy log (CSV)", "toylog", "toylog"]


COLUMN = """\
        Column("usd_per_request", USD, "of completed requests",
               lambda run: run.summary.cost_usd / run.summary.completed,
               heads={POLICY_TABLE: "Per request"}),
        Column("gpu_energy_kwh", KWH"""
SHOWN = """\
import os
import django
os.environ["DJANGO_SETTINGS_MODULE"] = "planner.config.settings"
django.setup()

from planner.api.results import results_schema
from planner.domain.reports import policies
from planner.domain.serialise import as_json
from planner.domain.results.ranking import compare
from planner.domain.results.figures import policies_table
from tests.planner.domain.results.test_verdict import run

policy = run("lt-i", 20.0, completed=5)
result = as_json(compare([policy]))  # what API and command line answer with
row = result["policies"]["lt-i"]
assert row["usd_per_request"] == 4.0
assert policies_table([policy])["usd_per_request"].to_list() == [4.0]  # the CSV
page = policies.policies_table([policies.Row("LT-I", row | {"name": "lt-i"})], None, {})
cells = {head.full: text for head, text in zip(page.heads, page.texts()[0])}
assert cells["Per request ($)"] == "4"
compared = next(one for one in results_schema()["anyOf"] if one["title"] == "CompareResult")
columns = compared["properties"]["policies"]["additionalProperties"]["properties"]
assert columns["usd_per_request"]["description"] == "of completed requests [$]"
"""


def test_a_column_of_a_result(tmp_path: Path) -> None:
    tree = copy_of_the_tree(tmp_path)
    figures = "planner/domain/results/figures.py"
    tree.patch(figures, '        Column("gpu_energy_kwh", KWH', COLUMN)
    tree.generate("docs/results.md", "planner.domain.results.publish")
    tree.run(SHOWN)
    assert "| `usd_per_request` | $ |" in (tree.root / "docs/results.md").read_text()
    assert tree.touched == {figures, "docs/results.md"}


PER_GPU = (
    '        (Head("Per GPU", Form.NUMBER, "req/s"),\n'
    "         lambda pool: pool.sized.max_rps / pool.sized.replica.tp),\n"
    '        (Head("Input", Form.NUMBER, "tokens/s")'
)
EVERY_FORMAT = """
import io, os, zipfile
os.environ["DJANGO_SETTINGS_MODULE"] = "planner.config.settings"
import django; django.setup()
from planner.domain.report import Report, Section
from planner.domain.reports.size import _capacity
from planner.outputs.cover import Cover
from planner.outputs.render.html import html_of
from planner.outputs.render.terminal import terminal_text
from planner.outputs.render.xlsx import xlsx_of
from types import SimpleNamespace as Made

replica = Made(model="m", arrangement="4 x G", role="mixed", tp=4)
sized = Made(replica=replica, tier="chat", max_rps=10.0, input_tps=1.0, bound_by="ttft",
             ttft_ms=1.0, tbt_ms=1.0)
again = {"max_rps_if_slower": 1.0, "max_rps_if_faster": 1.0}
pool = Made(sized=sized, percentile=95, expected_error=0.1, again=again)
report = Report("a", "b", (Section("c", (_capacity(Made(pools=(pool,))),)),))
cover = Cover(1, "", "", "", "")
assert "Per GPU (req/s)" in terminal_text(report) and "2.50" in terminal_text(report)
assert "Per GPU" in html_of(report, cover)
book = zipfile.ZipFile(io.BytesIO(xlsx_of(report, cover)))
assert "Per GPU (req/s)" in book.read("xl/sharedStrings.xml").decode()
"""


def test_a_column_of_a_report(tmp_path: Path) -> None:
    tree = copy_of_the_tree(tmp_path)
    reports = "planner/domain/reports/size.py"
    tree.patch(reports, '        (Head("Input", Form.NUMBER, "tokens/s")', PER_GPU)
    tree.run(EVERY_FORMAT)
    assert tree.touched == {reports}


REMARK = """class Options(RunOptions):
    remark: str = Field(
        "", title="Remark", max_length=80, description="Kept among the notes of the result."
    )
"""
REMARK_TEST = """
from planner.domain.kinds.size import Options
from planner.domain.options import options_in


def test_a_remark_is_short():
    assert options_in(Options)["remark"].longest == 80
"""
REMARK_AT_EVERY_DOOR = """
import os, tempfile
from pathlib import Path
os.environ["DJANGO_SETTINGS_MODULE"] = "planner.config.settings"
import django; django.setup()
from django.core.management import load_command_class
from planner.api.serializers.options import REQUESTS
from planner.errors import OptionsRefused
from planner.management.options import options_said
from planner.domain.kinds import plan, size
from planner.domain.options import options_of
from planner.domain.progress import silent
from planner.domain.kinds.publish import PAGE, page_text
from planner.web.forms.options import OptionsForm
from tests.planner.domain import builders as make

parser = load_command_class("planner", "size").create_parser("manage.py", "size")
words = vars(parser.parse_args(["plan.yml", "--isl", "50", "--osl", "9", "--remark", "mine"]))
options = options_of(size.Options, options_said(size.Options, words))
field = REQUESTS["size"]().fields["remark"]
print(field.max_length, field.help_text)
print(OptionsForm(size.Options).fields["remark"].label)
try:
    options_of(plan.Options, {"remark": "mine"})
except OptionsRefused as refused:
    print(str(refused).partition(";")[0])
assert "| `remark` |" in PAGE.read_text() == page_text()
stored = make.demand_file(Path(tempfile.mkdtemp()), {"a": [900] * 60})
lengths = {"input_tokens": {"mean": 50, "cv": 1.0}, "output_tokens": {"mean": 9, "cv": 1.0}}
scenario = make.scenario(traffic__sources=[make.source(series="a", **lengths)])
print(size.run(scenario, {"t": stored}, options, progress=silent).document["notes"][0])
"""


def test_an_option_of_a_kind_of_run(tmp_path: Path) -> None:
    tree = copy_of_the_tree(tmp_path)
    kind = "planner/domain/kinds/size.py"
    tree.patch(kind, "class Options(RunOptions):\n", REMARK)
    tree.patch(
        kind,
        "    notes: list[str] = []\n",
        "    notes: list[str] = [options.remark] if options.remark else []\n",
    )
    tree.generate("docs/options.md", "planner.domain.kinds.publish")
    test = "tests/planner/domain/kinds/test_remark.py"
    tree.write(test, REMARK_TEST)
    assert len(tree.touched) == 3
    assert "1 passed" in tree.pytest(f"--confcutdir={Path(test).parent}", test)
    assert tree.run(REMARK_AT_EVERY_DOOR).splitlines() == [
        "80 Kept among the notes of the result.",
        "Remark",
        "remark: this is not known here",
        "mine",
    ]
