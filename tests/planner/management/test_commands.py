"""The command line: one JSON object on stdout, sentences on stderr, exit codes that scripts use."""

import csv
import ctypes
import json
import os
import subprocess
import sys
from pathlib import Path

import polars as pl
import pytest

from planner.management.runs import library_output_on_stderr
from planner.models import Run, Trace
from planner.outputs.manifests.kinds import MANIFESTS
from tests.planner.domain.builders import ROOT
from tests.planner.management.calling import SCENARIO, answer, command, problem, write
from tests.planner.outputs.reading import objects_of
from tests.shared_folder import TRACES, shared

pytestmark = pytest.mark.django_db

LATENCY = {"mean", "p50", "p95", "p99"}
PLAN = {
    "status", "objective", "fleet_cost", "bound", "gap", "solver", "build_seconds",
    "solve_seconds", "decisions", "binding",
}  # fmt: skip
DECISION = {
    "period", "model", "region", "gpu", "tp", "role", "market", "arrangement",
    "current", "delta", "target",
}  # fmt: skip
POLICY = {
    "arrived", "completed", "rejected", "unfinished", "gpu_hours", "instance_hours",
    "wasted_gpu_hours", "donated_gpu_hours", "energy_kwh", "cost_usd", "carbon_kg", "ttft_ms",
    "tbt_ms", "e2e_ms", "slo_attainment", "iterations", "wall_seconds", "peak_rss_mb",
}  # fmt: skip
FORECAST = {
    "model", "region", "tier", "method", "order", "wape", "peak_wape", "mase", "coverage80",
    "fit_seconds", "forecast",
}  # fmt: skip


# ingest


def test_ingest_of_azure_2023_conversations() -> None:
    path = shared(TRACES / "azure2023_conv.csv.gz")
    result = answer("ingest", path)
    rows = pl.read_csv(path)
    assert (result["rows"], result["requests"], result["rejected"]) == (19366, 19366, 0)
    assert result["start"].startswith("2023-11-16T18:15:46")
    assert result["input_tokens"] == rows["ContextTokens"].sum()
    assert result["output_tokens"] == rows["GeneratedTokens"].sum()
    assert result["reject_reasons"] == {} and result["series"] == []
    assert {"trace", "end", "seconds"} <= result.keys()


@pytest.mark.parametrize(
    ("content", "words", "says"),
    [
        ("", (), "empty"),
        ("arrival,input_tokens,output_tokens\n", (), "no rows"),
        ("arrival,input_tokens,output_tokens\n1,-5,3\n2,9,3\n", ("--strict",), "line 2"),
        ("arrival,input_tokens,output_tokens\n1,5,3\n", ("--map", "arrival"), "--map arrival"),
        ("a,b\n1,2\n", (), "--map arrival="),
        ("arrival,input_tokens,output_tokens\n1,5,3\n", ("--map", "when=arrival"), "'when'"),
    ],
)
def test_ingest_refuses_in_a_sentence(
    tmp_path: Path, content: str, words: tuple[str, ...], says: str
) -> None:
    path = tmp_path / "bad.csv"
    path.write_text(content)
    message = problem("ingest", path, *words)
    assert says in message and "\n" not in message


def test_ingest_of_a_file_that_is_not_there(tmp_path: Path) -> None:
    assert "nowhere.csv" in problem("ingest", tmp_path / "nowhere.csv")


# list


def test_list_returns_the_newest_runs_and_their_count() -> None:
    for name in ("first", "second", "other"):
        Run.objects.create(kind=Run.Kind.PLAN, name=name)
    two = answer("list", "runs", "--most", 2)
    assert ([run["name"] for run in two["runs"]], two["count"]) == (["other", "second"], 3)
    assert [run["name"] for run in answer("list", "runs", "--search", "FIR")["runs"]] == ["first"]


@pytest.mark.parametrize(
    ("what", "name"), [("models", "llama-3.1-70b"), ("gpus", "A100-80GB"), ("traces", None)]
)
def test_list_names_what_commands_take(what: str, name: str | None) -> None:
    names = [row["name"] for row in answer("list", what, "--most", 10_000)[what]]
    assert name in names if name else names == []
    assert command("list", what)[1]


# characterise


