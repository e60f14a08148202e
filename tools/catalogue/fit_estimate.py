"""Fit the calibration of estimates and write planner/inputs/catalogue/estimate.yaml.

    python -m tools.catalogue.fit_estimate [--data DIR] [--check]

The loss is robust: soft L1 of logarithms with width 0.2, and bounded for measurements that no
parameter explains. A prior pulls each value towards the assumed one. Factors on kernels are not
fitted: cross-validation by model and by GPU type gets worse with them, since five models cannot
determine twenty factors.

Rows that repeat a measurement count once. A group of rows (model, GPU, mode, engine, precision)
counts by the square root of its size, so that the most measured model does not dominate. Rows that
may hide speculative decoding say little about the time of an iteration, so they weigh less.
ML.ENERGY's rows add 20 models to the fit of TBT. Their hosts are slow, so they weigh less too.
Errors are those of aiconfigurator's rows.
"""

import argparse
import sys
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from scipy.optimize import least_squares

from simulation.arrays import FloatArray
from simulation.performance.estimate.calibration import ENGINES, Calibration, ErrorTable
from simulation.performance.estimate.closed_loop import SteadyState, steady_state
from simulation.performance.estimate.measured_corrections import Traits
from tools.catalogue.error_table import cell_selectors, distant_table, error_table
from tools.catalogue.fit_likeness import LIKENESS, distance_quantiles, fit_likeness
from tools.catalogue.served_models import ServedRows, served_rows

ROOT = Path(__file__).parents[2]
DATA = ROOT / "../shared/data"
TARGET = ROOT / "planner/inputs/catalogue/estimate.yaml"

Rows = npt.NDArray[np.int64]

# Day on which aiconfigurator first published the rows: the age of the data on engine versions.
PUBLISHED = "2026-05-06"
# Weight of a row that may hide speculative decoding, and of ML.ENERGY's rows. There the host limits
# small models: Qwen3-8B decodes 8 sequences on B200 in 32 ms, and on H100 in 10 ms.
UNSURE = 0.1
FOLDS = 6  # groups of engine versions for cross-validation
WIDTH = 0.2  # width of the loss: smaller errors count by their square, larger ones by their size
FARTHEST = 0.7  # size of a log error of TBT beyond which it pulls hardly more
# The same for TTFT. Runs that include loading, and runs that keep all users in step, differ from
# the rest by factors. A mean of both would be right for neither.
TTFT_FARTHEST = 0.4
TTFT_ONLY = ("start_s", "start", "order", "gather", "polls", "train",
             "split_order", "split_start")  # fmt: skip
# Distance in logarithms from the assumed value that costs as much as one row.
FREEDOM = 0.5
FREEDOMS = {
    "unpacked": 0.3, "scaled": 0.3, "iteration_s": 0.3, "far_s": 0.7, "mix": 0.1,
    "split_decode": 0.15, "split_order": 0.5, "split_start": 0.5,
    "start_s": 0.7, "eager_s": 1.0, "order": 0.2, "gather": 0.7, "polls": 0.3, "train": 0.7,
    "sequence_s": 0.7, "acceptance": 0.15,
    "draft_s": 0.7,
    **{f"mix.{engine}": 0.1 for engine in ENGINES},
    **{f"start.{engine}": 0.3 for engine in ENGINES},
    **{f"order.{engine}": 0.2 for engine in ENGINES},
}  # fmt: skip


def weights(rows: ServedRows) -> FloatArray:
    """Return the weight of each row in the loss, with mean 1.

    A group of 10 rows or more weighs as the square root of its size.
    """
    groups = list(
        zip(rows.shape, rows.gpu, rows.loop.disaggregated, rows.engine, rows.precision, strict=True)
    )
    sizes = Counter(groups)
    weight = np.where(rows.unsure | (rows.source == "ML.ENERGY"), UNSURE, 1.0)
    weight /= np.sqrt(np.maximum([sizes[group] for group in groups], 10.0))
    return np.asarray(weight / weight.mean())


def fit(rows: ServedRows) -> Calibration:
    """Return the calibration that fits ``rows``: first the values of TBT, then those of TTFT only.

    Two steps keep an unexplained wait from distorting the time of an iteration.
    """
    distinct = rows.take(distinct_rows(rows))
    return _fit_ttft(distinct, _fit_tbt(distinct))


