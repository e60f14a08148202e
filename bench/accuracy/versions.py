"""Whether an engine's version says something of deployments of other models.

Part of ``python -m bench.accuracy silicon``: of rows that were surely not measured with speculative
decoding, each with its model left out of the fit. ``version_level_*``: the rows of a model, GPU
type, precision and mode at a version that was measured on other models too are moved by the mean of
what those are off by at that version, shrunk as one more group at nothing would; ``_without`` is
the same rows as they were. ``version_trend_*``: the rank correlation of the version with what
groups of one engine are off by, of the engine where it is strongest, and ``_p`` its chance.
"""

import re
from typing import Any

import numpy as np
from scipy.stats import spearmanr

from tools.catalogue.fit_estimate import PredictedSeconds, distinct_rows
from tools.catalogue.served_models import ServedRows

TIMES = {"tpot": "tbt", "ttft": "ttft"}
FEWEST = 4  # groups of an engine that a trend is looked for in


def figures(rows: ServedRows, unseen: PredictedSeconds) -> dict[str, float]:
    """Return the errors with and without a correction for the engine's version.

    ``unseen`` has predictions of ``rows``, each by a fit without the row's model.
    """
    kept = distinct_rows(rows)
    kept = kept[
        rows.silicon[kept] & ~rows.unsure[kept] & ~np.char.endswith(rows.version[kept], "?")
    ]
    part = rows.take(kept)
    shifts: dict[str, float] = {}
    for figure, name in TIMES.items():
        measured = getattr(part, f"{name}_s")
        off = np.log(measured / getattr(unseen, f"{name}_s")[kept])
        groups = _groups(part, off)
        moved, plain = _errors_by_correction(groups)
        shifts[f"version_level_{figure}"] = float(np.median(moved))
        shifts[f"version_level_{figure}_without"] = float(np.median(plain))
        trends = [_trend(groups, engine) for engine in np.unique(part.engine)]
        trend, chance = min((t for t in trends if t), key=lambda pair: pair[1])
        shifts |= {f"version_trend_{figure}": trend, f"version_trend_{figure}_p": chance}
    return shifts


Groups = dict[tuple[str, str, str], Any]  # by deployment, version and model: what rows are off by


def _groups(rows: ServedRows, off: Any) -> Groups:
    names = list(
        zip(
            rows.traits.labels["deployment"], rows.version, rows.traits.labels["model"], strict=True
        )
    )
    which = {name: [i for i, other in enumerate(names) if other == name] for name in set(names)}
    return {name: off[rows_of] for name, rows_of in sorted(which.items())}


def _errors_by_correction(groups: Groups) -> tuple[Any, Any]:
    """Return the errors of groups whose engine version was measured on other models.

    The first are corrected by the errors of those models, the second are not.
    """
    moved, plain = [], []
    for (_, version, model), off in groups.items():
        others = [np.median(o) for (_, v, m), o in groups.items() if v == version and m != model]
        if others:
            moved.append(np.abs(np.expm1(sum(others) / (len(others) + 1) - off)))
            plain.append(np.abs(np.expm1(-off)))
    return np.concatenate(moved), np.concatenate(plain)


def _trend(groups: Groups, engine: str) -> tuple[float, float] | None:
    of_engine = {n: off for n, off in groups.items() if re.match(rf"{engine} \d+\.\d+", n[1])}
    if len(of_engine) < FEWEST:
        return None
    order = [tuple(int(part) for part in re.findall(r"\d+", n[1])[:3]) for n in of_engine]
    ranks = [sorted(set(order)).index(version) for version in order]
    rho, chance = spearmanr(ranks, [np.median(off) for off in of_engine.values()])
    return float(rho), float(chance)
