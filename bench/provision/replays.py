"""Savings with requests having the last word: the table of Azure and Mooncake conversations again.

Every cell is planned and judged as a run of ``provision`` does it: requests of the trace's lengths
come like Poisson's at the rate, in two draws, and of each level the fewest GPUs with which 95% of
them keep the limit are taken; a finer level is taken only where requests confirm it and it is worse
in nothing. ``GPUs`` are of whole replicas, of runs of layers and of operators.
"""

import sys
from dataclasses import asdict, dataclass

import numpy as np

from bench.provision.savings import MEASURES, SEED
from bench.provision.services import DATA, GPUS, LIMITS, MODELS, PHASES, trace
from planner.domain.provisioning.levels import Judge, Measurements, Rules, solve_levels
from planner.inputs.catalogue import hardware
from simulation.provisioning.level import savings
from simulation.provisioning.levels import LEVELS
from simulation.provisioning.workload import PhaseLoad
from tools.catalogue.operator_checks import aic_kernels

RATES = (20.0, 80.0)  # beside the trace's own
ATTAINMENT, SAMPLE = 0.95, 4000
RULES = Rules(LEVELS, proofs=False)


@dataclass(frozen=True, slots=True)
class Row:
    """One service; GPUs and attainment by level, 0 where none keeps the limit. ``finer``: which
    level is better than whole replicas, "" where none is."""

    trace: str
    model: str
    gpu: str
    phase: str
    rate: float
    model_gpus: int = 0
    module_gpus: int = 0
    operator_gpus: int = 0
    attainment: float = 0.0
    finer: str = ""
    gpus: float = 0.0
    energy: float = 0.0
    memory: float = 0.0


def table(rates: tuple[float, ...] = RATES) -> list[Row]:
    rows = []
    for name, limits in LIMITS.items():
        requests = trace(name)
        picked = np.random.default_rng(3).choice(requests.isl.size, SAMPLE)
        isl, osl = (x[picked].astype(np.int64) for x in (requests.isl, requests.osl))
        for gpu in GPUS:
            measured = Measurements(aic_kernels(DATA, gpu))
            for model in MODELS:
                for phase in PHASES:
                    for rate in (requests.rate, *rates):
                        load = PhaseLoad(
                            hardware.shape(model), hardware.gpu(gpu), phase, rate,
                            float(isl.mean()), float(osl.mean()), limits[phase],
                        )  # fmt: skip
                        judge = Judge(isl, np.maximum(osl, 2), ATTAINMENT, 1)
                        _, levels = solve_levels(load, "bf16", RULES, measured, judge)
                        kept = {
                            key: its for key, its in levels.items()
                            if its.replayed is not None and its.replayed.attainment >= ATTAINMENT
                        }  # fmt: skip
                        figures: dict[str, object] = {}
                        if "model" in kept:
                            whole_model = kept["model"]
                            fine = kept.get("operator", kept.get("module", whole_model))
                            better = [
                                key for key in ("operator", "module")
                                if key in kept and not kept[key].method.startswith("as ")
                            ]  # fmt: skip
                            assert whole_model.replayed is not None
                            figures = {
                                "attainment": whole_model.replayed.attainment,
                                "finer": better[0] if better else "",
                                **asdict(savings(whole_model, fine)),
                                **{f"{key}_gpus": level.devices for key, level in kept.items()},
                            }
                        rows.append(Row(name, model, gpu, phase, rate, **figures))  # type: ignore[arg-type]
                        print(rows[-1], file=sys.stderr, flush=True)
    return rows


def claims(rows: list[Row]) -> dict[str, dict[str, object]]:
    """Return the source's figures, and the means of ours."""
    out: dict[str, dict[str, object]] = {}
    for (name, phase), theirs in SEED.items():
        cells = [r for r in rows if (r.trace, r.phase) == (name, phase) and r.model_gpus]
        out[f"{name} {phase}"] = {
            "source_at_most": theirs,
            "ours": [float(np.mean([getattr(r, m) for r in cells])) if cells else None
                     for m in MEASURES],
            "cells": len(cells),
            "cells_where_a_finer_level_is_better": sum(bool(r.finer) for r in cells),
        }  # fmt: skip
    return out


def everything() -> dict[str, object]:
    rows = table()
    return {"replayed": [asdict(row) for row in rows], "replayed_claims": claims(rows)}


if __name__ == "__main__":
    print(claims(table()))