def distinct_rows(rows: ServedRows) -> Rows:
    """Return the index of one row for each measurement, which sources may list several times."""
    figures = np.column_stack([rows.tbt_s, np.nan_to_num(rows.ttft_s), rows.users])
    return np.sort(np.unique(figures.round(9), axis=0, return_index=True)[1])


def _fit_tbt(rows: ServedRows) -> Calibration:
    """Return the assumed calibration with fitted values of all that changes TBT."""

    def log_errors(calibration: Calibration) -> FloatArray:
        return np.log(per_token_s(rows, steady_state(rows.loop, calibration)) / rows.tbt_s)

    base = Calibration()
    names = [name for name in base.values() if not _is_ttft_only(name)]
    return _fit_values(base, names, np.sqrt(weights(rows)), log_errors, FARTHEST)


def _fit_values(
    base: Calibration,
    names: list[str],
    scale: FloatArray,
    log_errors: Callable[[Calibration], FloatArray],
    farthest: float,
) -> Calibration:
    """Return ``base`` with the values of ``names`` that minimise the loss.

    The loss has two parts: the bounded log errors of rows times ``scale``, and how far the
    logarithms of the values move from those of ``base``, in units of FREEDOMS.
    """
    start = np.log([base.values()[name] for name in names])
    freedom = np.array([FREEDOMS.get(name, FREEDOM) for name in names])

    def residuals(logs: FloatArray) -> FloatArray:
        of_rows = scale * bound_errors(log_errors(with_log_values(base, names, logs)), farthest)
        return np.concatenate([of_rows, (logs - start) / freedom])

    optimum = least_squares(residuals, start, loss="soft_l1", f_scale=WIDTH, max_nfev=40)
    return with_log_values(base, names, optimum.x)


def per_token_s(rows: ServedRows, steady: SteadyState) -> FloatArray:
    """Return the seconds per output token of a request; a peak counts all the time of its users."""
    return np.where(rows.peak, rows.users / steady.tokens_per_s, steady.tbt_s)


def bound_errors(log_errors: FloatArray, farthest: float) -> FloatArray:
    """Bound errors, so that a broken measurement does not dominate the fit."""
    return np.asarray(farthest * np.tanh(log_errors / farthest))


def _fit_ttft(rows: ServedRows, base: Calibration) -> Calibration:
    """Return ``base`` with fitted values of what changes TTFT only, from rows with a TTFT."""
    rows = rows.take(np.flatnonzero(~np.isnan(rows.ttft_s)))

    def log_errors(calibration: Calibration) -> FloatArray:
        return np.log(steady_state(rows.loop, calibration).ttft_s / rows.ttft_s)

    names = [name for name in base.values() if _is_ttft_only(name)]
    return _fit_values(base, names, np.sqrt(weights(rows)), log_errors, TTFT_FARTHEST)


def _is_ttft_only(name: str) -> bool:
    """Return whether a value, perhaps of one engine ("start.vllm"), changes TTFT only."""
    return name.split(".")[0] in TTFT_ONLY


def with_log_values(base: Calibration, names: list[str], logs: FloatArray) -> Calibration:
    """Return ``base`` with new values of ``names``, given as their logarithms."""
    return base.with_values(
        {name: float(value) for name, value in zip(names, np.exp(logs), strict=True)}
    )


Fitter = Callable[[ServedRows], Calibration]


@dataclass(frozen=True, slots=True, eq=False)
class PredictedSeconds:
    """Seconds predicted for rows that the fit has not seen."""

    tbt_s: FloatArray
    ttft_s: FloatArray


Splits = Mapping[str, tuple[Rows, Rows]]  # rows that a fit sees, and rows that it predicts, by name


def predict_unseen(rows: ServedRows, splits: Splits, fitter: Fitter) -> PredictedSeconds:
    """Predict the unseen rows of each split from a fit to its seen rows; other rows are NaN."""
    tbt, ttft = np.full(rows.size, np.nan), np.full(rows.size, np.nan)
    for seen, unseen in splits.values():
        calibration = fitter(rows.take(seen))
        steady = steady_state(rows.take(unseen).loop, calibration)
        tbt[unseen], ttft[unseen] = per_token_s(rows.take(unseen), steady), steady.ttft_s
    return PredictedSeconds(tbt, ttft)


