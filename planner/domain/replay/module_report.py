"""Report what a policy that scales modules did in a replay.

Modules are the layers of a model and their projections. The policy copies them to other GPUs, or
moves them. The report covers their placement over time and the cost of moving them.
"""

from collections.abc import Sequence

import numpy as np
import polars as pl

from planner.domain.module_figures import ModuleFigures, ModuleRun, PoolModules
from planner.domain.serialise import moments
from planner.domain.study import PolicyRun, Study
from planner.policies.base import Policy
from planner.policies.context import BuiltPolicy
from simulation.arrays import FloatArray
from simulation.modules.parts import Module, modules_of
from simulation.policies.modules import Event, ModuleScaling
from simulation.results import OUT_OF_MEMORY, Replay

PLANNED_AT = 32.0  # batch size at which the greedy plan (Algorithm 1) is compared with the exact
TABLE_TOKENS = 256  # prompt length at which the modules of a model are reported


def module_figures(runs: Sequence[PolicyRun]) -> tuple[ModuleFigures, ...] | None:
    """Return the module figures of all policies that copy or move modules; None if none does."""
    return tuple(run.modules.figures for run in runs if run.modules is not None) or None


def module_run(
    study: Study, ready: BuiltPolicy, result: Replay, labels: Sequence[str], policy: Policy
) -> ModuleRun | None:
    """Return the module figures and tables of a policy; None if it does not move modules.

    ``ready`` is the policy as built from ``policy``, and ``result`` its replay. ``labels`` names
    the arrangement of each pool.
    """
    rule = ready.modules
    if rule is None:
        return None
    scaled = [p for p, layout in enumerate(rule.layouts) if layout is not None]
    figures = ModuleFigures(
        policy=policy.key,
        label=policy.title,
        out_of_memory=int(result.reject_reasons.get(OUT_OF_MEMORY, 0)),
        pools=tuple(_pool_figures(study, ready, rule, result, labels[p], p) for p in scaled),
        parts=_modules_by_model(study, ready, scaled),
    )
    return ModuleRun(
        figures,
        _layout_table(study, result, labels, rule),
        _operations(study, result, labels, rule.events),
    )


def _modules_by_model(
    study: Study, ready: BuiltPolicy, scaled_pools: Sequence[int]
) -> dict[str, tuple[Module, ...]]:  # fmt: skip
    """Return the modules of each model, by model name.

    ``scaled_pools`` are the indices of the pools whose modules the policy moves. Models without
    such a pool are left out.
    """
    hardware = study.hardware
    modules: dict[str, tuple[Module, ...]] = {}
    for pool in scaled_pools:
        # A policy may split a pool of the study, so look up the pool that it came from.
        model, _, column = hardware.model_region_gpu[ready.source_pools[pool]]
        shape = hardware.models[model].shape
        if shape is not None:
            precision = hardware.sections[model, column].precision
            modules[hardware.models[model].name] = modules_of(shape, precision, TABLE_TOKENS)
    return modules


def _pool_figures(
    study: Study, ready: BuiltPolicy, rule: ModuleScaling, result: Replay, label: str, p: int
) -> PoolModules:
    """Return what the policy ``rule`` did with the modules of pool number ``p``, as figures.

    ``label`` names the arrangement of the pool.
    """
    layout, pool = rule.layouts[p], ready.fleet.pools[p]
    events = [event for event in rule.events if event.pool == p]
    assert layout is not None
    # Where modules were, from one change to the next, and how long in seconds.
    placements = [placement for placement in rule.locations if placement.pool == p]
    times_s = np.array([*(placement.time_s for placement in placements), result.duration_s])
    lasted_s = np.maximum(np.diff(times_s), 0.0)  # by placement

    def mean(values: FloatArray) -> float:
        """Return the mean over time of ``values``, one per placement of the pool."""
        total_s = lasted_s.sum()
        return float(values @ lasted_s / total_s) if total_s > 0 else 0.0

    copies = np.array([placement.copies.sum() for placement in placements])
    borrowed_gpus = np.array([placement.borrowed for placement in placements]) * pool.profile.tp
    mean_copies, mean_borrowed = mean(copies), mean(borrowed_gpus)
    unused = _unused_memory_share(study, ready, result, rule, p, mean_copies, mean_borrowed)
    greedy, exact = layout.plans(pool.profile, PLANNED_AT)
    gap = None  # of the greedy plan to the exact one, as a share of speed
    if exact is not None:
        gap = 1.0 - greedy.speedup / max(exact.speedup, greedy.speedup)
    return PoolModules(
        model=pool.model,
        region=pool.region,
        arrangement=label,
        instances=pool.initial,
        layers=layout.home.size,
        layer_gb=layout.layer_bytes / 1e9,
        operations=len(events),
        copied=sum(event.copied for event in events),
        moved_layers=sum(event.layers for event in events),
        moved_projections=sum(event.projections for event in events),
        moved_caches=sum(event.caches for event in events),
        given_up=sum(event.given_up for event in events),
        offloaded_gb=sum(event.offloaded_bytes for event in events) / 1e9,
        acting_s=sum(min(event.until_s, result.duration_s) - event.time_s for event in events),
        mean_copies=mean_copies,
        most_copies=int(copies.max(initial=0)),
        mean_borrowed_gpus=mean_borrowed,
        most_borrowed_gpus=int(borrowed_gpus.max(initial=0)),
        mean_speed=mean(np.array([placement.speed for placement in placements])),
        kv_tokens=int(layout.tokens(layout.start)),
        most_kv_tokens=int(layout.max_kv_tokens()),
        preemptions=int(result.totals.preemptions[p]),
        unused_memory=unused,
        speedup=greedy.speedup,
        exact_speedup=None if exact is None else exact.speedup,
        gap=gap,
    )


