"""Report models that share GPUs: GPUs and cost, the models of each GPU, and their latencies."""

from planner.domain.kinds.share import ShareResult
from planner.domain.report import (
    Axis,
    Chart,
    Fact,
    Form,
    Head,
    Meaning,
    Report,
    Role,
    Section,
    Series,
    Shape,
    Table,
    TableColumns,
    sources_section,
    table,
    table_section,
)
from planner.domain.reports.tables import Tables
from planner.domain.sharing.figures import WAYS, ModelFigures


def report(result: ShareResult, _: Tables) -> Report:
    """Return the report of ``share``: the GPUs that models need if they share them."""
    replayed = result.replayed
    span = f"{replayed.duration_s / 3600:,.3g} h from {replayed.start}"
    return Report(
        title=result.scenario,
        answer=result.headline,
        about=f"Replay of {span}: {replayed.requests:,} requests, GPU by GPU",
        facts=_facts(result),
        warnings=result.warnings,
        sections=(
            Section("Models per GPU", (_chart(result), _gpus(result))),
            *table_section("Models", result.models, *MODEL_COLUMNS),
            *sources_section(result.provenance, result.notes),
        ),
    )


def _facts(result: ShareResult) -> tuple[Fact, ...]:
    """Return the GPUs and the cost with and without sharing, and the models within their SLOs."""
    met = sum(row.shared.met for row in result.models)
    models = len(result.models)
    meaning = Meaning.MET if met == models else Meaning.MISSED
    shared, dedicated = result.shared, result.dedicated
    return (
        Fact("GPUs, shared", shared.gpus, form=Form.COUNT, meaning=Meaning.SAVING),
        Fact("GPUs, not shared", dedicated.gpus, form=Form.COUNT),
        Fact("GPUs saved", result.saving, form=Form.SHARE),
        Fact("Cost of a day at this load, shared", shared.usd_per_day, "$"),
        Fact("Cost of a day at this load, not shared", dedicated.usd_per_day, "$"),
        Fact("Models within their SLOs", f"{met:,} of {models:,}", meaning=meaning),
    )


def _chart(result: ShareResult) -> Chart:
    """Return the chart of how each GPU spends its time: in iterations, and loading weights."""
    names = tuple(row.name for row in result.gpus)
    busy = tuple(row.busy for row in result.gpus)
    loading = tuple(row.loading for row in result.gpus)
    return Chart(
        "Use of each GPU",
        Axis(),
        Axis("Share of the time", form=Form.SHARE, top=1.0),
        (
            Series("Iterations", names, busy, Role.RECOMMENDED, Shape.BAR),
            Series("Weight loads", names, loading, Role.SHORTFALL, Shape.BAR),
        ),
        stacked=True,
        horizontal=True,
    )


def _gpus(result: ShareResult) -> Table:
    """Return a table with a row per GPU (or group of GPUs), with the models that share it."""
    return table(
        result.gpus,
        (Head("GPU", width=2), lambda row: row.name),
        (Head("GPUs", Form.COUNT), lambda row: row.gpus),
        (Head("Shared"), lambda row: WAYS[row.way]),
        (Head("Models", width=3), lambda row: ", ".join(row.models)),
        (Head("Weights", Form.NUMBER, "GB"), lambda row: row.weights_gb),
        (Head("Time in iterations", Form.SHARE), lambda row: row.busy),
        (Head("Time loading weights", Form.SHARE), lambda row: row.loading),
        (Head("Weight loads per hour", Form.NUMBER), lambda row: row.loads_per_hour),
        (Head("Lowest SLO attainment", Form.SHARE), lambda row: row.attainment),
        note="By memory: all weights stay on the GPU, and KV caches share the rest. By time: "
        "weights are loaded from the host when a request needs them. One request keeps "
        "iterations running, so time in iterations is not utilization.",
    )


MODEL_COLUMNS: TableColumns[ModelFigures] = (
    (Head("Model", width=2), lambda row: row.model),
    (Head("Region"), lambda row: row.region),
    (Head("Requests", Form.COUNT), lambda row: row.requests),
    (Head("Rate", Form.NUMBER, "req/s"), lambda row: row.requests_per_s),
    (Head("Weights", Form.NUMBER, "GB"), lambda row: row.weights_gb),
    (Head("Replicas, not shared", Form.COUNT), lambda row: row.replicas_alone),
    (Head("Shares with", Form.COUNT, "models"), lambda row: len(row.shared_with)),
    (Head("Weight load time", Form.SECONDS), lambda row: row.load_s),
    (Head("Weight loads", Form.COUNT), lambda row: row.loads),
    (Head("SLO attainment", Form.SHARE), lambda row: row.shared.attainment),
    (Head("Attainment, unseen replays", Form.SHARE), lambda row: row.unseen_attainment),
    (Head("SLO attainment, not shared", Form.SHARE), lambda row: row.alone.attainment),
    (Head("TTFT p95", Form.NUMBER, "ms"), lambda row: row.shared.ttft_p95_ms),
    (Head("TTFT p95, not shared", Form.NUMBER, "ms"), lambda row: row.alone.ttft_p95_ms),
    (Head("TPOT p95", Form.NUMBER, "ms"), lambda row: row.shared.tbt_p95_ms),
    (Head("TPOT p95, not shared", Form.NUMBER, "ms"), lambda row: row.alone.tbt_p95_ms),
    (Head("Why not shared", width=2), lambda row: row.why_alone),
)
