"""Build the part of a provisioning page beside its report: one pool's graph and devices."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import polars as pl

from planner.domain.formats import figure
from planner.domain.kinds.provision import Options, ProvisionResult
from planner.domain.provisioning.figures import LEVEL_NAMES, PoolFigures
from planner.domain.report import (
    Axis,
    Chart,
    Fact,
    Facts,
    Form,
    Head,
    Note,
    Report,
    Role,
    Section,
    Series,
    Shape,
    Table,
    table,
)
from planner.domain.reports.provision import pool_levels, pool_name
from planner.domain.serialise import clean
from planner.models import Run
from planner.outputs.render.html import display_sections
from planner.selectors.runs import run_table, typed_result
from planner.services import provisioning as service
from planner.web.forms.options import OptionsForm
from planner.web.pages.selects import Select
from planner.web.request import TemplateContext

MANY = 60  # most devices: more bars are illegible
SPANS = 400  # most spans of a line over time
WIDE = 30.0  # ratio of largest to smallest value above which an axis is logarithmic
SHOWN = 6  # operators in a chart of lines
MEASURES = {"gpus": "GPUs", "energy": "power", "memory": "memory"}
PAPER = "Cui et al. (2025)"  # From Models to Operators, arXiv 2511.02248
# Published savings by variable and measure, each (x, share): section 4.3 of the paper, figures 10
# to 13 as the text gives them.
PUBLISHED: dict[str, dict[str, list[tuple[Any, float]]]] = {
    "length": {"gpus": [(4096, 0.30)], "energy": [(4096, 0.25)], "memory": [(32768, 0.60)]},
    "rate": {"gpus": [(20, 0.0), (40, 0.30)], "energy": [(80, 0.25)], "memory": [(100, 0.50)]},
    "size": {
        "gpus": [("qwen2-0.5b", 0.15), ("qwen2-7b", 0.25)],
        "energy": [("qwen2-7b", 0.25), ("qwen2-72b", 0.50)],
        "memory": [("qwen2-7b", 0.35), ("qwen2-72b", 0.50)],
    },
}
SWEPT = {  # by variable: its axis, and what the other variables are
    "length": (
        Axis("prompt tokens", log=True),
        "Prompts of one length at the pool's load. Limit: the tier's, or three passes on an idle "
        "replica if larger.",
    ),
    "rate": (Axis("requests/s", log=True), "At the pool's lengths and limit."),
    "size": (Axis("model"), "The Qwen2 family at the pool's load and limit."),
}
PARTS = {by: f"savings by {by}" for by in service.SWEEPS} | {"sensitivity": "sensitivity"}
PLANS = {"operator": "The operator graph", "module": "Modules and their replicas"}  # by level
USUAL = ("over_time", "level", "method")  # options of the form; the others are folded
RARE = tuple(name for name in Options.model_fields if name not in USUAL)
KEYS = ("model", "region", "gpu", "phase", "weights")  # of a pool
# What operators respond to: the key of its values, and its axis.
LENGTH = "lengths", Axis("tokens of a request", log=True)
BATCH = "batches", Axis("requests in a batch", log=True)
RATE = "rates", Axis("requests/s", log=True)
SHARE = "shares", Axis("share of the multiprocessors")
EVEN_LENGTH = "lengths", Axis("tokens of a request")
# Responses of operators: title, unit, key, factor from its values to the unit, and the x axis.
RESPONSES = (
    ("Latency by length", "times that of the shortest request", "latency_by_length", 1, LENGTH),
    ("Memory by length", "GB of one request in flight, without weights", "memory_by_length", 1e-9,
     LENGTH),
    ("Latency by batch", "times that of one request", "latency_by_batch", 1, BATCH),
    ("Queueing", "replicas for stable queues, batch 1", "replicas_by_rate", 1, RATE),
    ("Waiting by rate", "mean seconds with the fewest replicas", "wait_by_rate", 1, RATE),
    ("Waiting by length", "mean seconds at this load", "wait_by_length", 1, LENGTH),
    ("Arithmetic by length", "% of the achievable FLOP/s", "arithmetic_by_length", 100, LENGTH),
    ("Memory bandwidth by length", "% of the achievable bandwidth", "bandwidth_by_length", 100,
     LENGTH),
    ("Data handed on", "GB per request", "data_by_length", 1e-9, LENGTH),
    ("Transfer", "time over the link, % of compute time", "transfer_by_length", 100, EVEN_LENGTH),
    ("Share of the GPU", "latency, times that of the whole GPU", "latency_by_share", 1, SHARE),
    ("Multiprocessors in use", "% of those given", "sm_use_by_share", 100, SHARE),
)  # fmt: skip


def page_context(run: Run, params: Mapping[str, str]) -> TemplateContext:
    """Return the plan of the pool, phase and level that ``params`` select.

    A level says what is scaled: operators, modules or replicas. The form provisions the pool again.
    """
    result = typed_result(run, ProvisionResult)
    pools = sorted(result.pools, key=lambda pool: not pool.chosen)
    by_name: dict[str, dict[str, PoolFigures]] = {}  # for each name, pools by phase
    for pool, name in zip(pools, service.pool_names(pools), strict=True):
        by_name.setdefault(name, {})[pool.phase] = pool
    names = Select.of(params, "pool", "Model, region and GPU", {name: name for name in by_name})
    phases = {phase: phase for phase in by_name[names.chosen]}
    phase = Select.of(params, "phase", "Phase", phases)
    pool = by_name[names.chosen][phase.chosen]
    planned = {level: label for level, label in LEVEL_NAMES.items() if level in pool.levels}
    level = Select.of(params, "level", "Level", planned)
    sections = _pool_sections(run, pool, level.chosen, over_time=result.over_time is not None)
    return {
        "run": run,
        "form": OptionsForm(Options, without=("level", *RARE), initial=run.options),
        "rare": OptionsForm(Options, without=USUAL, initial=run.options),
        "selects": (names, phase, level),
        "pool_name": names.chosen,
        "phase": phase.chosen,
        "part_sections": display_sections(Report("", "", tuple(sections)), live=True),
        "parts": PARTS if planned else {},
    }


def part_context(part: str, run: Run, params: Mapping[str, str]) -> TemplateContext:
    """Return the section ``part`` of the pool and phase in ``params``, by default the first.

    ``params`` may also name the response to show, such as the latency by length.
    """
    pool = service.pool_of_run(run, params.get("pool", ""), params.get("phase", ""))
    context: TemplateContext = {"run": run, "part": part}
    if part in service.SWEEPS:
        section = _sweep(part, run, pool)
    else:
        responses = service.operator_sensitivity(run, pool)
        # A response is a key of the responses, and RESPONSES has its title.
        titles = {key: title for title, _unit, key, _factor, _x in RESPONSES if key in responses}
        response = Select.of(params, "response", "Response", titles)
        section = _sensitivity(responses, response.chosen)
        kept = {name: params.get(name, "") for name in ("pool", "phase")}
        context |= {"selects": (response,), "kept": kept}
    return context | {"part_sections": display_sections(Report("", "", (section,)), live=True)}


def _pool_sections(
    run: Run, pool: PoolFigures, level: str, *, over_time: bool
) -> Iterator[Section]:
    """Yield the load and levels of a pool, the plan of one level, and its GPUs over time."""
    name = pool_name(pool)
    levels = [pool_levels([pool])] if pool.levels else []
    yield Section(f"{name[0].upper()}{name[1:]}", (_load(pool), *_notes(pool), *levels), "Pool")
    of_level = pl.col("level") == level
    operators = _rows(run, "operators", pool).filter(of_level)
    devices = _rows(run, "devices", pool).filter(of_level)
    shards = _rows(run, "shards", pool).filter(of_level)
    if operators.height > 1:
        yield Section(PLANS.get(level, "Plan"), (_operators(operators, level),), "Graph")
    if not devices.is_empty():
        colours = _colours(operators["operator"])
        charts = (_memory_chart(shards, devices, colours), _load_chart(devices))
        modules = [_modules_by_gpu(shards, operators)] if level == "module" else []
        yield Section("GPUs", (*charts, *modules), "Devices")
    if over_time and pool.chosen:
        yield Section("GPUs over time", (_course_chart(_rows(run, "courses", pool)),), "Course")


def _load(pool: PoolFigures) -> Facts:
    """Return the load of a pool and its limit."""
    included = ""
    if pool.start_ms:
        included = f"includes {figure(pool.start_ms, 'ms')} before the first iteration"
    cached = f"{figure(pool.cached_tokens)} cached" if pool.cached_tokens else ""
    return Facts(
        (
            Fact("Load", pool.requests_s, "req/s"),
            # ``isl`` are the tokens to compute, without those cached.
            Fact("Input", pool.isl + pool.cached_tokens, "tokens", Form.COUNT, note=cached),
            Fact("Output", pool.osl, "tokens", Form.COUNT),
            Fact(
                "Limit", pool.slo_ms / 1e3, form=Form.SECONDS, change=included, note=pool.slo_source
            ),
        )
    )


def _notes(pool: PoolFigures) -> Iterator[Note]:
    """Yield notes on a pool: its factor on kernel times, its prompt order, why it is left out."""
    times = f"{pool.times:.2f}"
    if pool.times and times != "1.00":
        yield Note(f"Operators take {times} times their kernels, by the scenario's profile.")
    if pool.order == "shortest":
        yield Note("Short prompts go before long ones that wait.")
    if not pool.chosen:
        yield Note("Not in the totals: another GPU type costs less.")
    if not pool.levels:
        yield Note(f"No number of replicas keeps this limit on {pool.gpu}.")


def _operators(operators: pl.DataFrame, level: str) -> Table:
    """Return the operators or modules of a plan in graph order."""
    return table(
        operators.iter_rows(named=True),
        (Head(level.capitalize(), width=2), lambda row: row["operator"].replace("_", " ")),
        (
            Head("Inputs from", width=2),
            lambda row: row["after"].replace(" ", ", ").replace("_", " "),
        ),
        (Head("Replicas", Form.COUNT), lambda row: row["replicas"]),
        (Head("GPUs of each", Form.COUNT), lambda row: row["parallel"]),
        (Head("GPU places", Form.COUNT), lambda row: row["slots"]),
        (Head("Batch", Form.COUNT), lambda row: row["batch"]),
        (Head("Latency", Form.NUMBER, "ms"), lambda row: row["sojourn_ms"]),
        (Head("Busy", Form.SHARE), lambda row: row["busy"]),
        (Head("Slowdown", Form.NUMBER), lambda row: row["slowdown"]),
        (Head("Times"), lambda row: row["timing"]),
        (Head("Remark"), lambda row: "bottleneck" if row["bottleneck"] else ""),
        marked=lambda row: row["bottleneck"],
        note="Latency includes queueing. The bottleneck has the longest. Slowdown: by operators on "
        "the same GPUs.",
    )


def _rows(run: Run, table: str, pool: PoolFigures) -> pl.DataFrame:
    """Return the rows of one pool, matched by those key columns that the table has.

    Tables of older runs have no precisions, nor has the table of courses.
    """
    rows = run_table(run, table)
    return rows.filter(pl.col(name) == getattr(pool, name) for name in KEYS if name in rows.columns)


def _colours(names: Iterable[str]) -> dict[str, int]:
    """Return the colour of each operator in graph order, the same in all charts of the pool."""
    return {name: colour for colour, name in enumerate(names)}


def _memory_chart(shards: pl.DataFrame, devices: pl.DataFrame, colours: Mapping[str, int]) -> Chart:
    """Return the memory used on each device, stacked by operator, and its capacity."""
    shown = shards.filter(pl.col("device") < MANY)
    series = [
        Series(
            str(name).replace("_", " "),
            tuple(rows["device"] + 1),
            tuple(rows["memory_gb"].round(3)),
            shape=Shape.BAR,
            notes=tuple(f"{count} of them" for count in rows["shards"]),
            colour=colours.get(str(name)),
        )
        for (name,), rows in shown.group_by("operator", maintain_order=True)
    ]
    series.sort(key=lambda operator: operator.colour or 0)  # in graph order
    last = min(devices.height, MANY)
    # GB in use over the share in use is the memory of a device.
    device_gb = float((devices["memory_gb"] / devices["memory"].clip(1e-9)).median() or 0.0)  # type: ignore[arg-type]
    # The line goes over all bars, which are at 1, 2 and so on.
    series.append(Series("capacity", (0.4, last + 0.6), (device_gb, device_gb), Role.LIMIT))
    note = f"The first {MANY} of {devices.height}." if devices.height > MANY else ""
    return Chart(
        "Memory by GPU", _gpu_axis(last), Axis(unit="GB"), tuple(series), note, stacked=True,
        small=True,
    )  # fmt: skip


def _load_chart(devices: pl.DataFrame) -> Chart:
    """Return the shares of arithmetic and of memory bandwidth in use on each device."""
    shown = devices.filter(pl.col("device") < MANY)
    gpus = tuple(shown["device"] + 1)
    series = tuple(
        Series(name, gpus, tuple(shown[column]), shape=Shape.BAR)
        for column, name in (("compute", "arithmetic"), ("bandwidth", "memory bandwidth"))
    )
    share = Axis("in use", form=Form.SHARE, top=1.0)
    return Chart("Load by GPU", _gpu_axis(len(gpus)), share, series, small=True)


def _gpu_axis(count: int) -> Axis:
    """Return an axis with one tick per device if there are few; for more, the axis chooses."""
    return Axis("GPU", ticks=tuple(range(1, count + 1)) if count <= 12 else ())


def _modules_by_gpu(shards: pl.DataFrame, modules: pl.DataFrame) -> Table:
    """Return which GPU has how many shards of which modules, as a heat map."""
    by_gpu = shards.filter(pl.col("device") < MANY).pivot(
        "operator", index="device", values="shards"
    )
    names = [name for name in modules["operator"] if name in by_gpu.columns]
    most = max(shards["shards"])
    rows, shades = [], []
    for device, *counts in by_gpu.sort("device").select("device", *names).rows():
        rows.append((device + 1, *counts))
        # A GPU without shards of a module (None or 0) has no shade.
        shades.append((None, *(count and 0.6 * count / most for count in counts)))
    return Table(
        (Head("GPU", Form.COUNT), *(Head(name, Form.COUNT) for name in names)),
        tuple(rows),
        "Modules by GPU",
        note="Shards of the modules on each GPU.",
        shades=tuple(shades),
    )


def _sensitivity(responses: Mapping[str, Any], chosen: str) -> Section:
    """Return a chart of one of RESPONSES, called ``chosen``, such as latency by length.

    ``responses`` has its values by operator. The chart has a line for each of the operators that
    respond most.
    """
    names = responses["operators"]
    colours = _colours(names)
    # By key: title, unit, factor from values to that unit, (key of the x values, x axis).
    declared = {key: (title, unit, factor, x) for title, unit, key, factor, x in RESPONSES}
    title, unit, factor, (x_key, x_axis) = declared[chosen]
    values = factor * np.asarray(responses[chosen], np.float64)  # [operator, x]
    most_responsive = np.argsort(-values.max(axis=1), kind="stable")[:SHOWN]  # indices
    series = tuple(
        Series(
            names[index].replace("_", " "),
            tuple(responses[x_key]),
            tuple(map(clean, values[index].tolist())),
            colour=colours[names[index]],
        )
        for index in sorted(most_responsive)
    )
    note = (
        f"One request on one GPU. The {len(series)} of {len(names)} operators that respond most. "
        "Modelled from published peaks and measured kernel efficiency."
    )
    if x_key in ("lengths", "batches") and x_axis.log:  # they double
        x_axis = replace(x_axis, ticks=tuple(responses[x_key][::2]))
    least, most = values[most_responsive].min(), values[most_responsive].max()
    is_log = bool(least > 0 and most / least > WIDE)
    chart = Chart(title, x_axis, Axis(unit=unit, log=is_log), series, note)
    return Section("Sensitivity", (chart,), "Response")


def _sweep(by: str, run: Run, pool: PoolFigures) -> Section:
    """Return a chart of the savings of operators over whole replicas.

    The x axis, ``by``, is length (of the prompt), rate, or size (of the model). Beside the computed
    lines there are points with published savings, in the same colour.
    """
    rows = [row for row in service.savings_sweep(run, pool, by)["rows"] if "gpus" in row]
    axis, conditions = SWEPT[by]
    computed_x = tuple(row["at"] for row in rows)
    series = []
    for colour, (measure, label) in enumerate(MEASURES.items()):
        computed = tuple(row[measure] for row in rows)
        published_x, published = zip(*PUBLISHED[by][measure], strict=True)
        series += [
            Series(f"{label}, computed", computed_x, computed, colour=colour),
            Series(f"{label}, {PAPER}", published_x, published, shape=Shape.POINTS, colour=colour),
        ]
    saves_nothing = all(abs(row[measure]) <= 0.001 for row in rows for measure in MEASURES)
    no_saving = "Operators save nothing here. " if rows and saves_nothing else ""
    note = (
        f"{no_saving}{conditions} Lines: GPUs after placement, confirmed by simulation. Dots: "
        f"{PAPER}, by queueing formulas (arXiv 2511.02248, section 4.3). Gap: no plan keeps the "
        "limit."
    )
    share = Axis(unit="share of whole replicas", form=Form.SHARE)
    chart = Chart("Savings", axis, share, tuple(series), note)
    return Section(f"Savings by {by}", (chart,), f"Sweep {by}")


def _course_chart(courses: pl.DataFrame) -> Chart:
    """Return the GPUs over time when scaling operators, modules or replicas, and requests/s.

    Hours count from the first row of ``courses``. Rows are grouped into equal spans of time, each
    with its largest number of GPUs and its mean rate.
    """
    start = courses["time_s"].min() or 0.0
    seconds = pl.col("time_s") - start  # expressions over the rows
    hours = seconds / 3600
    length_s = float(courses["time_s"].max() or 0.0) - float(start)  # type: ignore[arg-type]
    span_s = max(length_s / SPANS, 1.0)
    grouped = (
        courses.with_columns((seconds / span_s).floor().alias("span"))
        .group_by("level", "span")
        .agg(hours.first().alias("hours"), pl.col("gpus").max(), pl.col("requests_s").mean())
        .sort("span")
    )
    series = []
    for level in reversed(LEVEL_NAMES):  # from the coarsest
        rows = grouped.filter(pl.col("level") == level)
        if not rows.is_empty():
            times = tuple(rows["hours"].round(4))
            gpus = tuple(rows["gpus"])
            series.append(Series(LEVEL_NAMES[level].lower(), times, gpus, shape=Shape.STEP))
    load = grouped.filter(pl.col("level") == "model")  # the rate is the same at each level
    times, rate = tuple(load["hours"].round(4)), tuple(load["requests_s"].round(3))
    series.append(Series("requests/s", times, rate, Role.LIMIT, right=True))
    right = Axis("requests/s", "requests/s")
    return Chart("", Axis("hours"), Axis("GPUs", "GPUs"), tuple(series), right=right)