def _unused_memory_share(
    study: Study, ready: BuiltPolicy, result: Replay, rule: ModuleScaling, p: int,
    mean_copies: float, borrowed_gpus: float,
) -> float:  # fmt: skip
    """Return the share of pool ``p``'s GPU memory that holds no weights, copies or KV caches.

    ``mean_copies`` (of layers, per replica) and ``borrowed_gpus`` (of other pools) are means over
    time.
    """
    layout, pool = rule.layouts[p], ready.fleet.pools[p]
    assert layout is not None
    m, _, _ = study.hardware.model_region_gpu[ready.source_pools[p]]
    total_bytes = pool.gpu.memory_bytes * (pool.initial * pool.profile.tp + borrowed_gpus)
    weight_bytes = study.hardware.models[m].weight_bytes * pool.initial
    copied_bytes = mean_copies * layout.layer_bytes * pool.initial
    kv_use = float(np.nanmean(result.series.utilisation[p])) if result.series.ready.size else 0.0
    # Of the caches of a replica, in all layers.
    kv_bytes = layout.tokens(layout.start) * layout.kv_layer_token_bytes * layout.home.size
    cached_bytes = min(kv_use, 1.0) * kv_bytes * pool.initial
    used_bytes = weight_bytes + copied_bytes + cached_bytes
    return float(np.clip(1.0 - used_bytes / total_bytes, 0.0, 1.0))


def _pool_columns(result: Replay, labels: Sequence[str], p: int) -> dict[str, str]:
    """Return the columns that name pool ``p`` in a table."""
    pool = result.fleet.pools[p]
    return {"model": pool.model, "region": pool.region, "arrangement": labels[p]}


def _layout_table(
    study: Study, result: Replay, labels: Sequence[str], rule: ModuleScaling
) -> pl.DataFrame:
    """Return where modules were placed, with one row per change, pool and device.

    A device has the GPUs of one replica, of this pool or (borrowed) of another pool.
    """
    rows = []
    for placement in rule.locations:
        layout = rule.layouts[placement.pool]
        assert layout is not None
        for d in range(layout.room_bytes.size):
            # The pool that a borrowed device belongs to; -1: it is not borrowed.
            host = layout.hosts[d] if layout.hosts else -1
            rows.append(
                {
                    "after_s": placement.time_s,
                    **_pool_columns(result, labels, placement.pool),
                    "device": d,
                    "gpu": result.fleet.pools[host if host >= 0 else placement.pool].gpu.name,
                    "borrowed": host >= 0,
                    "layers": int(placement.parts[d]),
                    "projections": int(placement.projections[d]),
                    "caches": int(placement.caches[d]),
                    "copies": int(placement.copies[d]),
                    "borrowed_instances": placement.borrowed,
                    "speed": placement.speed,
                }
            )
    return _with_times(rows, study)


def _operations(
    study: Study, result: Replay, labels: Sequence[str], events: Sequence[Event]
) -> pl.DataFrame:
    """Return one row per module operation: what was moved, when and where."""
    rows = [
        {
            "after_s": event.time_s,
            **_pool_columns(result, labels, event.pool),
            "what": event.kind,
            "seconds": event.until_s - event.time_s,
            "copied": event.copied,
            "layers": event.layers,
            "projections": event.projections,
            "caches": event.caches,
            "given_up": event.given_up,
            "offloaded_gb": event.offloaded_bytes / 1e9,
        }
        for event in events
    ]
    return _with_times(rows, study)


def _with_times(rows: list[dict[str, object]], study: Study) -> pl.DataFrame:
    """Return rows as a table, with moments in place of seconds since the window's start."""
    table = pl.DataFrame(rows)
    if table.is_empty():
        return table
    when = moments(study.window.start_s, table["after_s"].to_numpy())
    return table.select(when.alias("time"), pl.exclude("after_s"))
