"""How files that people have are read: right unaided, with a question, or refused with a remedy.

``python -m bench.reading [--json] [--cases FOLDER]`` reads every file that ``expected.json`` in the
folder names, through its door, and compares verdict and values. Without the folder these figures
are skipped. The examples of the project's own connectors give the same figures with ``own_``.

``silently_wrong`` counts readings without a question that have a wrong value.
``read_unaided_share`` is the share of files with verdict ``read`` that are read right, without a
question. ``asks_rightly_share`` is the share of files with verdict ``ask`` where each expected
reading is a choice with the right figures. ``refused_with_remedy_share`` is the share of refusals
that say what to do.
"""

import argparse
import json
import os
import re
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np

from planner.errors import EXPECTED
from planner.inputs import ingest
from planner.inputs.catalogue.hardware import model_name
from planner.inputs.catalogue.huggingface import shape_of
from planner.inputs.fleet import read_fleet
from planner.inputs.ingest.benchmarks import read_benchmarks
from planner.inputs.ingest.connectors import CONNECTORS
from planner.inputs.ingest.reader import with_choice
from planner.inputs.profiles.kernel_files import read_kernels
from simulation.performance.memory import kv_bytes_per_token
from simulation.performance.parameters import parameters

CASES = Path(__file__).parents[2] / "shared" / "cases"
GIVEN = {"model": "llama-3.1-8b", "gpu": "H100-SXM", "tp": 1}  # facts that a file may lack
TOLERANCE = 0.01
REMEDY = re.compile(r"[;.:] ")  # a clause after the one that names the fault
Values = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Attempt:
    """The outcome of one file at one door."""

    verdict: str  # read, ask or refuse
    values: Values = field(default_factory=dict)
    choices: Sequence[Values] = ()  # values of each offered reading
    words: str = ""


def traffic_values(path: Path, options: ingest.IngestOptions, bin_s: float) -> Values:
    """Return the values of a trace as read with these options."""
    with tempfile.TemporaryDirectory() as folder:
        store = Path(folder) / "store"
        report = ingest.ingest_file(path, store, options)
        if report.kind == "requests":
            series = ingest.bin_requests(store, bin_s)
            span_s, last_ns = (report.end_ns - report.start_ns) / 1e9, report.end_ns
            peak = sum(np.nan_to_num(each.requests) for each in series).max() / bin_s
        else:
            series = ingest.read_demand(store)
            width = report.bin_s or 1.0
            span_s, last_ns = (report.end_ns - report.start_ns) / 1e9, report.end_ns - width * 1e9
            totals: dict[float, float] = {}
            for each in series:
                for place, amount in enumerate(np.nan_to_num(each.requests)):
                    start = each.start_s + place * each.bin_s
                    totals[start] = totals.get(start, 0.0) + amount
            peak = max(totals.values()) / width
    data = report.as_dict()
    values: dict[str, Any] = {
        name: data.get(name)
        for name in ("requests", "input_tokens", "output_tokens", "cached_tokens", "cancelled")
    }
    values |= {
        "total_tokens": data.get("total_tokens"),
        "rows_rejected": report.rejected,
        "span_s": span_s,
        "rate_mean": (report.requests or 0) / span_s if span_s else None,
        "rate_peak": float(peak),
        "functions": len(report.series),
    }
    if report.clock == "utc":
        values |= {"first": report.start_ns / 1e9, "last": last_ns / 1e9}
    if len(report.models) == 1:
        values["model"] = _short_name(report.models[0])
    models: dict[str, float] = {}
    for each in series:
        if each.model:
            name = _short_name(each.model)
            models[name] = models.get(name, 0.0) + float(np.nansum(each.requests))
    return {name: value for name, value in values.items() if value is not None} | {"models": models}


def _short_name(name: str) -> str:
    try:
        return model_name(name)
    except EXPECTED:
        return name


