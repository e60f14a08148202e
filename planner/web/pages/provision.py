"""Build the part of a provisioning page beside its report: one pool's graph and devices."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import polars as pl

from planner.domain.kinds.provision import Options
from planner.domain.provisioning.figures import LEVEL_NAMES
from planner.models import Run
from planner.selectors.runs import run_result, run_table
from planner.services import provisioning as service
from planner.web.forms.options import OptionsForm
from planner.web.pages import provision_figures as figures

KEYS = ("model", "region", "gpu", "phase", "weights")  # of a pool
LEVELS = ("operator", "module", "model")


def page_context(run: Run, params: Mapping[str, str]) -> dict[str, Any]:
    """Return the pool that ``params`` choose, and the form to provision again."""
    form = OptionsForm(Options, without=("level",), initial=run.options)
    return {"run": run, "form": form, **pool_context(run, run_result(run), params)}


def pool_context(run: Run, result: dict[str, Any], params: Mapping[str, str]) -> dict[str, Any]:
    """Return one pool in one phase at one level."""
    pools = sorted(result["pools"], key=lambda pool: not pool["chosen"])
    by_name: dict[str, dict[str, dict[str, Any]]] = {}
    for pool, name in zip(pools, service.pool_names(pools), strict=True):
        by_name.setdefault(name, {})[pool["phase"]] = pool
    name = _one_of(list(by_name), params.get("pool", ""))
    phase = _one_of(list(by_name[name]), params.get("phase", ""))
    pool = by_name[name][phase]
    planned = [level for level in LEVELS if level in pool["levels"]]
    level = _one_of(planned, params.get("level", "")) if planned else ""
    context: dict[str, Any] = {
        "pool": pool,
        "pool_name": name,
        "pool_names": list(by_name),
        "phase": phase,
        "phases": ("prefill", "decode"),
        "level": level,
        "level_choices": [(level, LEVEL_NAMES[level]) for level in planned],
        "pool_levels": [(LEVEL_NAMES[level], level, pool["levels"][level]) for level in planned],
    }
    if level:
        context |= plan_context(run, pool, level)
    if "over_time" in result and pool["chosen"]:
        context["course_figure"] = figures.course_figure(_rows(run, "courses", pool))
    return context


def _one_of(known: list[str], name: str) -> str:
    return name if name in known else known[0]


def plan_context(run: Run, pool: dict[str, Any], level: str) -> dict[str, Any]:
    """Return the operators of a plan in the order of the graph, and its devices."""
    operators, devices, shards = (
        _rows(run, name, pool).filter(pl.col("level") == level)
        for name in ("operators", "devices", "shards")
    )
    most = max(operators["slots"].to_list(), default=1)
    nodes = [row | {"share": row["slots"] / most} for row in operators.to_dicts()]
    context: dict[str, Any] = {"columns": columns(nodes), "nodes": nodes}
    if not devices.is_empty():
        room = float((devices["memory_gb"] / devices["memory"].clip(1e-9)).median() or 0.0)  # type: ignore[arg-type]
        context |= {
            "memory_figure": figures.memory_figure(shards, room),
            "load_figure": figures.load_figure(devices),
            "devices_shown": min(devices.height, figures.MANY),
            "devices_all": devices.height,
        }
        if level == "module":
            order = [row["operator"] for row in nodes]
            context["strip_figure"] = figures.strip_figure(shards, order)
    return context


def columns(nodes: list[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    """Group nodes by their depth, the longest path from a source; a group is one column."""
    depth: dict[str, int] = {}
    for node in nodes:  # nodes come in topological order
        after = f" {node['after']} "  # names may contain spaces: do not split
        before = [place for name, place in depth.items() if f" {name} " in after]
        depth[node["operator"]] = 1 + max(before, default=-1)
    if nodes and not any(node["after"] for node in nodes):
        return [[node] for node in nodes]
    return [
        [node for node in nodes if depth[node["operator"]] == place]
        for place in range(1 + max(depth.values(), default=-1))
    ]


def _chosen_pool(run: Run, params: Mapping[str, str]) -> dict[str, Any]:
    return service.pool_of_run(run, params.get("pool", ""), params.get("phase", ""))


def sensitivity_context(run: Run, params: Mapping[str, str]) -> dict[str, Any]:
    pool = _chosen_pool(run, params)
    responses = service.operator_sensitivity(run, pool)
    return {"pool": pool, "responses": figures.response_figures(responses)}


def sweep_context(by: str, run: Run, params: Mapping[str, str]) -> dict[str, Any]:
    pool = _chosen_pool(run, params)
    sweep = service.savings_sweep(run, pool, by)
    return {"pool": pool, "by": by, "sweep": sweep, "sweep_figure": figures.sweep_figure(sweep)}


def _rows(run: Run, table: str, pool: dict[str, Any]) -> pl.DataFrame:
    """Return the rows of one pool, by the key columns that the table has.

    Tables of older runs have no precisions, nor has the table of courses.
    """
    rows = run_table(run, table)
    return rows.filter(pl.col(name) == pool[name] for name in KEYS if name in rows.columns)
