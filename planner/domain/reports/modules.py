"""Report policies that scale parts of a replica: its modules (such as layers), copied or moved."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

import polars as pl

from planner.domain.module_figures import ModuleFigures, PoolModules
from planner.domain.report import (
    Axis,
    Block,
    Chart,
    Form,
    Group,
    Head,
    Note,
    Role,
    Section,
    Series,
    Shape,
    Table,
    TableColumns,
    table,
)
from planner.domain.reports.over_time import changes, to_end
from planner.domain.reports.tables import Tables
from planner.domain.results.basis import Frame
from simulation.modules.parts import Module

MOST_CHARTS = 4  # of pools: those with the most operations
AWAY_FROM_HOME = {  # columns of the table "modules", with their names in the legend
    "layers": "layers moved away",
    "projections": "feed-forward modules on other GPUs",
    "caches": "KV caches away",
}
NOTES = (
    Note("Replica counts stay. Algorithms 1 and 2 of CoCoServe copy and move layers. Durations are "
         "bytes over the bandwidth of the link."),
    Note("Cost, GPU-hours and energy include borrowed GPUs. Energy is an upper limit. Engines "
         "with captured graphs cannot do this."),
)  # fmt: skip


class Pool(NamedTuple):
    """What one policy copied and moved in one pool."""

    policy: ModuleFigures
    pool: PoolModules


class ModelModule(NamedTuple):
    """A module of a layer of a model, by the model's name."""

    model: str
    module: Module


POOL_COLUMNS: TableColumns[Pool] = (
    (Head("Policy", width=2), lambda row: row.policy.label),
    (Head("Model", width=2), lambda row: row.pool.model),
    (Head("Region"), lambda row: row.pool.region),
    (Head("GPUs", width=2), lambda row: row.pool.arrangement),
)


def modules_section(
    moved: Sequence[ModuleFigures] | None, frame: Frame, tables: Tables
) -> Iterator[Section]:
    """Yield the section on pools whose modules were copied or moved; nothing without (None)."""
    pools = [Pool(policy, pool) for policy in moved or () for pool in policy.pools]
    if not pools:
        return
    pools.sort(key=lambda row: -row.pool.operations)
    operations = table(
        pools,
        *POOL_COLUMNS,
        (Head("Replicas", Form.COUNT), lambda row: row.pool.instances),
        (Head("Operations", Form.COUNT), lambda row: row.pool.operations),
        (Head("Duration", Form.SECONDS), lambda row: row.pool.acting_s),
        (Head("Layers", Form.COUNT), lambda row: row.pool.layers),
        (Head("Copied, mean", Form.NUMBER), lambda row: row.pool.mean_copies),
        (Head("Copied, most", Form.COUNT), lambda row: row.pool.most_copies),
        (Head("Copies removed", Form.COUNT), lambda row: row.pool.given_up),
        (Head("Layers moved", Form.COUNT), lambda row: row.pool.moved_layers),
        (Head("Projections moved", Form.COUNT), lambda row: row.pool.moved_projections),
        (Head("KV caches moved", Form.COUNT), lambda row: row.pool.moved_caches),
        title="Operations",
    )
    resources = table(
        pools,
        *POOL_COLUMNS,
        (Head("Borrowed GPUs, mean", Form.NUMBER), lambda row: row.pool.mean_borrowed_gpus),
        (Head("Borrowed GPUs, most", Form.COUNT), lambda row: row.pool.most_borrowed_gpus),
        (Head("Speed, mean", Form.NUMBER, "x"), lambda row: row.pool.mean_speed),
        (Head("KV tokens at home", Form.COUNT), lambda row: row.pool.kv_tokens),
        (Head("KV tokens, most", Form.COUNT), lambda row: row.pool.most_kv_tokens),
        (Head("Sequences computed again", Form.COUNT), lambda row: row.pool.preemptions),
        (Head("Unused memory", Form.SHARE), lambda row: row.pool.unused_memory),
        (Head("Speedup of all idle GPUs", Form.NUMBER, "x"), lambda row: row.pool.speedup),
        (Head("Exact speedup", Form.NUMBER, "x"), lambda row: row.pool.exact_speedup),
        title="Resources",
    )
    charts = _charts(pools[:MOST_CHARTS], frame, tables("modules"))
    blocks: tuple[Block, ...] = (operations, resources, *charts, _memory_table(pools), *NOTES)
    yield Section("Module scaling", blocks, "Modules", group=Group.PLAN)


def _memory_table(pools: Sequence[Pool]) -> Table:
    """Return a table of the memory and the work of each module of a layer, by model."""
    rows: set[ModelModule] = set()
    for row in pools:
        for model, modules in row.policy.parts.items():
            rows.update(ModelModule(model, module) for module in modules)
    return table(
        sorted(rows, key=lambda row: (row.model, -row.module.memory_bytes)),
        (Head("Model", width=2), lambda row: row.model),
        (Head("Module of a layer", width=2), lambda row: row.module.name),
        (Head("In a layer", Form.COUNT), lambda row: row.module.per_layer),
        (Head("Memory", Form.NUMBER, "MiB"), lambda row: row.module.memory_bytes / 2**20),
        (Head("Work for 256 tokens", Form.NUMBER, "GFLOP"), lambda row: row.module.flops / 1e9),
        title="Memory and work of a layer's modules",
    )


def _charts(pools: Sequence[Pool], frame: Frame, modules: pl.DataFrame) -> Iterator[Chart]:
    """Yield a chart of the copied and moved modules of each pool over time, if there are any.

    ``modules`` is the table of their placements, with a row per time, policy, pool and device.
    """
    for policy, pool in pools:
        if modules.is_empty() or not pool.operations:
            continue
        rows = modules.filter(
            pl.col("policy") == policy.policy,
            pl.col("model") == pool.model,
            pl.col("region") == pool.region,
            pl.col("arrangement") == pool.arrangement,
        )
        title = f"Modules over time: {pool.model} in {pool.region}, {policy.label}"
        lines: list[Series] = []
        # The copies on each device over the whole window, if it was borrowed at any time.
        lent = rows.filter(pl.col("borrowed").any().over("device")).sort("device", "time")
        for (number, gpu), device_rows in lent.group_by("device", "gpu", maintain_order=True):
            label = f"copies on device {number} ({gpu})"
            lines.append(_steps(device_rows, "copies", label, frame))
        lines += _away_from_home(rows, frame)
        right = Axis("devices")
        yield Chart(title, Axis(), Axis("modules of a replica"), tuple(lines), right=right)


def _away_from_home(rows: pl.DataFrame, frame: Frame) -> Iterator[Series]:
    """Yield the modules on borrowed devices by kind, if there are any, and the borrowed GPUs."""
    # The number of borrowed GPUs is that of the pool, so all its rows at a time have the same.
    totals = (pl.col(*AWAY_FROM_HOME).sum(), pl.col("borrowed_instances").first())
    on_borrowed = rows.filter("borrowed").group_by("time").agg(*totals)
    for name, words in AWAY_FROM_HOME.items():
        if on_borrowed[name].sum():
            yield _steps(on_borrowed, name, words, frame)
    borrowed = _steps(on_borrowed, "borrowed_instances", "borrowed GPUs, total", frame)
    yield replace(borrowed, role=Role.BASELINE, right=True)


def _steps(rows: pl.DataFrame, column: str, label: str, frame: Frame) -> Series:
    """Return the values of ``column`` over time as a line of steps up to the window's end."""
    shown = changes(to_end(rows.select("time", column).sort("time"), frame.window.end), [column])
    return Series(label, tuple(shown["time"]), tuple(shown[column]), shape=Shape.STEP)