def _traffic(path: Path, case: Values) -> Attempt:
    bin_s = float(_first(case).get("peak_bin_s", 60))
    options = case.get("reading") or ingest.IngestOptions(name=path.name)
    try:
        return Attempt("read", traffic_values(path, options, bin_s))
    except EXPECTED as problem:
        choices = getattr(problem, "choices", ())
        if not choices:
            raise
        values = [traffic_values(path, with_choice(options, choice), bin_s) for choice in choices]
        return Attempt("ask", choices=values, words=str(problem))


def _first(case: Values) -> Values:
    return case.get("expect") or next(iter(case["readings"].values()))


def _evidence(path: Path, case: Values) -> Attempt:
    given = {name: GIVEN[name] for name in case.get("needs", ()) if name in GIVEN}
    rows = read_benchmarks(path, **given).rows
    points = [
        {
            "in_flight": float(rows.concurrency[i]),
            "ttft_ms": float(rows.ttft_s[i]) * 1e3,
            "tpot_ms": float(rows.tbt_s[i]) * 1e3,
            "itl_ms": float(rows.tbt_s[i]) * 1e3,
            "mean_input": float(rows.isl[i]),
            "mean_output": float(rows.osl[i]),
        }
        for i in range(rows.rows)
    ]
    one = points[0] if len(points) == 1 else {}
    return Attempt("read", {"points": len(points), "rows": points, **one})


def _model(path: Path, _: Values) -> Attempt:
    shape = shape_of(json.loads(path.read_text()))
    counted = parameters(shape)
    idle = 1 - shape.experts_per_token / shape.experts if shape.experts else 0.0
    return Attempt(
        "read",
        {
            "total_params": counted.total,
            "active_params": counted.total - idle * counted.experts,
            "layers": shape.layers,
            "experts": shape.experts,
            "experts_per_token": shape.experts_per_token,
            "kv_bytes_per_token": kv_bytes_per_token(shape),
        },
    )


def _profile(path: Path, case: Values) -> Attempt:
    gpu = str(GIVEN["gpu"]) if "gpu" in case.get("needs", ()) else ""
    kernels = read_kernels(path, shapes={}, gpus={}, gpu=gpu)
    values = {"format": kernels.format, "rows": kernels.rows}
    return Attempt("read", values | ({"gpu": next(iter(kernels.by_gpu))} if not gpu else {}))