def test_characterise_ranks_days_and_windows(tmp_path: Path) -> None:
    counts = [10] * 24 + [52] * 24 + [30] * 24
    rows = [f"2024-05-{1 + h // 24:02}T{h % 24:02}:00:00Z,{n}" for h, n in enumerate(counts)]
    path = tmp_path / "days.csv"
    path.write_text("time,requests\n" + "\n".join(rows) + "\n")
    result = answer("characterise", path)
    assert [day["rank"] for day in result["days"]["days"]] == [3, 1, 2]
    assert (result["unit"], result["total"]["requests"], result["window"]) == (
        "requests",
        2208,
        None,
    )
    ranked = answer("characterise", path, "--start", "2024-05-01", "--end", "2024-05-02")
    says = "1 May 2024 is the quietest of 3 days."
    assert ranked["window"]["sentence"].startswith(says)
    _, out, _ = command("characterise", path, "--start", "2024-05-01", "--end", "2024-05-02")
    assert says in out and "2 May 2024" in out and "not demand" not in out


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--start", "2024-05-01"), "both, or neither"),
        (("--start", "2024-05-03", "--end", "2024-05-02"), "before it begins"),
    ],
)
def test_characterise_refuses_in_a_sentence(
    folder: Path, words: tuple[str, ...], says: str
) -> None:
    assert says in problem("characterise", folder / "demand.csv", *words)


def test_forecast_of_a_file(folder: Path) -> None:
    result = answer(
        "forecast", folder / "demand.csv", "--bin", 60, "--horizon", 600, "--method", "last-value",
        "--backtest", "--origins", 3,
    )  # fmt: skip
    (series,) = result["series"]
    assert series.keys() >= FORECAST
    assert series["forecast"] == [890.0] * 10  # the last bin: 300 + 10 * 59
    assert 0 < series["wape"] < 0.1 and 0 <= series["coverage80"] <= 1
    assert result["notes"] == [
        "Not counted by the file, so not forecast: input tokens; output tokens."
    ]


def test_forecast_of_a_file_that_counts_tokens(tmp_path: Path) -> None:
    """Every amount by itself, requests first; what only one series counts is said."""
    rows = ["time,series,requests,input_tokens,output_tokens"]
    for minute in range(30):
        rows += [f"2024-05-13T00:{minute:02}:00Z,chat,10,4000,300",
                 f"2024-05-13T00:{minute:02}:00Z,code,20,,"]  # fmt: skip
    (tmp_path / "demand.csv").write_text("\n".join(rows) + "\n")
    words = ("forecast", tmp_path / "demand.csv", "--bin", 60, "--horizon", 120)
    result = answer(*words, "--method", "last-value")
    ahead = [(row["model"], row["unit"], row["forecast"]) for row in result["series"]]
    assert ahead == [
        ("chat", "requests", [10, 10]), ("code", "requests", [20, 20]),
        ("chat", "input_tokens", [4000, 4000]), ("chat", "output_tokens", [300, 300]),
    ]  # fmt: skip
    (note,) = result["notes"]
    assert "input tokens of 1 of 2 series; output tokens of 1 of 2 series" in note


def test_a_file_that_needs_an_option_is_read_by_ingest_first(tmp_path: Path) -> None:
    path = tmp_path / "rates.csv"
    path.write_text("time,requests\n" + "".join(f"{900 * n},{n + 0.5}\n" for n in range(96)))
    words = ("--bin", 900, "--horizon", 900, "--method", "last-value")
    code, _, question = command("forecast", path, *words)
    assert code == 2 and "ingest rates.csv" in question
    read = answer("ingest", path, "--amounts", "counts")
    (series,) = answer("forecast", read["trace"], *words)["series"]
    assert series["forecast"] == [95.5]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("demand.csv", "--bin", "0"), "--bin 0"),
        (("demand.csv", "--horizon", "-5"), "--horizon -5"),
        (("demand.csv", "--backtest", "--origins", "0"), "--origins 0"),
        (("plan.yml", "--bin", "60"), "--bin is only for a trace"),
        (("plan.yml", "--backtest"), "--backtest is only for a trace"),
        (("missing.csv",), "missing.csv: there is no such file, and no trace of that name"),
    ],
)
def test_forecast_refuses_in_a_sentence(folder: Path, words: tuple[str, ...], says: str) -> None:
    assert says in problem("forecast", folder / words[0], *words[1:])


# plan