def without_model(rows: ServedRows) -> Splits:
    """Split so that the fit does not see the model of the scored rows."""
    return _leave_out(rows.shape)


def without_gpu(rows: ServedRows) -> Splits:
    """Split so that the fit does not see the GPU type of the scored rows."""
    return _leave_out(rows.gpu)


def splits_by_model_and_gpu(rows: ServedRows) -> Splits:
    """Return splits whose fit sees neither the model nor the GPU type of the scored rows."""
    splits = {}
    for shape in np.unique(rows.shape):
        for gpu in np.unique(rows.gpu[rows.shape == shape]):
            same_shape, same_gpu = rows.shape == shape, rows.gpu == gpu
            seen = np.flatnonzero(~same_shape & ~same_gpu)
            splits[f"{shape} on {gpu}"] = (seen, np.flatnonzero(same_shape & same_gpu))
    return splits


def without_vendor(rows: ServedRows) -> Splits:
    """Split so that the fit sees no GPU of the vendors of the scored rows."""
    return {"foreign": (np.flatnonzero(~rows.foreign), np.flatnonzero(rows.foreign))}


def without_version(rows: ServedRows) -> Splits:
    """Split by engine version: each group leaves out one of FOLDS parts of the versions."""
    known = np.unique(rows.version[rows.silicon])
    fold = {name: str(i % FOLDS) for i, name in enumerate(known)}
    return _of_silicon(rows, np.array([fold.get(name, "") for name in rows.version]))


def without_source(rows: ServedRows) -> Splits:
    """Split so that the fit does not see the source of the scored rows."""
    return _of_silicon(rows, rows.source)


def _of_silicon(rows: ServedRows, labels: npt.NDArray[np.str_]) -> Splits:
    """Leave out one label at a time, of served deployments only; a fit sees all other rows."""
    splits = _leave_out(np.where(rows.silicon, labels, ""))
    return {name: split for name, split in splits.items() if name}


def _leave_out(labels: npt.NDArray[np.str_]) -> Splits:
    """Split so that the rows of one label at a time are unseen."""
    return {
        str(label): (np.flatnonzero(labels != label), np.flatnonzero(labels == label))
        for label in np.unique(labels)
    }


BASES = {
    "seen": None,
    "version": without_version,
    "source": without_source,
    "model": without_model,
    "gpu": without_gpu,
    "both": splits_by_model_and_gpu,
    "vendor": without_vendor,
}

NATIVE = tuple(basis for basis in BASES if basis != "vendor")  # of GPUs with measured kernels


def predictions(rows: ServedRows, fitter: Fitter) -> dict[str, PredictedSeconds]:
    """Predict the served rows for each basis, which says what the fit has seen.

    With the model left out, all rows are predicted.
    """
    every = np.arange(rows.size)
    by_basis = {}
    for basis, split in BASES.items():
        splits = split(rows) if split else {"all": (every, every)}
        wanted = rows.silicon | (basis == "model")
        with_wanted = {
            name: (seen, unseen) for name, (seen, unseen) in splits.items() if wanted[unseen].any()
        }
        by_basis[basis] = predict_unseen(rows, with_wanted, fitter)
    return by_basis


def errors(rows: ServedRows, predicted: Mapping[str, PredictedSeconds]) -> dict[str, ErrorTable]:
    """Return the errors of the served rows for each basis."""
    tables = {basis: table_of(rows, predicted[basis], rows_to_score(rows)) for basis in NATIVE}
    foreign = np.flatnonzero(rows.silicon & rows.foreign)
    tables["vendor_gpu"] = table_of(rows, predicted["gpu"], foreign)
    tbt, ttft = (
        np.log(getattr(predicted["vendor"], name) / getattr(rows, name))[foreign]
        for name in ("tbt_s", "ttft_s")
    )
    tables["vendor"] = distant_table(tbt, ttft, rows.gpu[foreign])
    return tables


def rows_to_score(rows: ServedRows) -> Rows:
    """Return the served rows on NVIDIA's GPUs; other vendors have errors of their own."""
    return np.flatnonzero(rows.silicon & ~rows.foreign)


