"""What the page of a provisioning run shows: the levels, one pool's graph and devices."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import polars as pl

from planner.models import Run
from planner.selectors.runs import run_result, run_table, run_tables
from planner.services import provisioning as service
from planner.web.forms.provisioning import ProvisionForm
from planner.web.pages import provision_figures as figures

LEVELS = ("operator", "module", "model")
LABELS = {"operator": "By operators", "module": "By layers", "model": "By whole replicas"}
WAYS = {
    "apart": "Each phase on GPUs of its own",
    "together": "By operators, both on common GPUs",
    "chunked_model": "Prompts in chunks among decodes, by whole replicas",
    "chunked_operator": "Prompts in chunks among decodes, by operators",
}


def page_context(run: Run, params: Mapping[str, str]) -> dict[str, Any]:
    """The levels of all pools together, and the pool that ``params`` choose."""
    result = run_result(run)
    window = result.get("window") or {}
    levels = result.get("levels") or {}
    return {
        "run": run,
        "result": result,
        "tables": run_tables(run),
        "window": window,
        "clock": window.get("clock", "utc"),
        "levels": [(LABELS[name], name, levels[name]) for name in LEVELS if name in levels],
        "savings": result.get("savings") or {},
        "form": ProvisionForm(initial=run.options),
        **pool_context(run, result, params),
    }


def pool_context(run: Run, result: dict[str, Any], params: Mapping[str, str]) -> dict[str, Any]:
    """One pool in one phase at one level."""
    pools = sorted(result["pools"], key=lambda pool: not pool["chosen"])
    names = list(dict.fromkeys(service.pool_name(pool) for pool in pools))
    name = params.get("pool", "")
    phases = [pool["phase"] for pool in pools if service.pool_name(pool) == (name or names[0])]
    phase = params.get("phase", "")
    pool = service.pool_named(
        {**result, "pools": pools}, name if name in names else names[0],
        phase if phase in phases else "",
    )  # fmt: skip
    held = [level for level in LEVELS if level in pool["levels"]]
    level = params.get("level", "")
    level = level if level in held else held[0] if held else ""
    context: dict[str, Any] = {
        "pool": pool,
        "pool_name": service.pool_name(pool),
        "pool_names": names,
        "phase": pool["phase"],
        "phases": ("prefill", "decode"),
        "level": level,
        "level_choices": [(one, LABELS[one]) for one in held],
        "pool_levels": [(LABELS[one], one, pool["levels"][one]) for one in held],
    }
    if level:
        context |= plan_context(run, pool, level)
    if "sharing" in result and pool["chosen"]:
        context |= sharing_context(result["sharing"], pool)
    if "over_time" in result and pool["chosen"]:
        context |= course_context(run, result["over_time"], pool)
    return context


def sharing_context(found: dict[str, Any], pool: dict[str, Any]) -> dict[str, Any]:
    """Both phases of the pool's model, apart and on common GPUs."""
    keys = ("model", "region", "gpu")
    mine = [one for one in found["services"] if all(one[key] == pool[key] for key in keys)]
    if not mine:
        return {}
    (one,) = mine
    return {
        "ways": [(WAYS[name], name, way) for name, way in one["ways"].items()],
        "best_way": one["best"],
        "chunk_tokens": one["chunk_tokens"],
        "shared_models": [
            group
            for group in found["models"]
            if group["region"] == pool["region"] and pool["model"] in group["models"]
        ],
    }


def course_context(run: Run, found: dict[str, Any], pool: dict[str, Any]) -> dict[str, Any]:
    """The pool window by window: a row per level, and what each held along the traffic."""
    mine = next(
        one
        for one in found["pools"]
        if all(one[key] == pool[key] for key in ("model", "region", "gpu", "phase"))
    )
    courses = run_table(run, "courses")
    for name in ("model", "region", "gpu", "phase"):
        courses = courses.filter(pl.col(name) == pool[name])
    return {
        "over_time": found,
        "course_levels": [
            (LABELS[one], one, mine["levels"][one]) for one in LEVELS if one in mine["levels"]
        ],
        "course_savings": mine["savings"],
        "course_figure": figures.course_figure(courses),
    }


def plan_context(run: Run, pool: dict[str, Any], level: str) -> dict[str, Any]:
    """The operators of a plan in the order of the graph, and its devices."""
    operators = _rows(run, "operators", pool, level)
    devices, shards = (_rows(run, name, pool, level) for name in ("devices", "shards"))
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
    """Nodes by how many come before them on the longest way: side by side in the picture."""
    depth: dict[str, int] = {}
    for node in nodes:  # they come in an order in which they can run
        after = f" {node['after']} "  # names of runs of layers have spaces themselves
        before = [place for name, place in depth.items() if f" {name} " in after]
        depth[node["operator"]] = 1 + max(before, default=-1)
    if nodes and not any(node["after"] for node in nodes):
        return [[node] for node in nodes]
    found: list[list[dict[str, Any]]] = [[] for _ in range(1 + max(depth.values(), default=-1))]
    for node in nodes:
        found[depth[node["operator"]]].append(node)
    return found


def sensitivity_context(run: Run, pool: dict[str, Any]) -> dict[str, Any]:
    found = service.operator_sensitivity(run, pool)
    return {"pool": pool, "responses": figures.response_figures(found)}


def sweep_context(run: Run, pool: dict[str, Any], by: str) -> dict[str, Any]:
    found = service.savings_sweep(run, pool, by)
    return {"pool": pool, "by": by, "sweep": found, "sweep_figure": figures.sweep_figure(found)}


def _rows(run: Run, table: str, pool: dict[str, Any], level: str) -> pl.DataFrame:
    found = run_table(run, table)
    for name in ("model", "region", "gpu", "phase"):
        found = found.filter(pl.col(name) == pool[name])
    return found.filter(pl.col("level") == level)