def _scenario(path: Path, case: Values) -> Attempt:
    """Read a scenario with its traffic, as every run of it begins."""
    from planner.domain.traffic.traffic import build_traffic
    from planner.inputs.scenario.document import parse
    from planner.inputs.scenario.settings import settings_of
    from planner.management.runs import load_scenario
    from planner.models import Trace
    from planner.services.execution import stored_traces
    from planner.services.scenarios import scenario_warnings

    document, _ = load_scenario(str(path), lambda *_: None)
    scenario = parse(document)
    traces = stored_traces(scenario)
    traffic = build_traffic(settings_of(scenario).traffic, traces)
    if case["verdict"] == "refuse" and (problems := scenario_warnings(document)):
        return Attempt("refuse", words=" ".join(problems))
    demand, measured = traffic.demand, traffic.measured
    values: dict[str, Any] = {}
    if len(measured):
        bin_s = float(_first(case).get("peak_bin_s", 60))
        arrived = measured.arrival_s + measured.start_s
        values = {
            "requests": len(measured),
            "input_tokens": int(measured.input_tokens.sum(dtype=np.int64)),
            "output_tokens": int(measured.output_tokens.sum(dtype=np.int64)),
            "rate_mean": len(measured) / float(arrived[-1] - arrived[0]),
            "rate_peak": float(np.bincount((arrived // bin_s).astype(int)).max()) / bin_s,
        }
    else:
        sums = {name: float(np.nansum(getattr(demand, name))) for name in AMOUNTS}
        values = sums | {
            "rate_mean": sums["requests"] / (demand.end_s - demand.start_s),
            "mean_input": sums["input_tokens"] / sums["requests"],
            "mean_output": sums["output_tokens"] / sums["requests"],
        }
    for trace in Trace.objects.filter(name__in=traces):
        values |= _context_figures(trace.report.get("beyond_context", ()))
    return Attempt("read", values)


def _context_figures(found: Sequence[Values]) -> Values:
    return {
        key: value
        for each in found[:1]
        for key, value in (
            ("requests_beyond_context", each["requests"]),
            ("context", each["context"]),
            ("longest_request", each["longest"]),
        )
    }


def _draft(path: Path, _: Values) -> Attempt:
    """Draft a scenario from a file, and begin it as a run does."""
    from dataclasses import asdict

    from planner.domain.trace_statistics.context_limits import EVERY_LABEL, requests_beyond_context
    from planner.inputs import catalogue
    from planner.management.runs import load_trace
    from planner.services.draft_profiles import choose_serving
    from planner.services.drafts import scenario_draft
    from planner.services.scenarios import scenario_warnings
    from planner.storage import row_arrays

    trace = load_trace(str(path), lambda *_: None)
    serving = choose_serving(trace)
    document = scenario_draft(trace, serving=serving)
    if problems := scenario_warnings(document):
        return Attempt("refuse", words=" ".join(problems))
    model = serving.profile.model
    context = catalogue.shape(model).max_context
    found = requests_beyond_context(
        row_arrays.local_path(trace.store), {EVERY_LABEL: (model, context)}
    )
    span_s = (trace.report["end_ns"] - trace.report["start_ns"]) / 1e9
    values = {
        "requests": trace.requests,
        "span_s": span_s,
        **_context_figures([asdict(f) for f in found]),
    }
    return Attempt("read", values)


def _fleet(path: Path, _: Values) -> Attempt:
    pools = [
        {name: value for name, value in pool.as_dict().items() if value is not None}
        for pool in read_fleet(path.read_text(encoding="utf-8"), path.name)
    ]
    return Attempt("read", {"pools": pools, **(pools[0] if len(pools) == 1 else {})})


DOORS: Mapping[str, Callable[[Path, Values], Attempt]] = {
    "ingest": _traffic,
    "evidence": _evidence,
    "model": _model,
    "profile": _profile,
    "scenario": _scenario,
    "draft": _draft,
    "fleet": _fleet,
}
AMOUNTS = ("requests", "input_tokens", "output_tokens")


def attempt(path: Path, case: Values) -> Attempt:
    """Read one file through its door."""
    door = DOORS.get(case["door"])
    if door is None:
        return Attempt("refuse", words=f"no reader for {case['door']}")
    try:
        return door(path, case)
    except EXPECTED as problem:
        return Attempt("refuse", words=str(problem))
    except Exception as bug:  # noqa: BLE001 - a bug is neither a reading nor a refusal
        return Attempt("bug", words=f"{type(bug).__name__}: {bug}")


def wrong(expected: Values, values: Values, tolerance: float) -> list[str]:
    """Return what differs, for the keys that both have."""
    found = []
    for name, want in expected.items():
        if name in values and not _equal(want, values[name], tolerance, name):
            found.append(f"{name}: {values[name]!r:.60} instead of {want!r:.60}")
    return found


def _equal(want: Any, have: Any, tolerance: float, name: str) -> bool:
    if isinstance(want, list):
        return len(want) == len(have) and not any(
            wrong(a, b, tolerance) for a, b in zip(want, have, strict=True)
        )
    if isinstance(want, dict):
        return want.keys() == have.keys() and not wrong(want, have, tolerance)
    if name in ("first", "last"):
        return abs(datetime.fromisoformat(want).timestamp() - have) <= 1
    if isinstance(want, str | bool):
        return bool(want == have)
    return bool(abs(want - have) <= tolerance * abs(want) + 1e-9)


def judge(case: Values, got: Attempt) -> tuple[bool, bool, str]:
    """Return whether the outcome is right, whether it is silently wrong, and why."""
    tolerance = float(case.get("tolerance", TOLERANCE))
    if got.verdict == "read":
        differs = wrong(_first(case), got.values, tolerance)
        if case["verdict"] != "read":
            return False, True, "read without a question"
        return not differs, bool(differs), "; ".join(differs)
    if got.verdict == "ask" and case["verdict"] == "ask":
        lacking = [
            name
            for name, reading in case["readings"].items()
            if all(wrong(reading, choice, tolerance) for choice in got.choices)
        ]
        return not lacking, False, f"no choice gives {', '.join(lacking)}" if lacking else ""
    right = got.verdict == case["verdict"] or got.verdict in case.get("also_accept", ())
    return right, False, got.words


def figures(outcomes: Sequence[tuple[Values, Attempt]], prefix: str = "") -> dict[str, float]:
    """Return the shares over all outcomes."""
    judged = [(case, got, *judge(case, got)) for case, got in outcomes]
    refused = [got for _, got, *_ in judged if got.verdict == "refuse"]

    def share(part: Sequence[bool]) -> float:
        return sum(part) / len(part) if part else 1.0

    return {
        f"{prefix}files": len(judged),
        f"{prefix}silently_wrong": sum(silent for *_, silent, _ in judged),
        f"{prefix}read_unaided_share": share(
            [
                right and got.verdict == "read"
                for case, got, right, *_ in judged
                if case["verdict"] == "read"
            ]
        ),
        f"{prefix}asks_rightly_share": share(
            [right for case, _, right, *_ in judged if case["verdict"] == "ask"]
        ),
        f"{prefix}refused_with_remedy_share": share(
            [bool(REMEDY.search(got.words)) for got in refused]
        ),
        f"{prefix}bugs": sum(got.verdict == "bug" for _, got, *_ in judged),
    }


def own_outcomes() -> Iterator[tuple[Values, Attempt]]:
    """Yield the examples of the connectors, read with the options that they state."""
    for name, connector in CONNECTORS.items():
        example = connector.example
        case = {"file": name, "door": "ingest", "verdict": "read", "expect": example["expect"]}
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / example["file"]
            path.write_text(example["text"].lstrip(), encoding="utf-8")
            options = ingest.IngestOptions(name=path.name, **example.get("options", {}))
            yield case, attempt(path, case | {"reading": options})


@contextmanager
def application() -> Iterator[None]:
    """Set the application up on an empty database in a temporary folder."""
    with tempfile.TemporaryDirectory() as folder:
        os.environ.pop("DATABASE_URL", None)
        os.environ["HEADROOM_DATA_DIR"] = folder
        os.environ.setdefault("DJANGO_SETTINGS_MODULE", "planner.config.settings")
        import django
        from django.core.management import call_command

        django.setup()
        call_command("migrate", verbosity=0)
        from planner.models.workspace import MAIN, use_workspace

        with use_workspace(MAIN):
            yield


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")
    parser.add_argument("--cases", type=Path, default=CASES)
    parser.add_argument("--only", default="", help="only files whose path or door contains this")
    options = parser.parse_args()
    out = sys.stderr if options.json else sys.stdout
    answer: dict[str, float] = {}
    listed = options.cases / "expected.json"
    if listed.is_file():
        cases = json.loads(listed.read_text())
        cases = [case for case in cases if options.only in f"{case['file']} {case['door']}"]
        with application():
            outcomes = [(case, attempt(options.cases / case["file"], case)) for case in cases]
        for case, got in outcomes:
            right, _, why = judge(case, got)
            if not right:
                print(f"{case['file']} ({case['door']}): {got.verdict}: {why:.300}", file=out)
        answer |= figures(outcomes)
    else:
        print(f"skipped: there is no {listed}", file=out)
    own = list(own_outcomes())
    for case, got in own:
        right, _, why = judge(case, got)
        if not right:
            print(f"{case['file']} (own): {got.verdict}: {why:.300}", file=out)
    answer |= figures(own, "own_")
    for name, value in answer.items():
        print(f"{name:35} {value:g}", file=out)
    if options.json:
        print(json.dumps(answer))


if __name__ == "__main__":
    main()