def test_a_day_planned_from_less_than_two_days_of_history_has_a_warning(folder: Path) -> None:
    path = folder / "plan.yml"
    horizon = "horizon: {start: end, period_s: 3600, duration_s: %d}"
    old = "horizon: {period_s: 300, duration_s: 900}"
    warned = []
    for duration_s in (3600, 86_400):
        path.write_text(SCENARIO.replace(old, horizon % duration_s))
        warned.append("short_history" in answer("plan", path))
    assert warned == [False, True]


@pytest.mark.parametrize("solver", ["highs", "cbc"])
def test_plan(folder: Path, solver: str) -> None:
    result = answer("plan", folder / "plan.yml", "--solver", solver, "--gap", 0.001)
    assert result.keys() >= PLAN
    assert result["status"] == "optimal" and result["solver"] == solver
    assert len(result["decisions"]) == 3
    for decision in result["decisions"]:
        assert decision.keys() == DECISION
        assert decision["current"] + decision["delta"] == decision["target"]
    # What to run when, a row where something changes, and the first of it in words.
    take = result["recommended"]
    (pool,) = take["timetable"]["pools"]
    targets = {row["period"]: row["target"] for row in result["decisions"]}
    rows = take["timetable"]["rows"]
    assert all(row["begins"] <= row["period"] and row["period"] in targets for row in rows)
    for period, target in targets.items():
        requested = [row["replicas"][0] for row in rows if row["begins"] <= period]
        assert requested[-1] >= target
    counts = [row["replicas"][0] for row in rows]
    assert max(counts) == max(targets.values()) and counts[-1] == target
    first = f"Run {pool['replica']['model']}: {counts[0]} in {pool['region']} from "
    assert take["sentence"].startswith(first) and "GPU-hours for $" in take["sentence"]


def test_a_plan_that_cannot_be_exits_3_with_the_conflict_in_words(folder: Path) -> None:
    path = write(folder, "capacity: {G: 32}", "capacity: {G: 1}")
    path.write_text(path.read_text().replace("mean: 400", "mean: 4000"))
    code, out, err = command("plan", path, "--json")
    assert code == 3
    document = json.loads(out)
    assert document["status"] == "infeasible" and document.keys() >= PLAN
    assert document["conflict"] == err.strip()
    assert "no feasible plan" in err and "east" in err and "Traceback" not in err
    code, out, _ = command("plan", path)
    assert (code, out) == (3, "")
    assert Run.objects.latest("pk").state == Run.State.FAILED


# simulate and compare


def test_simulate_with_its_tables(folder: Path) -> None:
    out = folder / "tables"
    result = answer("simulate", folder / "plan.yml", "--policy", "lt-i", "--out", out)
    assert result.keys() >= POLICY
    assert all(result[name].keys() == LATENCY for name in ("ttft_ms", "tbt_ms", "e2e_ms"))
    assert result["arrived"] == result["completed"] + result["rejected"] + result["unfinished"]
    assert result["arrived"] == sum(300 + 10 * minute for minute in range(45, 60))
    kept = {"demand", "series", "policies", "tiers", "groups", "requests", "capacity"}
    assert {path.name for path in out.iterdir()} == {
        "result.json", *(f"{name}.parquet" for name in kept),
    }  # fmt: skip
    assert json.loads((out / "result.json").read_text()) == result
    requests = pl.read_parquet(out / "requests.parquet")
    assert requests.height == result["arrived"]
    assert requests["met"].mean() == pytest.approx(result["slo_attainment"]["chat"])


def test_seed_of_the_command_line_draws_other_requests(folder: Path) -> None:
    first, same, other = (
        answer("simulate", folder / "plan.yml", "--policy", "flat-peak", *seed)
        for seed in ((), ("--seed", 0), ("--seed", 1))
    )
    assert first["ttft_ms"] == same["ttft_ms"] != other["ttft_ms"]


