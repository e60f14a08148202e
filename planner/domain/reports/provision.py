"""Report the GPUs that a load needs at each level of scaling: operators, modules or replicas.

A pool is one phase (prefill or decode) of a model in a region.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Generic, NamedTuple, TypeVar

from planner.domain.formats import figure, signed_percent
from planner.domain.kinds.provision import ProvisionResult
from planner.domain.provisioning.figures import LEVEL_NAMES, LevelFigures, PoolFigures, Total
from planner.domain.provisioning.sharing import APART
from planner.domain.provisioning.unit import MODEL
from planner.domain.provisioning.window_report import LevelFiguresOverTime, PoolOverTime
from planner.domain.report import (
    Axis,
    Chart,
    Fact,
    Form,
    Group,
    Head,
    Meaning,
    Report,
    Section,
    Series,
    Shape,
    Table,
    TableColumns,
    sources_section,
    table,
    table_section,
)
from planner.domain.reports.frame import window_text
from planner.domain.reports.tables import Tables

P = TypeVar("P")
F = TypeVar("F")
WAYS = {
    "apart": "Disaggregated",
    "together": "Operators, aggregated",
    "chunked_model": "Whole replicas, chunked prefill",
    "chunked_operator": "Operators, chunked prefill",
}


class PoolRow(NamedTuple, Generic[P, F]):
    """The figures of one level or method of a pool; if ``pool`` is None, of all pools together."""

    pool: P
    name: str  # of the level or method
    figures: F


def report(result: ProvisionResult, _: Tables) -> Report:
    """Return the report of ``provision``."""
    window = result.window
    pools = [pool for pool in result.pools if pool.chosen]
    span = window_text(window)
    return Report(
        title=result.scenario,
        answer=result.headline,
        about=f"Busiest hour of {span} · prefill and decode on separate GPUs",
        why=""
        if result.pays
        else "Scale whole replicas. Scaling their modules or operators one by one saves no GPUs.",
        facts=tuple(_facts(result)),
        warnings=result.warnings,
        sections=(
            Section("GPUs by pool", (*_charts(pools), _pools(pools)), "Pools"),
            *_over_time(result),
            *_sharing(result),
            Section(
                "GPUs by level, bounds", (_levels(result),), "Levels", Group.BASIS, printed=True
            ),
            *_methods(pools),
            *sources_section(result.provenance, result.notes),
        ),
        clock=window.clock,
    )


def _facts(result: ProvisionResult) -> Iterator[Fact]:
    """Yield the GPUs of each level of scaling, with the savings over whole replicas."""
    if _levels_need_the_same(result):
        needs = next(iter(result.levels.values())).needs
        yield Fact("GPUs, every provisioning level", needs.gpus, form=Form.COUNT, note="no saving")
        yield Fact("Power", needs.energy_w / 1e3, "kW")
        yield Fact("Memory", needs.memory_gb / 1e3, "TB")
        return
    for name, total in result.levels.items():
        needs, saved = total.needs, result.savings.get(name)
        power, memory = figure(needs.energy_w / 1e3, "kW"), figure(needs.memory_gb / 1e3, "TB")
        saved_share = 0.0  # of the GPUs of whole replicas
        if saved is not None and saved.gpus is not None:
            saved_share = saved.gpus
        change = f"{signed_percent(-saved_share, 0)} vs whole replicas" if saved_share else ""
        yield Fact(
            LEVEL_NAMES[name], needs.gpus, "GPUs", Form.COUNT, change, f"{power} · {memory}",
            meaning=Meaning.SAVING if saved_share > 0 else Meaning.NEUTRAL,
        )  # fmt: skip


def _levels_need_the_same(result: ProvisionResult) -> bool:
    """Return whether several levels need the same GPUs, power and memory, to the unit."""
    needs = [total.needs for total in result.levels.values()]
    figures = {(need.gpus, round(need.energy_w), round(need.memory_gb)) for need in needs}
    return len(needs) > 1 and len(figures) == 1


def _gap(share: float | None) -> str | None:
    """Return a gap to a proven bound as text; None if ``share`` is None (no bound is known)."""
    if share is None:
        return None
    return f"{share:.1%}" if share > 0 else "proven optimal"


POOL_LEVEL_COLUMNS: TableColumns[PoolRow[PoolFigures, LevelFigures]] = (
    (Head("Level"), lambda row: row.name),
    (Head("GPUs", Form.COUNT), lambda row: row.figures.needs.gpus),
    (Head("Power", Form.NUMBER, "W"), lambda row: row.figures.needs.energy_w),
    (Head("Memory", Form.NUMBER, "GB"), lambda row: row.figures.needs.memory_gb),
    (Head("Energy per request", Form.NUMBER, "J"), lambda row: row.figures.request_j),
    (Head("Latency", Form.NUMBER, "ms"), lambda row: row.figures.needs.latency_ms),
    (Head("Simulated mean", Form.NUMBER, "ms"), lambda row: _of_replay("mean_ms", row)),
    (Head("P95", Form.NUMBER, "ms"), lambda row: _of_replay("p95_ms", row)),
    (Head("P99", Form.NUMBER, "ms"), lambda row: _of_replay("p99_ms", row)),
    (Head("Within limit", Form.SHARE), lambda row: _of_replay("attainment", row)),
    (Head("Method", width=2), lambda row: row.figures.method),
)


def _levels(result: ProvisionResult) -> Table:
    """Return a table with a row per level, or one row if all levels need the same GPUs."""

    def change(measure: str, row: PoolRow[None, Total]) -> float | None:
        """Return the change of ``measure`` against whole replicas, as a share; None if none."""
        share = getattr(result.savings.get(row.name), measure, None)
        return -share if share else None

    rows = [PoolRow(None, LEVEL_NAMES[name], total) for name, total in result.levels.items()]
    if _levels_need_the_same(result):
        rows = [rows[0]._replace(name="all levels")]
    return table(
        rows,
        (Head("Level"), lambda row: row.name),
        (Head("GPUs", Form.COUNT), lambda row: row.figures.needs.gpus),
        (Head("Change", Form.CHANGE), partial(change, "gpus")),
        (Head("Power", Form.NUMBER, "kW"), lambda row: row.figures.needs.energy_w / 1e3),
        (Head("Change", Form.CHANGE), partial(change, "energy")),
        (Head("Memory", Form.NUMBER, "TB"), lambda row: row.figures.needs.memory_gb / 1e3),
        (Head("Change", Form.CHANGE), partial(change, "memory")),
        (Head("Latency", Form.NUMBER, "ms"), lambda row: row.figures.needs.latency_ms),
        (Head("Limit", Form.NUMBER, "ms"), lambda row: row.figures.needs.slo_ms),
        (Head("Tightest phase", width=2), lambda row: row.figures.tightest),
        (Head("GPUs for mean latency", Form.COUNT), lambda row: row.figures.needs.mean_gpus),
        (Head("Proven bound", Form.COUNT, "GPUs"), lambda row: row.figures.needs.least_gpus),
        (Head("Gap to the bound"), lambda row: _gap(row.figures.needs.gap)),
        note="Changes are against whole replicas. Proven bound: minimum GPUs for the mean-latency "
        "limit. Simulation may need more.",
    )


def _gpus(level: str, pool: PoolFigures) -> int | None:
    """Return the GPUs of a pool at a level; None if it was not planned."""
    return pool.levels[level].needs.gpus if level in pool.levels else None


def _charts(pools: list[PoolFigures]) -> Iterator[Chart]:
    """Yield a chart of the GPUs by level, unless all levels need the same.

    Each level has a bar, divided by model and phase.
    """
    levels = [name for name in LEVEL_NAMES if all(name in pool.levels for pool in pools)]
    # By model and phase: the GPUs of all regions by level.
    gpus_by_level: dict[str, Counter[str]] = {}
    for pool in pools:
        gpus = gpus_by_level.setdefault(f"{pool.model} {pool.phase}", Counter())
        gpus.update({name: pool.levels[name].needs.gpus for name in levels})
    if all(len(set(gpus.values())) == 1 for gpus in gpus_by_level.values()):
        return
    labels = tuple(LEVEL_NAMES[name] for name in levels)
    series = []
    for model_and_phase, gpus in gpus_by_level.items():
        heights = tuple(gpus[name] for name in levels)
        series.append(Series(model_and_phase, labels, heights, shape=Shape.BAR))
    yield Chart(
        "GPUs by level", Axis(), Axis(form=Form.COUNT), tuple(series),
        stacked=True, horizontal=True, half=True,
    )  # fmt: skip


def _pools(pools: list[PoolFigures]) -> Table:
    """Return a table with a row per pool: its load, its latency limit and the GPUs of each level.

    If all levels need the same GPUs in every pool, one column has them.
    """
    levels = dict(LEVEL_NAMES)
    if all(_gpus(name, pool) == _gpus(MODEL, pool) for pool in pools for name in levels):
        levels = {MODEL: "All levels"}
    gpus = [
        (Head(f"GPUs: {head}", Form.COUNT), partial(_gpus, name)) for name, head in levels.items()
    ]
    return table(
        pools,
        (Head("Model", width=2), lambda pool: pool.model),
        (Head("Region"), lambda pool: pool.region),
        (Head("Phase"), lambda pool: pool.phase),
        (Head("GPU"), lambda pool: pool.gpu),
        (Head("Load", Form.NUMBER, "req/s"), lambda pool: pool.requests_s),
        (Head("Input", Form.COUNT, "tokens"), lambda pool: pool.isl + pool.cached_tokens),
        (Head("Output", Form.COUNT, "tokens"), lambda pool: pool.osl),
        (Head("Limit", Form.NUMBER, "ms"), lambda pool: pool.slo_ms),
        *gpus,
        note="Load: mean of the busiest hour. Plans of whole replicas cover the busiest minutes, "
        "so they may need more GPUs. Assumed limits where a tier has none: prefill 2,000 ms, "
        "decode 200 ms.",
    )


def pool_levels(pools: Sequence[PoolFigures]) -> Table:
    """Return a table with a row per pool and level: plan and replay. A single pool is not named."""
    rows = [
        PoolRow(pool, LEVEL_NAMES[name], pool.levels[name])
        for pool in pools
        for name in LEVEL_NAMES
        if name in pool.levels
    ]
    pool_column = (Head("Pool", width=2), lambda row: pool_name(row.pool))
    shown = POOL_LEVEL_COLUMNS if len(pools) == 1 else (pool_column, *POOL_LEVEL_COLUMNS)
    return table(rows, *shown, title="Levels")


def _of_replay(name: str, row: PoolRow[PoolFigures, LevelFigures]) -> float | None:
    """Return the figure ``name`` of the replay of a level; None without a replay."""
    return getattr(row.figures.replayed, name, None)


def _sharing(result: ProvisionResult) -> Iterator[Section]:
    """Yield the section on common GPUs for prefill and decode, if that was computed.

    It lists the ways to place both phases that keep the latency limits.
    """
    if result.sharing is None or not result.sharing.services:
        return
    all_rows = [
        PoolRow(service, name, way)
        for service in result.sharing.services
        for name, way in service.ways.items()
    ]
    rows = [row for row in all_rows if row.figures.confirmed]
    unlisted = len(all_rows) - len(rows)
    ways = table(
        rows,
        (Head("Model", width=2), lambda row: row.pool.model),
        (Head("Region"), lambda row: row.pool.region),
        (Head("GPU"), lambda row: row.pool.gpu),
        (Head("Placement", width=2), lambda row: WAYS[row.name]),
        (Head("GPUs", Form.COUNT), lambda row: row.figures.gpus),
        (Head("Power", Form.NUMBER, "kW"), lambda row: row.figures.energy_w / 1e3),
        (Head("Memory", Form.NUMBER, "TB"), lambda row: row.figures.memory_gb / 1e3),
        (Head("SLO attainment", Form.SHARE), lambda row: row.figures.attainment),
        # The best way is marked only if it was simulated: mean queueing times alone are too coarse.
        marked=lambda row: (
            row.name == row.pool.best and (row.name == APART or row.figures.attainment is not None)
        ),
        note=f"Placements that miss their limits are not listed: {unlisted}." if unlisted else "",
    )
    yield Section("Aggregated prefill and decode", (ways,), "Aggregated", Group.BASIS)


def _over_time(result: ProvisionResult) -> Iterator[Section]:
    """Yield the section on each level over all windows of the traffic, if it was computed."""
    over_time = result.over_time
    if over_time is None:
        return
    rows = [
        PoolRow(pool, name, level)
        for pool in over_time.pools
        for name, level in pool.levels.items()
    ]

    def fixed_figure(name: str, row: PoolRow[PoolOverTime, LevelFiguresOverTime]) -> float | None:
        """Return the figure ``name`` of the plan for the busiest hour; None without one."""
        return getattr(row.figures.fixed_plan, name, None)

    yield from table_section(
        "Over time",
        rows,
        (Head("Phase"), lambda row: row.pool.phase),
        (Head("Model", width=2), lambda row: row.pool.model),
        (Head("Level"), lambda row: LEVEL_NAMES[row.name]),
        (Head("GPU-hours", Form.NUMBER), lambda row: row.figures.gpu_hours),
        (Head("Peak", Form.COUNT, "GPUs"), lambda row: row.figures.gpus_most),
        (Head("Energy", Form.NUMBER, "kWh"), lambda row: row.figures.kwh),
        (Head("Memory", Form.COUNT, "GB"), lambda row: row.figures.memory_gb),
        (Head("Within limit", Form.SHARE), lambda row: row.figures.attainment),
        (Head("Headroom", Form.SHARE), lambda row: row.figures.headroom),
        (Head("Fixed plan", Form.NUMBER, "GPU-hours"), partial(fixed_figure, "gpu_hours")),
        (Head("Fixed plan: within limit", Form.SHARE), partial(fixed_figure, "attainment")),
        note=f"{over_time.windows:,} windows of {over_time.window_s:g} s, planned on "
        f"{over_time.known} load. The fixed plan is that of the busiest hour.",
    )


def _methods(pools: list[PoolFigures]) -> Iterator[Section]:
    """Yield the section that compares methods to plan operators, if they were compared.

    They are the greedy method, the exact optimum, and Algorithm 1 of Cui et al. (2025).
    """
    yield from table_section(
        "Methods of Cui et al. (2025)",
        [PoolRow(pool, method.method, method) for pool in pools for method in pool.methods],
        (Head("Pool", width=2), lambda row: pool_name(row.pool)),
        (Head("Method", width=2), lambda row: row.name),
        (Head("Slots", Form.COUNT), lambda row: row.figures.slots),
        (Head("GPUs after placement", Form.COUNT), lambda row: row.figures.gpus),
        (Head("Proven bound", Form.COUNT, "GPUs"), lambda row: row.figures.least_gpus),
        (Head("Gap to the bound"), lambda row: _gap(row.figures.gap)),
        (Head("Power", Form.COUNT, "W"), lambda row: row.figures.power_w),
        (Head("Planned latency", Form.NUMBER, "ms"), lambda row: row.figures.latency_ms),
        (Head("Replay: mean", Form.NUMBER, "ms"), lambda row: row.figures.mean_ms),
        (Head("Replay: p95", Form.NUMBER, "ms"), lambda row: row.figures.p95_ms),
        (Head("Replay: within limit", Form.SHARE), lambda row: row.figures.attainment),
        name="Source",
        group=Group.BASIS,
        note="Slots: GPUs before placement. Empty: the method found no plan.",
    )


def pool_name(pool: PoolFigures) -> str:
    """Return the phase, the model, the region and the GPU type of a pool, in words."""
    return f"{pool.phase} of {pool.model} in {pool.region} on {pool.gpu}"
