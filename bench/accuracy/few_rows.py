"""A few measured rows of a deployment, and how well the rest of its rows is then predicted.

Part of ``python -m bench.accuracy silicon``. A group is a model on a GPU type by an engine in a
precision and a mode. From each, a few distinct measurements are drawn at random, several times; the
rest of the group is predicted from them (``estimate.measured_corrections``). Neither the
estimates nor how alike their errors are had seen the model: both are fitted without it. Groups with
fewer rows than are drawn are left out. ``one_row_*``, ``five_rows_*`` and ``ten_rows_*`` are by the
rows drawn. ``five_rows_tpot`` and ``five_rows_ttft`` are medians over all predictions,
``*_before`` of the same rows without any measurement, ``five_rows_coverage`` the shares within the
stated median and 9-of-10; ``five_rows_worse`` is the share of groups that came out worse than
before, and ``five_rows_clearly_worse`` of those that did so in more draws than chance would have it
(a sign test of draws, at 5%).
"""

import sys
from dataclasses import dataclass
from typing import Any

import numpy as np

from simulation.arrays import FloatArray, IntArray
from simulation.performance.estimate.measured_corrections import (
    ErrorCovariance,
    ErrorQuantiles,
    Traits,
)
from tools.catalogue.fit_estimate import PredictedSeconds, log_errors_by_quantity
from tools.catalogue.fit_likeness import (
    MORE_DRAWS,
    Errors,
    clearly_worse,
    distance_quantiles,
    errors_of,
    fit_likeness,
    from_few,
    is_worse,
)
from tools.catalogue.served_models import ServedRows

COUNTS = {"one_row": 1, "five_rows": 5, "ten_rows": 10}
TIMES = {"tpot": "tbt", "ttft": "ttft"}


def figures(rows: ServedRows, unseen: PredictedSeconds) -> dict[str, Any]:
    """Return the errors of estimates that are corrected by a few rows of the user.

    ``unseen`` has predictions of ``rows``, each by a fit without the row's model.
    """
    measures: dict[str, Any] = {}
    both = log_errors_by_quantity(rows, unseen)
    for figure, name in TIMES.items():
        traits, off = both[name]
        fits = _without_model(traits, off)
        for count, few in COUNTS.items():
            measures |= _figures(count, figure, fits, off, few)
    return measures


@dataclass(frozen=True, slots=True, eq=False)
class FitWithoutModel:
    """The covariance of errors by a fit that has not seen the model of ``part``."""

    part: Traits
    mine: IntArray  # rows of it
    likeness: ErrorCovariance
    told: ErrorQuantiles


def _without_model(traits: Traits, off: FloatArray) -> list[FitWithoutModel]:
    models, fits = traits.labels["model"], []
    for model in np.unique(models):
        seen, members = np.flatnonzero(models != model), np.flatnonzero(models == model)
        likeness = fit_likeness(traits.take(seen), off[seen])
        spreads = distance_quantiles(likeness, traits.take(seen), off[seen])
        fits.append(FitWithoutModel(traits.take(members), members, likeness, spreads))
    return fits


def _figures(
    name: str, figure: str, fits: list[FitWithoutModel], off: FloatArray, few: int
) -> dict[str, Any]:
    before, after, inside, worse, clearly = [], [], [], [], []
    for fit in fits:
        part, part_off = fit.part, off[fit.mine]
        groups: dict[str, list[Errors]] = {}
        for draw in from_few(fit.likeness, part, part_off, few, MORE_DRAWS):
            errors = errors_of(part_off[draw.row], draw.shift)
            groups.setdefault(str(part.labels["deployment"][draw.row[0]]), []).append(errors)
            half, nine = fit.told.errors(part.split[draw.row], draw.spread)
            inside.append(np.column_stack([errors[1] <= half, errors[1] <= nine]))
        for name_of, drawn in groups.items():
            was, is_now = (np.concatenate(side) for side in zip(*drawn, strict=True))
            before.append(was)
            after.append(is_now)
            worse.append(is_worse(drawn))
            clearly.append(clearly_worse(drawn))
            print(
                f"{name} {figure} {name_of:<60} {np.median(was):8.1%}{np.median(is_now):8.1%}",
                file=sys.stderr,
            )
    shares = np.concatenate(inside).mean(axis=0)
    return {
        f"{name}_{figure}": float(np.median(np.concatenate(after))),
        f"{name}_{figure}_before": float(np.median(np.concatenate(before))),
        f"{name}_{figure}_coverage": float(shares[0]),
        f"{name}_{figure}_coverage_90": float(shares[1]),
        f"{name}_{figure}_worse": float(np.mean(worse)),
        f"{name}_{figure}_clearly_worse": float(np.mean(clearly)),
        f"{name}_{figure}_groups": len(worse),
    }