def test_compare(folder: Path) -> None:
    result = answer("compare", folder / "plan.yml")
    always = {"flat-before", "flat-g", "flat-peak", "flat-min", "lt-g", "lt-i-perfect"}
    assert set(result["policies"]) == {"lt-i", *always} == set(result["ranking"])
    assert result["baselines"][:2] == ["flat-peak", "lt-i"]
    asked = {name for name, row in result["policies"].items() if row["asked"]}
    assert asked == {"flat-peak", "lt-i"}
    assert isinstance(result["warnings"], list)
    (day,) = result["test_days"]  # the forecast day: the scenario has no other
    assert day["kind"] == "drawn" and day["required"] and day["cases"] == 1
    for on_day in day["policies"].values():
        assert on_day.keys() == {"cost_usd", "attainment", "passes", "reason"}
    assert set(result["assurance"]) == {"economy", "balanced", "safe"}
    take = result["recommended"]
    chosen = result["assurance"][take["assurance"]]
    assert (chosen["policy"], chosen["expected"]) == (take["policy"], take["expected"])
    interval = chosen["expected"]["cost_usd"]
    assert interval["mean"] > 0
    assert interval["low"] is None is interval["high"]  # one simulated day tells no interval
    for figures in result["policies"].values():
        assert figures.keys() >= POLICY
    some = answer("compare", folder / "plan.yml", "--policies", "reactive, flat-min")
    assert some["baselines"][:2] == ["reactive", "flat-min"]
    assert set(some["policies"]) == {"reactive", *always}


def test_files_of_a_scenario_are_read_once(folder: Path) -> None:
    for _ in range(2):
        answer("forecast", folder / "plan.yml")
    assert Trace.objects.count() == 1
    (folder / "plan.yml").write_text(SCENARIO.replace("file: demand.csv", "trace: demand"))
    assert answer("forecast", folder / "plan.yml")["series"]


@pytest.mark.parametrize(
    ("name", "old", "new", "says"),
    [
        ("plan", "startup_s: 60", "startup_sec: 60", "other.yml, line 21: fleet.startup_sec"),
        ("plan", "mean: 400", "mean: -1", "line 19: traffic.sources[0].input_tokens.mean"),
        ("compare", "file: demand.csv", "file: nothing.csv", "nothing.csv"),
        ("forecast", "file: demand.csv", "trace: nothing", "nothing"),
        ("plan", "period_s: 300", "period_s: 301", "horizon.period_s: 301 s"),
        ("compare", "period_s: 300", "period_s: 301", "horizon.period_s: 301 s"),
        ("forecast", "      input_tokens: {mean: 400}\n", "", "has no input tokens"),
    ],
)
def test_a_bad_scenario_names_what_and_where(
    folder: Path, name: str, old: str, new: str, says: str
) -> None:
    assert says in problem(name, write(folder, old, new))


def test_a_scenario_that_is_no_text_or_not_there(folder: Path) -> None:
    (folder / "binary.yml").write_bytes(b"\xff\xfe\x00\x81")
    assert "is not UTF-8 text" in problem("plan", folder / "binary.yml")
    assert "no such file, and no scenario of that name" in problem("plan", folder / "none.yml")
    assert "is a folder" in problem("plan", folder)
    assert "no policy 'best'" in problem("compare", folder / "plan.yml", "--policies", "best")
    assert "fleet.today" in problem("simulate", folder / "plan.yml", "--policy", "today")


# export


