"""One of HeteroScale's services in the words of a scenario, and what runs at its start."""

import json
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from bench.experiments.heteroscale_workloads import Workload
from planner.domain.outcome import Inputs
from planner.domain.pd.ratio_search import judge_ratios
from planner.domain.pd.service_pools import PairColumns, strictest_split
from planner.domain.preparation import study_of
from planner.domain.progress import silent
from planner.domain.study import Study
from planner.inputs.scenario.document import parse
from simulation.arrays import FloatArray, IntArray
from simulation.fleet import Fleet
from simulation.sizing.pd_simulation import no_report
from simulation.sizing.pool import curve_capacity, fewest_instances

GPU, TP = "H20", 8
TTFT_MS, TBT_MS = 1000, 40  # service A, section 4.1
UNIT = 16  # instances that the ratio is found for: nodes in section 4.1
QUOTA = 2.0  # GPUs there are, over the flat fleet's
STEP_S = 300.0  # of what is correlated and drawn


@dataclass(frozen=True, slots=True, eq=False)
class Service:
    """The day to replay, its P/D ratio and the flat fleet for its peak, [prefill, decode]."""

    workload: Workload
    study: Study
    ratio: float
    flat: IntArray
    theta_tps: FloatArray  # input tokens/s of an instance of the flat fleet, C(n) / n, as above


def service(workload: Workload, hours: tuple[float, float], like: Service | None = None) -> Service:
    """Return the service on some hours of a day, with a static fleet for its peak.

    The peak is its own or that of ``like``. The product computes sizes, ratio and fleet.
    """
    if like is None:
        study = _study(workload, hours)
        columns, lengths = roles(study), study.traffic.lengths[0]
        pair, _ = strictest_split(study.hardware, 0, PairColumns(*columns), lengths, UNIT)
        pairs = judge_ratios(pair, study.hardware.routing, UNIT, 1, no_report)
        curves = [study.sizes.pool_tps[0, g] for g in columns]
        peak = float(load_of(study, study.window.bin_s).max())
        flat = np.array([fewest_instances(curve, peak) for curve in curves], np.int64)
        theta = np.array([
            curve_capacity(curve, int(n)) / n for curve, n in zip(curves, flat, strict=True)
        ])  # fmt: skip
        ratio = pairs.best.ratio.prefill / pairs.best.ratio.decode
        like = Service(workload, study, ratio, flat, theta)
    return replace(like, workload=workload, study=_study(workload, hours, like.flat))


def _study(workload: Workload, hours: tuple[float, float], flat: IntArray | None = None) -> Study:
    text = json.dumps(scenario(workload, hours, flat))
    return study_of(Inputs(parse(text), {"t": workload.stored}), silent)


def scenario(
    workload: Workload, hours: tuple[float, float], flat: IntArray | None = None
) -> dict[str, Any]:
    """Return the service as a scenario.

    Today's fleet is ``flat`` [prefill, decode], among ``QUOTA`` times its GPUs.
    """
    model = workload.model
    quota = 200 * TP if flat is None else int(np.ceil(QUOTA * flat.sum())) * TP
    today = [] if flat is None else [
        {"model": model, "region": "one", "gpu": GPU, "role": role, "replicas": int(count)}
        for role, count in zip(("prefill", "decode"), flat, strict=True)
    ]  # fmt: skip
    profile = {"model": model, "gpu": GPU, "tp": TP, "kind": "roofline", "precision": "fp8"}
    return {
        "version": 1,
        "name": f"HeteroScale's {workload.name} service",
        "seed": 1,
        "models": [model],
        "profiles": [
            profile | {"role": role, "max_batch": 1024, "max_batch_tokens": 8192}
            for role in ("prefill", "decode")
        ],
        "regions": [
            {
                "name": "one",
                "capacity": {GPU: quota},
                "usd_per_gpu_hour": {GPU: 1.0},  # of one GPU type: it decides nothing
                "carbon_g_per_kwh": 0,
                "pue": 1,
            }
        ],
        "tiers": [{"name": "chat", "ttft_ms": TTFT_MS, "tbt_ms": TBT_MS}],
        "traffic": {
            "bin_s": workload.bin_s,
            "sources": [
                {
                    "trace": "t",
                    "series": workload.series,
                    "model": model,
                    "regions": {"one": 1.0},
                    "tiers": {"chat": 1.0},
                    "scale": workload.scale,
                    **workload.lengths,
                }
            ],
        },
        "fleet": {"startup_s": 600, "minimum": 1, "today": today},
        "horizon": {
            "start": workload.moment(hours[0]),
            "duration_s": 3600 * (hours[1] - hours[0]),
            "period_s": 3600,
        },
        "policies": ["flat-peak"],
    }


def load_of(study: Study, step_s: float) -> FloatArray:
    """Return the input tokens/s that arrive, by ``step_s``."""
    bins = round(study.window.duration_s / step_s)
    bin_of = (study.trace.arrival_s // step_s).astype(int)
    return np.bincount(bin_of, study.trace.input_tokens, bins)[:bins] / step_s


def roles(study: Study) -> tuple[int, int]:
    roles = [column.role for column in study.hardware.columns]
    return roles.index("prefill"), roles.index("decode")


def pools_of(fleet: Fleet) -> tuple[int, int]:
    """Return the indices of the prefill and the decode pool."""
    roles = [pool.role for pool in fleet.pools]
    return roles.index("prefill"), roles.index("decode")


def pool_of_signal(served: Service, signal: str) -> int:
    """Return the index of the pool that a signal is read from."""
    return pools_of(served.study.hardware.fleet(served.study.today))[
        0 if signal.startswith("prefill") else 1
    ]
