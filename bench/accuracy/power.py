"""Power by load against measurements that the fit did not see.

``power_mape``: ML.ENERGY's 838 rows, every model left out with its re-releases and precisions (18
groups), mean absolute error of watts per GPU. Inputs are the GPU type, the model's shape, its
arrangement, the mean batch, output length, and the measured iteration time (batch over output
throughput): power given that the performance profile is right. Input lengths are not in the rows:
published for text, one fitted number per task for code, images and video.

``power_mape_planned`` takes the iteration time of an uncalibrated roofline profile instead, so that
nothing measured on the model goes in. ``power_mape_by_name`` leaves out one ``model_id`` at a time
and keeps its relatives.
"""

from pathlib import Path
from typing import Any

import numpy as np

from simulation.arrays import FloatArray
from simulation.performance.power import Load, share_of_tdp
from tools.catalogue.power_fit import decodes_left_out, fit, predict_left_out_groups, predict_power
from tools.catalogue.power_rows import TASKS, Names, PowerRows, inferencex, mlenergy, splitwise

Decodes = tuple[Names, Load, FloatArray]


def summary(prefix: str, error: FloatArray) -> dict[str, Any]:
    size = np.abs(error)
    return {
        prefix: float(size.mean()),
        f"{prefix}_median": float(np.median(size)),
        f"{prefix}_p95": float(np.quantile(size, 0.95)),
        f"{prefix}_bias": float(error.mean()),
        f"{prefix}_rows": int(error.size),
    }


def parts(rows: PowerRows, error: FloatArray) -> dict[str, dict[str, float]]:
    """Return the MAPE by task, GPU type, kind of model and family."""
    size, routed = np.abs(error), rows.loads.experts[:, 0] > 0
    kinds = np.where(routed, "mixture of experts, ", "dense, ")
    kinds = np.char.add(kinds, rows.weights)
    by = {
        "task": np.array(TASKS)[rows.task],
        "gpu": rows.gpu,
        "kind": kinds,
        "family": rows.family,
    }
    return {
        f"power_mape_by_{name}": {
            str(key): float(size[keys == key].mean()) for key in np.unique(keys)
        }
        for name, keys in by.items()
    }


def gpu_left_out(rows: PowerRows) -> dict[str, float]:
    """Return the error of each GPU type with the parameters of the other, as a share of TDP."""
    result = {}
    for gpu in np.unique(rows.gpu):
        members = rows.gpu == gpu
        fit_without = fit(rows, ~members)
        ((_, model),) = fit_without.models.items()
        share = predict_power({str(gpu): model}, fit_without.input_tokens, rows)[members]
        result[str(gpu)] = float(np.abs(share / rows.share[members] - 1.0).mean())
    return result


def decodes(rows: PowerRows, name: str, read: Decodes) -> dict[str, Any]:
    """Return the errors of decodes on another GPU type.

    The first are by the mean of the two fitted GPU types. The second are by parameters fitted on
    this type with one group (an arrangement, or lengths) left out.
    """
    groups, loads, share = read
    default = fit(rows, np.ones(len(rows.share), bool)).default
    unseen = share_of_tdp(default, loads) / share - 1.0
    fitted = decodes_left_out(default, groups, loads, share) / share - 1.0
    return {
        **summary(f"power_{name}_default_mape", unseen),
        **summary(f"power_{name}_mape", fitted),
    }


def figures(data: Path) -> dict[str, Any]:
    rows = mlenergy(data, planned=True)
    share, blind = predict_left_out_groups(rows, rows.family, planned=True)
    error = share / rows.share - 1.0
    by_name, _ = predict_left_out_groups(rows, rows.model)
    return {
        "power_error": float(np.abs(error).mean()),
        **summary("power_mape", error),
        "power_mape_by_name": float(np.abs(by_name / rows.share - 1.0).mean()),
        **summary("power_mape_planned", blind / rows.share - 1.0),
        **parts(rows, error),
        "power_mape_gpu_left_out": gpu_left_out(rows),
        **decodes(rows, "a100", splitwise(data)),
        **decodes(rows, "mi355x", inferencex(data)),
    }