def test_exports_hold_the_figures_of_the_run(folder: Path) -> None:
    result = answer("compare", folder / "plan.yml")
    (folder / "answer.json").write_text(json.dumps(result))
    plan = Path(
        answer("export", folder / "answer.json", "--to", "csv", "--out", folder / "p.csv")["path"]
    )
    rows = list(csv.DictReader(plan.open(encoding="utf-8")))
    decisions = result["plan"]["decisions"]
    assert len(rows) == len(decisions)
    for row, decision in zip(rows, decisions, strict=True):
        assert row["period_start"] == decision["period"]
        for name in ("model", "region", "gpu"):
            assert row[name] == decision[name]
        for name in ("tp", "current", "delta", "target"):
            assert int(row[name]) == decision[name]
    out = folder / "deep" / "policies.csv"
    answer("export", result["run"], "--to", "csv", "--table", "policies", "--out", out)
    for row in csv.DictReader(out.open(encoding="utf-8")):
        figures = result["policies"][row["policy"]]
        for name in ("gpu_hours", "cost_usd", "energy_kwh", "carbon_kg"):
            assert float(row[name]) == pytest.approx(figures[name], rel=1e-8)  # 9 digits
        assert int(row["arrived"]) == figures["arrived"]
        assert (row["meets_slo"] == "true") == figures["meets_slo"]
    written = Path(
        answer("export", result["run"], "--to", "json", "--out", folder / "w.json")["path"]
    )
    assert json.loads(written.read_text(encoding="utf-8"))["plan"] == result["plan"]
    take, run = result["recommended"], result["run"]
    for kind in MANIFESTS:
        out = folder / f"{kind}.out"
        assert answer("export", run, "--to", kind, "--out", out)["path"] == str(out)
        assert f"run {run}" in out.read_text(encoding="utf-8")
    (scaled,) = objects_of((folder / "keda.out").read_text(encoding="utf-8"))
    counts = [row["replicas"][0] for row in take["timetable"]["rows"]]
    assert scaled["spec"]["maxReplicaCount"] == max(counts)
    assert scaled["metadata"]["annotations"]["headroom/policy"] == take["policy"]
    name = scaled["metadata"]["name"]
    words = ("--names", f"{name}=chat", "--policy", "flat-peak", "--repeat", "weekly")
    answer("export", run, "--to", "keda", *words, "--out", folder / "flat.yaml")
    (flat,) = objects_of((folder / "flat.yaml").read_text(encoding="utf-8"))
    assert flat["spec"]["scaleTargetRef"]["name"] == "chat"
    assert flat["spec"]["minReplicaCount"] == flat["spec"]["maxReplicaCount"]
    for words, words_of in {
        ("--policy", "none"): "There is no policy 'none'",
        ("--region", "moon"): "nothing for region 'moon'",
        ("--timezone", "Mars/Here"): "--timezone Mars/Here: give an IANA time zone",
        ("--namespace", "A_b"): "--namespace A_b",
        ("--names", "x=y"): "there is no deployment 'x'",
        ("--names", f"{name}=Y"): "'Y'",
    }.items():
        assert words_of in problem("export", run, "--to", "keda", *words)


def test_export_refuses_in_a_sentence(folder: Path) -> None:
    run = answer("forecast", folder / "plan.yml")["run"]
    assert f"Run {run} is not a plan" in problem("export", run, "--to", "keda")
    assert "no table 'plan'" in problem("export", run, "--to", "csv", "--table", "plan")
    assert "There is no run 99999" in problem("export", 99999, "--to", "csv")
    assert "neither the number or name of a run nor a file" in problem("export", "x", "--to", "csv")
    assert "cannot be written" in problem("export", run, "--to", "json", "--out", folder)
    (folder / "bad.json").write_text("{\n oops")
    assert "bad.json, line 2: not valid JSON" in problem(
        "export", folder / "bad.json", "--to", "csv"
    )
    (folder / "none.json").write_text("{}")
    assert "none.json" in problem("export", folder / "none.json", "--to", "csv")
    command("plan", write(folder, "period_s: 300", "period_s: 301"))
    failed = Run.objects.latest("pk").pk
    assert f"Run {failed} has no results: " in problem("export", failed, "--to", "csv")


# Of the program as a whole


def test_lines_of_compiled_libraries_are_not_in_the_answer(
    capfd: pytest.CaptureFixture[str],
) -> None:
    with library_output_on_stderr():
        ctypes.CDLL(None).printf(b"tmpSolver.run();\n")
    print("answer")
    assert capfd.readouterr() == ("answer\n", "tmpSolver.run();\n")


WRONG = [
    ["estimate", "--model", "m", "--gpu", "G", "--isl", "1", "--osl", "1"],
    ["size", "plan.yml", "--isl", "many", "--osl", "1"],
    ["pd-ratio", "plan.yml"],
    ["provision", "plan.yml", "--level", "layer"],
    ["plan"],
    ["simulate", "plan.yml", "--policy", "best"],
]
IN_ONE_PROCESS = """
import json, sys
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from planner.command_line import manage

for words in json.loads(sys.argv[1]):
    out, err = StringIO(), StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        try:
            status = manage(["manage.py", *words, "--json"])
        except SystemExit as stop:
            status = stop.code
    print(json.dumps([status, out.getvalue(), err.getvalue()]))
"""


def test_what_is_announced_or_misspelt_exits_2(tmp_path: Path) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", IN_ONE_PROCESS, json.dumps(WRONG)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
        env=os.environ | {"HEADROOM_DATA_DIR": str(tmp_path)},
    )
    answers = [json.loads(line) for line in ran.stdout.splitlines()]
    assert len(answers) == len(WRONG)
    for status, out, err in answers:
        assert (status, out) == (2, "")
        assert len(err.strip().splitlines()) == 1, err  # no usage: it is there by --help
