"""Check drawn days on less than two days of history: do they contain the busiest hour that follows?

    python -m bench.short_history [--json]

From random times in public series of whole services, and of single clients of ServeGen. Of 200
drawn days, ``peak_50`` and ``peak_90`` are the shares of cases whose busiest hour is at most that
of the 50% and the 90% day. The goals are 0.5 and 0.9. The series did not choose the constants of
the prior, except for the clients of ``m-large`` and ``m-mid`` (docs/forecasting.md).
"""

import argparse
import json
from collections import defaultdict

import numpy as np
import polars as pl

from bench.forecast import HOUR_S, TRACES, public
from forecasting.arrays import FloatArray
from forecasting.demand import Panel
from forecasting.joint_paths import joint_paths
from forecasting.panel_forecaster import PanelForecaster

HISTORY_H = (16, 20, 24, 30, 36, 42)
WINDOW_H = (8, 24)
LARGEST = 8  # clients of each model
CASES = {"total": 10, "client": 3}  # random times by series, history and window
LEAST_PER_HOUR = 120.0  # requests; a series with fewer is noise


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")
    args = parser.parse_args()
    figures = measure()
    if args.json:
        print(json.dumps(figures))
        return
    for name, row in figures.items():
        print(f"{name:12}", ", ".join(f"{key} {value:.2f}" for key, value in row.items()))


def measure() -> dict[str, dict[str, float]]:
    """Return figures by kind of series and window, such as "total 24 h"."""
    rng = np.random.default_rng(5)
    shares = defaultdict(list)
    series = {"total": [*public().values()], "client": clients()}
    for kind, its in series.items():
        for values, bin_s in its:
            per_hour = round(HOUR_S / bin_s)
            for history in HISTORY_H:
                for window in WINDOW_H:
                    last = len(values) - (history + window) * per_hour
                    for start in rng.integers(0, last, CASES[kind]).tolist():
                        share = case(values[start:], bin_s, history * per_hour, window * per_hour)
                        if share is not None:
                            shares[f"{kind} {window} h"].append(share)
    return {
        name: {
            "cases": len(its),
            "peak_50": float(np.mean(np.array(its) <= 0.5)),
            "peak_90": float(np.mean(np.array(its) <= 0.9)),
        }
        for name, its in shares.items()
    }


def clients() -> list[tuple[FloatArray, float]]:
    """Return the requests per bin of the largest clients of two models of ServeGen."""
    out = []
    for model in ("m-large", "m-mid"):
        rates = pl.read_parquet(TRACES / f"servegen_{model}_clients_10min.parquet")
        table = rates.pivot(on="client", index="t_s", values="rate_rps").sort("t_s").fill_null(0.0)
        columns = [table[name].to_numpy() for name in table.columns[1:]]
        columns.sort(key=lambda column: -float(column.sum()))
        out += [(600.0 * column, 600.0) for column in columns[:LARGEST]]
    return out


def case(values: FloatArray, bin_s: float, history: int, window: int) -> float | None:
    """Return the share of drawn days whose busiest hour is below the one that came.

    ``values`` are the ``history`` bins, and the ``window`` bins that follow. None for gaps.
    """
    known, came = values[:history], values[history : history + window]
    hour = round(HOUR_S / bin_s)
    if np.isnan(came).any() or np.isnan(known).mean() > 0.2:
        return None
    if np.nanmean(known) * hour < LEAST_PER_HOUR:
        return None
    forecast = PanelForecaster("auto", hour).fit(Panel(0.0, bin_s, known[None])).predict(window)
    drawn = busiest_hour(joint_paths(forecast, 200, seed=1)[:, 0], hour)
    return float((drawn < busiest_hour(came[None], hour)).mean())


def busiest_hour(amounts: FloatArray, hour: int) -> FloatArray:
    """Return the largest sum of ``hour`` bins in a row, of each row."""
    total = np.cumsum(np.pad(amounts, ((0, 0), (1, 0))), axis=1)
    return np.asarray((total[:, hour:] - total[:, :-hour]).max(axis=1))


if __name__ == "__main__":
    main()
