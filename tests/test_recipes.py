"""The recipes of CONTRIBUTING are exact: each is carried out on a toy, in one copy of the tree."""

import re

import pytest

from tests.recipes import ROOT, Recipe, copy_of_the_tree

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
import tempfile
from pathlib import Path
from planner.policies.choice import policy_of
from tools.docs import DOCS, pages
from planner.domain.kinds.compare import Options, run
from planner.domain.outcome import Inputs
from planner.domain.progress import silent
from planner.web.forms.scenario import StudyForm
from tests.planner.policies import test_registry as declared
from tests.planner.domain import builders as make

assert policy_of("even").pair == 2
assert ("even", "In pairs") in list(StudyForm().fields["policies"].choices)
assert all((DOCS / page).read_text() == text for page, text in pages().items())
page = Path("docs/policies.md").read_text()
assert "| `even` | In pairs |" in page and "| `pair` | 2 |" in page
declared.test_every_policy_is_shown_once_under_its_group()
lengths = {"input_tokens": {"mean": 800}, "output_tokens": {"mean": 40}}
scenario = make.scenario(
    policies=["flat-peak", {"name": "even", "pair": 5}],
    traffic={"sources": [make.source(**lengths)]},
    horizon={"period_s": 300, "duration_s": 900},
)
stored = make.demand_file(Path(tempfile.mkdtemp()), {"a": [900 + 90 * (i % 9) for i in range(60)]})
document = run(Inputs(scenario, {"t": stored}), Options(), silent).document
even = document["policies"]["even"]
hours = even["instance_hours"] - even["before_gpu_hours"] - even["after_gpu_hours"]
print(document["baselines"][:2], even["label"], round(hours / 0.25, 6) % 5)
"""

TOY_FORMAT = """\
title = "Toy log (CSV)"
words = "Toy log: When, Prompt, Answer; times in hours"
docs = "https://example.org/toylog"
kind = "requests"
known_by = ["When", "Prompt", "Answer"]
unit = "h"
where = [["Answer != 0", "no output"]]

[columns]
arrival = "When"
input_tokens = "Prompt"
output_tokens = "Answer"

[example]
file = "toylog.csv"
text = '''
When,Prompt,Answer,Model
0.5,10,20,m
1.5,30,0,m
2.5,1,2,n
'''
expect = { requests = 2, input_tokens = 11, rows_rejected = 1 }
"""
TOY_FORMAT_TEST = """
from planner.inputs.ingest import IngestOptions, ingest_file

ROWS = "When,Prompt,Answer,Model\\n0.5,10,20,m\\n1.5,30,0,m\\n2.5,1,2,n\\n"


def test_toylog_counts_hours_and_names_what_failed(tmp_path):
    (tmp_path / "toylog.csv").write_text(ROWS)
    report = ingest_file(tmp_path / "toylog.csv", tmp_path / "store", IngestOptions())
    assert (report.format, report.kind, report.end) == ("toylog", "requests", "+9000s")
    assert report.reject_reasons == {"no output": 1}
    assert (report.input_tokens, report.models) == (11, ("m", "n"))
"""
TOY_FORMAT_AT_EVERY_DOOR = """
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

TOY_EXPORT = '''"""Write a plan as counts by pool."""

from planner.outputs.manifests.common import Document, Export, with_file_comment


def documents(export: Export) -> list[Document]:
    """Return one object with the largest count of each pool."""
    body = {"counts": {pool.name: pool.max_replicas for pool in export.plan.pools}}
    return with_file_comment(export, [Document(body, "toy")])
'''
TOY_EXPORT_EVERYWHERE = """
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

KEY = "    startup_s: Delay = 600"
KEY_READ = """
import json
from pathlib import Path
from tests.planner.domain import builders as make

assert make.scenario(fleet={"toys": 7}).fleet.toys == 7
assert make.scenario().fleet.toys == 3
fleet = json.loads(Path("docs/scenario.schema.json").read_text())["$defs"]["Fleet"]
print(fleet["properties"]["toys"]["description"])
assert "| `toys` | integer (3) | Toys of the fleet. |" in Path("docs/scenario.md").read_text()
"""

REMARK = """class Options(RunOptions):
    remark: str = Field(
        "", title="Remark", max_length=80, description="Kept among the notes of the result."
    )
