"""The headline figures of each source: theirs, and ours from the project's own experiments."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from bench.experiments import heteroscale as heteroscale_day
from bench.experiments import sageserve as sageserve_day
from bench.experiments.heteroscale_workloads import SOURCES
from bench.plan import REFERENCE, load_instance
from planner.optimizer import solve_window

POWER = Path(__file__).parents[2] / "../shared/data/power/mlenergy_llm_inference.csv"
SAGESERVE, FULL_SAGESERVE = 0.5, 1.33  # of Azure's arrivals; the second has ten million requests
LT = {"lt-i": ("lt_i", 0.2421), "lt-u": ("lt_u", 0.1965), "lt-ua": ("lt_ua", 0.2338)}


def row(source: Any, ours: Any, where: str, command: str) -> dict[str, Any]:
    """Return a figure of a source beside ours."""
    return {"source": source, "ours": _rounded(ours), "where": where, "command": command}


def _rounded(value: Any) -> Any:
    return round(float(value), 4) if isinstance(value, int | float | np.floating) else value


def solver() -> dict[str, Any]:
    """SageServe, section 5: seconds of its program, here in PuLP and on HiGHS."""
    out = {}
    for size, theirs in (("4x3x1", 1.41), ("20x20x5", 33.0)):
        most = 0.0
        for path in sorted(REFERENCE.glob(f"{size}_*.npz")):
            plan = solve_window(load_instance(path), method="pulp", gap=1e-3)
            most = max(most, plan.build_seconds + plan.solve_seconds)
        out[f"sageserve_solver_{size}_seconds"] = row(theirs, most, "section 5", "bin/bench plan")
    return out


def variants() -> dict[str, Any]:
    """WVA publishes no figure. Its law: inter-token latency is linear in the batch size."""
    table = pl.read_csv(POWER)
    names = ("task", "model_id", "gpu_model", "num_gpus", "weight_precision", "tensor_parallel")
    shares = []
    for _, runs in table.group_by(names):
        batch, itl = runs["avg_batch_size"].to_numpy(), runs["median_itl_ms"].to_numpy()
        if len(np.unique(batch)) >= 4:
            shares.append(float(np.corrcoef(batch, itl)[0, 1]) ** 2)
    where = "README, linear fit: strong, no number"
    command = "bin/bench sources --only variants"
    return {
        "wva_itl_linear_r2_median": row(None, np.median(shares), where, command),
        "wva_itl_linear_r2_tenth": row(None, np.quantile(shares, 0.1), where, command),
    }


def heteroscale(full: bool) -> dict[str, Any]:
    """HeteroScale, section 4.3: a diurnal day of dialogue, arrivals as in the raw trace."""
    with tempfile.TemporaryDirectory() as folder:
        source = SOURCES["dialogue"]
        workload = source.read(Path(folder), source.scale)
        found = heteroscale_day.run(
            Path(folder), workload, [] if full else ["policies"], quick=False
        )
    days, where = found["policies"], "section 4.3, figure 7"
    command = "bin/bench experiments heteroscale"
    theirs = heteroscale_day.THEIRS["saved"]
    best = max(its["saved"] for its in days.values() if its["attainment"] >= 0.95)
    use = {name: its["prefill-gpu"] for name, its in days.items()}
    return {
        "heteroscale_saving": row(theirs, days["heteroscale"]["saved"], where, command),
        "heteroscale_decode_tps_saving": row(theirs, days["decode-tps"]["saved"], where, command),
        "heteroscale_best_saving_within_slo": row(theirs, best, where, command),
        "heteroscale_most_any_policy_saves": row(
            None, found["most_saved"], "1 - mean over peak of the raw trace", command
        ),
        "heteroscale_peak_over_trough": row(None, found["peak_over_trough"], where, command),
        "heteroscale_prefill_gpu_use_gain": row(
            0.762 - 0.468, use["decode-tps"] - use["flat"], where, command
        ),
    }


def sageserve(full: bool) -> dict[str, Any]:
    """SageServe, section 7.2: a peak day; with ``full`` four models, ten million requests too."""
    scale, out = FULL_SAGESERVE if full else SAGESERVE, {}
    parts = ["strategies", "bursts", "schedulers", *(["mix", "a100", "fleet"] if full else [])]
    with tempfile.TemporaryDirectory() as folder:
        found = sageserve_day.run(Path(folder), scale, parts)
    command = f"bin/bench experiments sageserve --scale {scale:g}"
    days, bursts = found["strategies"], found["bursts"]

    def saved(of: dict[str, Any], name: str, than: str, what: str = "instance_hours") -> float:
        return float(1 - of[name][what] / of[than][what])

    for name, (key, theirs) in LT.items():
        ours = saved(days, name, "reactive")
        out[f"sageserve_{key}_saving"] = row(theirs, ours, "section 7.2.1", command)
        late = bursts[name]["violations"]["IW-F"]
        out[f"sageserve_{key}_late_in_bursts"] = row(None, late, "figure 16a", command)
    out["sageserve_defers_best"] = defers_best(found["fleet"] if full else days)
    out["sageserve_pooling_saving"] = row(
        0.345, saved(days, "reactive", "siloed"), "section 4, figure 8", command
    )
    out["sageserve_start_saving"] = row(
        0.70, saved(days, "lt-ua", "reactive", "wasted_hours"), "section 7.2.4", command
    )
    for name, both in sageserve_day.THEIR_VIOLATIONS.items():
        for tier, theirs in zip(("IW-F", "IW-N"), both, strict=True):
            ours = found["schedulers"][name]["violations"][tier]
            key = f"sageserve_{name}_{tier.replace('-', '_').lower()}_late"
            out[key] = row(theirs, ours, "section 7.2.6", command)
    if full:
        for name, theirs in (("9:1", 0.263), ("1:1", 0.22)):
            ours = found["mix"][name]["saved"]
            out[f"sageserve_mix_{name}_saving"] = row(
                theirs, ours, "section 7.2, ablation", command
            )
        ours = found["a100"]["saved"]
        out["sageserve_a100_saving"] = row(0.282, ours, "section 7.2, ablation", command)
        for name, (key, theirs) in LT.items():
            ours = saved(found["fleet"], name, "reactive", "gpu_hours")
            out[f"sageserve_four_models_{key}_saving"] = row(theirs, ours, "abstract", command)
    return out


def defers_best(days: dict[str, Any]) -> dict[str, Any]:
    """Return which of LT-I, LT-U and LT-UA takes the fewest GPU-hours, by how much, and why."""
    hours = {name: days[name]["gpu_hours"] for name in LT}
    by_hours = sorted(hours, key=hours.__getitem__)
    wait_s = {name: days[name]["ttft_p95_s"]["NIW"] for name in LT}
    gap = round(hours[by_hours[-1]] / hours[by_hours[0]] - 1, 4)
    why = f"the dearest takes {hours[by_hours[-1]] - hours[by_hours[0]]:.1f} GPU-hours more"
    if hours["lt-u"] > hours["lt-i"]:
        why += ": scale-in that waits for low utilization keeps replicas that the plan removes"
    if hours["lt-ua"] == hours["lt-u"]:
        why += "; LT-UA equals LT-U: no load was 5 times or half of its forecast when it looked"
    return {
        **row("lt-i", by_hours[0], "section 7.2.1", "bin/bench sources --full --only sageserve"),
        "gpu_hours": hours,
        "dearest_over_best": gap,
        "niw_p95_wait_s": wait_s,
        "why": why,
    }


def modules(full: bool) -> dict[str, Any]:
    """CoCoServe, section 6: LLaMA-13B on four A100 of 40 GB."""
    from bench.modules.study import study
    from bench.provision import modules as cases

    plans = cases.DEPLOYMENTS["llama-13b"]
    rates = cases.RATES if full else (30.0, 50.0)
    outcomes = {
        (its.deployment, its.rate): its for its in study(cases.setting("llama-13b"), plans, rates)
    }
    command = "bin/bench provision"

    def of(begin: str, rate: float) -> Any:
        return next(
            its for (name, at), its in outcomes.items() if name.startswith(begin) and at == rate
        )

    low, high = (of("2 elastic, copies and caches", rate) for rate in (30.0, 50.0))
    two, four = "2 instances", "4 instances"
    low_static, high_static = of(two, 30.0), of(two, 50.0)
    unpaged = "2 instances, no paging", "2 elastic, copies and caches, no paging"
    return {
        "modules_latency_change_low": row(
            -0.1423, low.latency_s / low_static.latency_s - 1, "section 6.3", command
        ),
        "modules_latency_change_high": row(
            -0.2748, high.latency_s / high_static.latency_s - 1, "section 6.3", command
        ),
        "modules_throughput_change_high": row(
            0.3878, high.tokens_s / high_static.tokens_s - 1, "section 6.3", command
        ),
        "modules_memory_over_four_static": row(
            0.5354, high.memory_bytes / of(four, 50.0).memory_bytes, "section 6.3", command
        ),
        "modules_throughput_below_four_static": row(
            0.1394, 1 - high.tokens_s / of(four, 50.0).tokens_s, "section 6.3", command
        ),
        "modules_lost_static": row(0.34, of(unpaged[0], 50.0).oom_share, "figure 11a", command),
        "modules_lost_elastic": row(0.02, of(unpaged[1], 50.0).oom_share, "figure 11a", command),
        "modules_gpu_saving": row(
            0.46, 1 - high.gpus / of(four, 50.0).gpus, "abstract: cost", command
        ),
    }


def operators(full: bool) -> dict[str, Any]:
    """The operator source, abstract: by the means of queues as it plans, and by requests."""
    from bench.provision import by_requests, replays, savings

    command = "bin/bench provision"
    lengths, rates = savings.by_length(), savings.throughput()
    rows = replays.table(replays.RATES if full else ())
    judged = [its for its in rows if its.model_gpus]

    def most(measure: str) -> float:
        return max(float(str(its[measure])) for its in lengths if measure in its)

    return {
        "operators_gpu_saving_by_means": row(0.40, most("gpus"), "abstract", command),
        "operators_energy_saving_by_means": row(0.35, most("energy"), "abstract", command),
        "operators_gpu_saving_by_requests": row(
            0.40, max(its.gpus for its in judged), "abstract", command
        ),
        "operators_energy_saving_by_requests": row(
            0.35, max(its.energy for its in judged), "abstract", command
        ),
        "operators_throughput_by_means": row(
            1.6, max(float(str(its["ratio"])) for its in rates), "abstract", command
        ),
        **{
            key: row(theirs, ours, where, "bin/bench sources --only operators")
            for key, (theirs, ours, where) in by_requests.everything().items()
        },
    }