def table_of(rows: ServedRows, predicted: PredictedSeconds, kept: Rows) -> ErrorTable:
    """Return the error table of the rows ``kept``."""
    part = rows.take(kept)
    return error_table(
        cell_selectors(part.loop.disaggregated, part.users, part.engine, part.speculative),
        np.abs(predicted.tbt_s[kept] / part.tbt_s - 1.0),
        np.abs(predicted.ttft_s[kept] / part.ttft_s - 1.0),
        groups=np.char.add(
            np.char.add(part.traits.labels["deployment"], " "), part.traits.labels["version"]
        ),
    )


def log_errors_by_quantity(
    rows: ServedRows, predicted: PredictedSeconds
) -> dict[str, tuple[Traits, FloatArray]]:
    """Return traits and ln(measured / predicted) of served rows, for TBT and for TTFT.

    Each measurement counts once.
    """
    kept = distinct_rows(rows)
    kept = kept[rows.silicon[kept] & ~rows.foreign[kept]]
    part = rows.take(kept)
    return {
        name: (
            part.traits,
            np.log(getattr(part, f"{name}_s") / getattr(predicted, f"{name}_s")[kept]),
        )
        for name in ("tbt", "ttft")
    }


def _likeness_lines(rows: ServedRows, predicted: PredictedSeconds) -> list[str]:
    """Return the YAML lines on how similar the errors of similar deployments are."""
    lines = ["likeness:"]
    for name, (traits, log_errors) in log_errors_by_quantity(rows, predicted).items():
        likeness = fit_likeness(traits, log_errors)
        spreads = distance_quantiles(likeness, traits, log_errors)
        parts = ", ".join(f"{key}: {getattr(likeness, key):.4g}" for key in LIKENESS)
        lines += [f"  {name}:", f"    parts: {{{parts}}}"]
        for share in ("half", "nine"):
            agg, disagg = getattr(spreads, share)
            lines.append(f"    {share}: [{agg:.4g}, {disagg:.4g}]")
    return lines


def document(rows: ServedRows) -> str:
    """Return the text of ``estimate.yaml``."""
    silicon = rows.silicon
    shown = [
        "# Written by tools/catalogue/fit_estimate.py: how serving differs from kernels run alone",
        "# (explained in simulation/performance/estimate/calibration.py), the errors of half and",
        "# of nine in ten by what the fit that was scored had not seen, mode, load and engine",
        "# (simulation/performance/estimate/errors.py), and what was measured.",
        "source: >-",
        f"  {silicon.sum()} served deployments of aiconfigurator silicon_sample.csv @ 095f58a",
        "  (Apache-2.0) and SemiAnalysis InferenceX of DeepSeek-R1, 2025-10 to 2026-06; TBT also",
        f"  to {(~silicon).sum()} runs of ML.ENERGY's leaderboard @ 0cd52da and of NVIDIA's",
        "  TensorRT-LLM performance overview",
        f"published: {PUBLISHED}",
        f"models: [{', '.join(sorted(set(rows.known[silicon])))}]",
        f"gpus: [{', '.join(sorted(set(rows.gpu[silicon])))}]",
        "versions:",
        *(f"  - {name}" for name in sorted(set(rows.version[silicon])) if "?" not in name),
        "ranges:",
        *(
            f"  {name}: [{values.min():g}, {values.max():g}]"
            for name, values in (
                ("isl", rows.loop.isl[silicon]),
                ("osl", rows.loop.osl[silicon]),
                ("concurrency", rows.users[silicon]),
            )
        ),
        "errors:",
    ]
    predicted = predictions(rows, fit)
    for basis, table in errors(rows, predicted).items():
        shown.append(f"  {basis}:")
        for key, cell in table.cells.items():
            line = ", ".join(f"{name}: {value:.4g}" for name, value in asdict(cell).items())
            shown.append(f"    {key}: {{{line}}}")
    shown.append("values:")
    shown += [f"  {name}: {value:.4g}" for name, value in fit(rows).values().items()]
    shown += _likeness_lines(rows, predicted["model"])
    return "\n".join(shown) + "\n"


def main(arguments: list[str] | None = None) -> int:
    """Fit and write the calibration; with --check compare it, and return 1 if it differs."""
    parser = argparse.ArgumentParser(description="Fit the calibration of estimates.")
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--check", action="store_true", help="compare with the file instead")
    options = parser.parse_args(arguments)
    text = document(served_rows(options.data))
    print(text)
    if options.check:
        return int(text != TARGET.read_text(encoding="utf-8"))
    TARGET.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