"""
REMARK_AT_EVERY_DOOR = """
import tempfile
from pathlib import Path
from django.core.management import load_command_class
from planner.api.serializers.options import REQUESTS
from planner.errors import OptionsRefused
from planner.management.options import options_from_command_line
from planner.domain.kinds import plan, size
from planner.domain.options import options_of
from planner.domain.outcome import Inputs
from planner.domain.progress import silent
from planner.web.forms.options import OptionsForm
from tests.planner.domain import builders as make

parser = load_command_class("planner", "size").create_parser("manage.py", "size")
words = parser.parse_args(["plan.yml", "--isl", "50", "--osl", "9", "--remark", "mine"])
options = options_of(size.Options, options_from_command_line(size.Options, words))
field = REQUESTS["size"]().fields["remark"]
print(field.max_length, field.help_text)
print(OptionsForm(size.Options).fields["remark"].label)
try:
    options_of(plan.Options, {"remark": "mine"})
except OptionsRefused as refused:
    print(str(refused).partition(";")[0])
assert "| `remark` |" in Path("docs/options.md").read_text()
stored = make.demand_file(Path(tempfile.mkdtemp()), {"a": [900] * 60})
lengths = {"input_tokens": {"mean": 50, "cv": 1.0}, "output_tokens": {"mean": 9, "cv": 1.0}}
scenario = make.scenario(traffic__sources=[make.source(series="a", **lengths)])
print(size.run(Inputs(scenario, {"t": stored}), options, silent).document["notes"][0])
"""

COLUMN = """\
        Column("usd_per_request", USD, "of completed requests",
               lambda run: run.summary.cost_usd / run.summary.completed,
               heads={POLICY_TABLE: "Per request"}),
        Column("gpu_energy_kwh", KWH"""
SHOWN = """\
from pathlib import Path

from planner.api.results import AnyResult, schema_of
from planner.domain.reports import policies
from planner.domain.serialise import as_json
from planner.domain.results.ranking import compare
from planner.domain.results.figures import POLICIES
from tests.planner.domain.results.test_verdict import run

policy = run("lt-i", 20.0, completed=5)
result = as_json(compare([policy]))  # what API and command line answer with
row = result["policies"]["lt-i"]
assert row["usd_per_request"] == 4.0
assert POLICIES.table([policy])["usd_per_request"].to_list() == [4.0]  # the CSV
page = policies.policies_table([policies.Row("LT-I", row | {"name": "lt-i"})], None, {})
cells = {head.full: text for head, text in zip(page.heads, page.texts()[0])}
assert cells["Per request ($)"] == "4"
compared = next(one for one in schema_of(AnyResult)["anyOf"] if one["title"] == "CompareResult")
columns = compared["properties"]["policies"]["additionalProperties"]["properties"]
assert columns["usd_per_request"]["description"] == "of completed requests [$]"
print(Path("docs/results.md").read_text().count("| `usd_per_request` | $ |"))
"""

PER_GPU = (
    '    (Head("Per GPU", Form.NUMBER, "req/s"),\n'
    "     lambda pool: pool.sized.max_rps / pool.sized.replica.tp),\n"
    '    (Head("Input", Form.NUMBER, "tokens/s")'
)
EVERY_FORMAT = """
import io, zipfile
from planner.domain.report import Report, Section, table
from planner.domain.reports.size import CAPACITY_COLUMNS
from planner.outputs.cover import Cover
from planner.outputs.render.html import html_of
from planner.outputs.render.terminal import terminal_text
from planner.outputs.render.xlsx import xlsx_of
from types import SimpleNamespace as Made

replica = Made(model="m", arrangement="4 x G", role="mixed", tp=4)
sized = Made(replica=replica, tier="chat", max_rps=10.0, input_tps=1.0, bound_by="ttft",
             ttft_ms=1.0, tbt_ms=1.0)
pool = Made(sized=sized, percentile=95, expected_error=0.1, max_rps_if_slower=1.0,
            max_rps_if_faster=1.0, ttft_limit_ms=1.0, tbt_limit_ms=1.0)
report = Report("a", "b", (Section("c", (table((pool,), *CAPACITY_COLUMNS),)),))
cover = Cover(1, "", "", "", "")
assert "Per GPU (req/s)" in terminal_text(report) and "2.50" in terminal_text(report)
assert "Per GPU" in html_of(report, cover)
book = zipfile.ZipFile(io.BytesIO(xlsx_of(report, cover)))
print("Per GPU (req/s)" in book.read("xl/sharedStrings.xml").decode())
"""

DOUBLED = """\
from dataclasses import dataclass

from forecasting.arrays import FloatArray, IntArray
from forecasting.demand import Panel
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
from forecasting.demand import Panel
from forecasting.panel_forecaster import PanelForecaster
from forecasting.rules.registry import PANEL_METHODS
from tests.planner.domain import builders as make

values = np.full((1, 200), 3.0)
ahead = PanelForecaster("doubled").fit(Panel(0.0, 3600.0, values)).predict(2)
assert "doubled" in PANEL_METHODS
assert make.scenario(forecast={"method": "doubled"}).forecast.method == "doubled"
print(ahead.mean.tolist())
"""

QUIETER = """class Quieter(_TestDay):
    '''The forecast day with fewer requests.'''

    kind: Literal["quieter"]
    times: Times = 0.5  # factor on requests


TestDay = ("""
QUIETER_SIMULATED = """            case schema.Quieter():
                cases = [self._busier_case(declared.times)]
                return [_test_day(declared, f"Demand x {declared.times:g}", cases)]
            case schema.SlowStart():"""
QUIETER_DAY = """
import tempfile
from pathlib import Path
from planner.domain.recommend.test_days import TestDays
from planner.inputs.scenario.schema import test_days as schema
from tests.planner.domain.replay import test_policies as made

study = made.study(Path(tempfile.mkdtemp()), forecast={"method": "last-value"})
declared = made.make.scenario(test_days=[{"kind": "quieter", "required": True}]).test_days
(day, _) = TestDays(study, declared, 1).all_days  # and the forecast day, as this one has no weight
(case,) = day.cases
print(day.kind, day.parameters, schema.level_of(declared[0]), len(case.study().trace) > 0)
"""

SOLO = """def solo(draft: Draft) -> None:
    '''Add  sum_{r, g} x[p,l,r,g]  <=  1   for a model named solo.'''
    for period, window in enumerate(draft.problem.windows):
        for model in np.flatnonzero(np.array(window.models) == "solo"):
            rows = np.zeros(int((draft.model == model).sum()), dtype=np.int64)
            entries: list[Entry] = [(rows, draft.x[period][draft.model == model], 1.0)]
            draft.builder.add("solo", entries, -INF, np.ones(1), 1)


FAMILIES = (
    solo,
"""
SOLO_CHECKED = """    return bool(
        all(
            target[number].sum() <= 1
            for number, name in enumerate(problem.models) if name == "solo"
        )
        and np.all(target >= problem.minimum)
"""
SOLO_COUNTED = """
from dataclasses import replace
import numpy as np
from planner.optimizer import solve_window
from planner.optimizer.figures import is_feasible
from tests.optimizer.problems import every_fleet, problem

toy = problem(models=("solo", "large"), maximum=np.full((2, 2, 2), 1), epsilon=0.01,
              demand_tps=np.array([[[900.0], [0.0]], [[500.0], [0.0]]]))
fleets = [fleet for fleet in every_fleet(toy) if is_feasible(toy, fleet)]
cost = min((toy.usd_per_hour * fleet + toy.start_usd * fleet).sum() for fleet in fleets)
plan = solve_window(toy, gap=0.0, method="whole")
assert abs(plan.objective_usd - cost) < 1e-6 and plan.target[0].sum() == 1
print(solve_window(replace(toy, demand_tps=4 * toy.demand_tps), method="whole").status)
"""

UPSIDE_DOWN = """
def all_equal(amounts: FloatArray) -> bool:
    '''Return whether amounts never change.'''
    return bool(np.ptp(amounts) == 0)


def only_grows("""
ASKED = """[all_equal]
asks = "{name}: the amounts of {column} never change."
choices = [["requests", "format", "csv"]]

[time_unit]
"""
ALL_EQUAL = """
import numpy as np
from planner.inputs.ingest.consistency import Question, all_equal, report_finding

assert report_finding("all_equal", all_equal(np.arange(3.0)), name="a.csv") == ""
try:
    report_finding("all_equal", all_equal(np.ones(3)), name="a.csv")
except Question as question:
    print([choice.value for choice in question.choices])
"""

TOY_ENGINE = """[toyserve]
title = "ToyServe"
model_label = "model"
signs = ["toy_"]
source = "example/toyserve:metrics.py"

[toyserve.counters]
requests = "toy_requests_total"

[vllm]
"""
TOY_ENGINE_SEEN = """
from planner.inputs.live.prometheus.queries import engines_present
from planner.inputs.live.settings import PrometheusSettings

seen = engines_present(frozenset({"toy_requests_total", "toy_other"}))
settings = PrometheusSettings(url="https://prometheus.example", engine="toyserve")
print([(engine.name, [m.what for m in engine.metrics]) for engine in seen], settings.engine)
"""

ROLLOUT = """
from planner.inputs.fleet import read_fleet

pool = read_fleet('''
kind: Rollout
metadata: {name: chat}
spec:
  replicas: 3
  template:
    spec:
      containers:
        - command: [vllm, serve, meta-llama/Llama-3.1-8B-Instruct]
          resources: {limits: {nvidia.com/gpu: 2}}
''')[0]
print(pool.name, pool.model, pool.replicas, pool.width)
"""

COUNT_KIND = '''"""Count the models of a scenario."""

from __future__ import annotations

from dataclasses import dataclass

from pydantic import Field

from planner.domain.options import RunOptions
from planner.domain.outcome import Inputs, Outcome
from planner.domain.progress import Progress


class Options(RunOptions):
    times: int = Field(1, title="Times", ge=1, description="Factor on the count.")


@dataclass(frozen=True, slots=True)
class CountResult:
    """The result of ``count``."""

    kind: str
    scenario: str
    models: int


def run(inputs: Inputs, options: Options, progress: Progress) -> Outcome:
    """Count the models."""
    scenario = inputs.scenario
    return Outcome(CountResult("count", scenario.name, options.times * len(scenario.models)), {})
'''
COUNT_COMMAND = '''"""``bin/manage count``: count the models of a scenario."""

from __future__ import annotations

from planner.management.runs import RunCommand
from planner.models import Run


class Command(RunCommand):
    help = "Count the models of a scenario."
    examples = ("count scenario.yml",)
    kind = Run.Kind.COUNT
'''
COUNT_REPORT = '''"""Report the number of models."""

from __future__ import annotations

from planner.domain.kinds.count import CountResult
from planner.domain.report import Report
from planner.domain.reports.tables import Tables


def report(result: CountResult, _: Tables) -> Report:
    """Return the report of ``count``."""
    return Report(result.scenario, f"{result.models} models", ())
'''
COUNT_MIGRATION = """from django.db import migrations, models

from planner.models import Run


class Migration(migrations.Migration):
    dependencies = [("planner", "LAST")]
    operations = [
        migrations.AlterField(
            "run", "kind", models.CharField(max_length=16, choices=Run.Kind.choices)
        )
    ]
""".replace("LAST", sorted(path.stem for path in (ROOT / "planner/migrations").glob("0*.py"))[-1])
COUNTED = """
from django.core.management import call_command, load_command_class
from planner.api.results import AnyResult, schema_of
from planner.api.serializers.options import REQUESTS
from planner.domain.kinds.registry import KINDS
from planner.domain.outcome import Inputs
from planner.domain.progress import silent
from planner.domain.reports.registry import REPORTS
from planner.web.pages.kinds import PAGES
from django.urls import reverse
from tests.planner.domain import builders as make

call_command("makemigrations", "--check", "--dry-run", verbosity=0)
kind = KINDS["count"]
document = kind.run(Inputs(make.scenario()), kind.options(times=2), silent).document
assert "CountResult" in {one["title"] for one in schema_of(AnyResult)["anyOf"]}
parser = load_command_class("planner", "count").create_parser("manage.py", "count")
print(
    REPORTS["count"].of(document, lambda _: None).answer, reverse("api:count"),
    parser.parse_args(["plan.yml", "--times", "3"]).times,
    REQUESTS["count"]().fields["times"].min_value, PAGES["count"].template,
)
"""

SCHEMA = "scenario.schema.json"
KINDS = "planner/outputs/manifests/kinds.py"
REGISTRY = "forecasting/rules/registry.py"
SIZE = "planner/domain/kinds/size.py"
RECIPES = {
    "A scaling policy": Recipe(
        EVEN_COMPARED,
        "['flat-peak', 'even'] In pairs 0.0\n",
        files={
            "simulation/policies/even.py": EVEN_RULE,
            "planner/policies/builtin/even.py": EVEN_WORDS,
            "tests/simulation/policies/test_even.py": EVEN_TEST,
        },
        pages=(SCHEMA,),
        tests=("tests/simulation/policies/test_even.py",),
    ),
    "A connector": Recipe(
        TOY_FORMAT_AT_EVERY_DOOR,
        "Toy log (CSV)\ntoylog\ntoylog\n",
        files={
            "planner/inputs/ingest/connectors/toylog.toml": TOY_FORMAT,
            "tests/planner/inputs/ingest/test_toylog.py": TOY_FORMAT_TEST,
        },
        pages=("formats.md",),
        tests=("tests/planner/inputs/ingest/test_toylog.py",),
    ),
    "An export": Recipe(
        TOY_EXPORT_EVERYWHERE,
        "{'counts': {'chat': 5}} Toy toy\n",
        files={"planner/outputs/manifests/toy.py": TOY_EXPORT},
        patches=(
            (KINDS, "    llmd,\n", "    llmd,\n    toy,\n"),
            (KINDS, '    "keda": ', '    "toy": Manifest("Toy", toy.documents),\n    "keda": '),
        ),
    ),
    "A scenario key": Recipe(
        KEY_READ,
        "Toys of the fleet.\n",
        patches=(
            (
                "planner/inputs/scenario/schema/fleet.py",
                KEY,
                f"    toys: Count = 3  # toys of the fleet\n{KEY}",
            ),
        ),
        pages=(SCHEMA,),
    ),
    "An option of a kind of run": Recipe(
        REMARK_AT_EVERY_DOOR,
        "80 Kept among the notes of the result.\nRemark\nremark: this is not known here. "
        "Known: solver, gap, time_limit_s, verify, minimise, periods.\nmine\n",
        patches=(
            (SIZE, "class Options(RunOptions):\n", REMARK),
            (
                SIZE,
                "    notes: list[str] = []\n",
                "    notes: list[str] = [options.remark] if options.remark else []\n",
            ),
        ),
        pages=("options.md",),
    ),
    "A column of a result": Recipe(
        SHOWN,
        "1\n",
        patches=(
            (
                "planner/domain/results/figures.py",
                '        Column("gpu_energy_kwh", KWH',
                COLUMN,
            ),
        ),
        pages=("results.md",),
    ),
    "A column of a report": Recipe(
        EVERY_FORMAT,
        "True\n",
        patches=(
            (
                "planner/domain/reports/size.py",
                '    (Head("Input", Form.NUMBER, "tokens/s")',
                PER_GPU,
            ),
        ),
    ),
    "A forecaster": Recipe(
        DOUBLED_USED,
        "[[6.0, 6.0]]\n",
        files={"forecasting/rules/doubled.py": f"from __future__ import annotations\n\n{DOUBLED}"},
        patches=(
            (
                REGISTRY,
                "from forecasting.rules.kalman",
                "from forecasting.rules.doubled import Doubled\nfrom forecasting.rules.kalman",
            ),
            (REGISTRY, '    "kalman": ', '    "doubled": Doubled(),\n    "kalman": '),
            (
                "planner/inputs/scenario/schema/planning.py",
                '    "kalman",',
                '    "doubled",\n    "kalman",',
            ),
        ),
        pages=(SCHEMA, "options.md"),
    ),
    "A test day": Recipe(
        QUIETER_DAY,
        "quieter {'times': 0.5} 0 True\n",
        patches=(
            ("planner/inputs/scenario/schema/test_days.py", "TestDay = (", QUIETER),
            (
                "planner/inputs/scenario/schema/test_days.py",
                "    | SlowStart\n",
                "    | SlowStart | Quieter\n",
            ),
            (
                "planner/domain/recommend/test_days.py",
                "            case schema.SlowStart():",
                QUIETER_SIMULATED,
            ),
        ),
        pages=(SCHEMA,),
    ),
    "A constraint of the plan": Recipe(
        SOLO_COUNTED,
        "infeasible\n",
        patches=(
            ("planner/optimizer/program/families.py", "FAMILIES = (\n", SOLO),
            (
                "planner/optimizer/figures.py",
                "    return bool(\n        np.all(target >= problem.minimum)\n",
                SOLO_CHECKED,
            ),
        ),
    ),
    "A check of a reading": Recipe(
        ALL_EQUAL,
        "['csv']\n",
        patches=(
            (
                "planner/inputs/ingest/consistency.py",
                "\ndef only_grows(",
                UPSIDE_DOWN,
            ),
            ("planner/inputs/ingest/checks.toml", "[time_unit]\n", ASKED),
        ),
    ),
    "An engine of a live source": Recipe(
        TOY_ENGINE_SEEN,
        "[('toyserve', ['requests'])] toyserve\n",
        patches=(
            ("planner/inputs/live/prometheus/engines.toml", "[vllm]\n", TOY_ENGINE),
            (
                "planner/inputs/live/settings.py",
                '"dynamo", "llm-d"]',
                '"dynamo", "llm-d", "toyserve"]',
            ),
        ),
    ),
    "An object of an imported fleet": Recipe(
        ROLLOUT,
        "chat meta-llama/Llama-3.1-8B-Instruct 3 1\n",
        patches=(
            (
                "planner/inputs/fleet/kubernetes.py",
                '    "StatefulSet": _workload,',
                '    "Rollout": _workload,\n    "StatefulSet": _workload,',
            ),
        ),
    ),
    "A kind of run": Recipe(
        COUNTED,
        "2 models /api/v1/count/ 3 1 report\n",
        files={
            "planner/domain/kinds/count.py": COUNT_KIND,
            "planner/management/commands/count.py": COUNT_COMMAND,
            "planner/domain/reports/count.py": COUNT_REPORT,
            "planner/migrations/9999_count.py": COUNT_MIGRATION,
        },
        patches=(
            (
                "planner/models/run.py",
                '        PLACE = "place", "Network placement"',
                '        COUNT = "count", "Count"\n        PLACE = "place", "Network placement"',
            ),
            (
                "planner/domain/kinds/registry.py",
                '    "place",\n',
                '    "count",\n    "place",\n',
            ),
            (
                "planner/web/pages/kinds.py",
                "    Run.Kind.SHARE: REPORT,",
                "    Run.Kind.COUNT: REPORT,\n    Run.Kind.SHARE: REPORT,",
            ),
            ("planner/management/help.py", '"share"),', '"share", "count"),'),
            (
                "planner/api/schema.py",
                '    "place": (',
                '    "count": ("Count models", {"times": 2}),\n    "place": (',
            ),
        ),
        pages=("options.md",),
    ),
}


@pytest.fixture(scope="module")
def printed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Carry out all recipes, and return what the script of each prints."""
    tree = copy_of_the_tree(tmp_path_factory.mktemp("recipes"))
    for recipe in RECIPES.values():
        tree.follow(recipe)
    tree.write_pages({page for recipe in RECIPES.values() for page in recipe.pages})
    tree.test([path for recipe in RECIPES.values() for path in recipe.tests])
    return tree.printed({name: recipe.script for name, recipe in RECIPES.items()})


def test_each_recipe_of_contributing_is_carried_out_here() -> None:
    recipes = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8").partition("## Recipes")[2]
    assert set(re.findall("^### (.+)$", recipes, re.M)) == set(RECIPES)


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_is_exact(name: str, printed: dict[str, str]) -> None:
    assert printed[name] == RECIPES[name].prints
