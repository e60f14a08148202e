"""Write planner/inputs/catalogue/prices.yaml and carbon.yaml from the published tables.

    python -m tools.catalogue.fit_price_carbon [--data DIR] [--check]

A price is a median over daily snapshots and over the zones of a region. Each provider has one per
GPU type, on demand and spot. Carbon has the published yearly factors of cloud regions and
countries. It also has the daily, weekly and yearly cycle of three grids, as coefficients of a
harmonic regression with its error on months left out. No measured row is written.
"""

import argparse
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from ruamel.yaml import YAML

from planner.inputs.catalogue.carbon import design
from simulation.arrays import FloatArray

ROOT = Path(__file__).parents[2]
DATA = ROOT / "../shared/data"
FOLDER = ROOT / "planner/inputs/catalogue"

# Map GPU type and memory (GB) of the data set to ours. Other memory sizes are a mean over sizes or
# a slice of a GPU, and are left out. An H100 without a form factor counts as SXM.
GPUS = {
    ("A10", 24): "A10", ("A100", 80): "A100-80GB", ("A100", 40): "A100-40GB",
    ("A10G", 22): "A10G", ("A40", 48): "A40", ("A6000", 48): "RTX-A6000", ("B200", 180): "B200",
    ("B300", 262): "B300", ("B300SXM6AC", 269): "B300", ("GB200", 189): "GB200",
    ("GH200", 96): "GH200", ("H100", 80): "H100-SXM", ("H100NVL", 94): "H100-NVL",
    ("H200", 141): "H200", ("H200NVL", 141): "H200-NVL", ("H200NVL", 143): "H200-NVL",
    ("L4", 24): "L4", ("L40S", 44): "L40S", ("L40S", 48): "L40S", ("RTX3090", 24): "RTX-3090",
    ("RTX4090", 24): "RTX-4090", ("RTXPRO6000", 96): "RTX-PRO-6000",
    ("RTXPRO6000S", 96): "RTX-PRO-6000", ("RTXPRO6000WS", 96): "RTX-PRO-6000",
}  # fmt: skip
ZONE = re.compile(r"^([a-z]+-[a-z]+\d+)-\w+$")  # Google lists zones, such as us-east4-c


def prices(data: Path) -> dict[str, Any]:
    """Return prices.yaml: [on demand, spot] in USD per GPU-hour, by provider, GPU and region."""
    offers = pl.read_csv(data / "price/gpu_prices_2026-05.csv.gz")
    usd_by_spot: dict[tuple[str, str, str], dict[bool, list[float]]] = {}
    for row in offers.iter_rows(named=True):
        gpu = GPUS.get((row["gpu_type"], row["gpu_memory_gb"]))
        if gpu is None:
            continue
        zone = ZONE.match(row["region"]) if row["provider"] == "gcp" else None
        region = zone.group(1) if zone else row["region"]
        usd = usd_by_spot.setdefault((row["provider"], gpu, region), {False: [], True: []})
        usd[row["is_spot"]].append(row["price_per_gpu_hour_usd"])
    entries: dict[tuple[str, str], dict[str, list[float | None]]] = {}
    for (provider, gpu, region), usd in sorted(usd_by_spot.items()):
        on_demand, spot = _median(usd[False]), _median(usd[True])
        if on_demand is not None and spot is not None and spot > on_demand:
            spot = None  # no planner would pay it: an error, or a price that should attract nobody
        entries.setdefault((provider, gpu), {})[region] = [on_demand, spot]
    dates = offers["snapshot_date"].unique().sort()
    return {
        "source": "gpu-prices data set by afhubbard (CC-BY 4.0) in fnstggl/energy2 @ 2d7bc9a, "
        f"median over the snapshots of {dates[0]} to {dates[-1]} and over the zones of a region",
        "first_day": dates[0],
        "last_day": dates[-1],
        "offers": [
            {"provider": provider, "gpu": gpu, "usd_per_gpu_hour": regions}
            for (provider, gpu), regions in entries.items()
        ],
    }


def _median(usd: list[float]) -> float | None:
    """Return the median price; None if there is no offer."""
    return round(float(np.median(np.array(usd))), 4) if usd else None


def carbon(data: Path) -> dict[str, Any]:
    """Return carbon.yaml: factors of regions and countries in g CO2e/kWh, and cycles of grids."""
    return {
        "sources": {
            "regions": "Yearly grid factor, about 2020 to 2022; "
            "cloud-carbon-coefficients @ dda7621",
            "countries": "Yearly mean, years differ by country; Green Algorithms (CC-BY 4.0), "
            "green-algorithms-tool CI_aggregated.csv @ 30df2fe",
            "cycles": "Cycle fitted to hourly ENTSO-E data of 2020 from dos-group/lets-wait-awhile "
            "@ 5e0d155 (Wiesner et al., Middleware 2021); time zone not stated, taken as UTC",
        },
        "regions": _regions(data),
        "countries": _countries(data),
        "cycles": {zone: _cycle(rows) for zone, rows in _series(data)},
    }


def _regions(data: Path) -> dict[str, Any]:
    """Return [location, g/kWh, source] by provider and region."""
    table = pl.read_csv(data / "carbon/cloud_region_grid_factors.csv")
    factors: dict[str, Any] = {}
    for row in table.iter_rows(named=True):
        name = row["region"].lower().replace(" ", "")
        factor = [row["location"], row["g_co2e_per_kwh"], row["source"]]
        factors.setdefault(row["provider"], {})[name] = factor
    return factors


def _countries(data: Path) -> dict[str, Any]:
    """Return [name, g/kWh] by code of a country or of a part of one."""
    table = pl.read_csv(data / "carbon/country_carbon_intensity.csv")
    grids = {}
    for row in table.iter_rows(named=True):
        parts = [row["countryName"], row["regionName"]]
        grids[row["location"]] = [
            ", ".join(part for part in parts if part and part != "Any") or "World",
            row["g_co2e_per_kwh"],
        ]
    return grids


def _series(data: Path) -> list[tuple[str, pl.DataFrame]]:
    """Return the hourly carbon intensity of 2020 of each grid zone."""
    table = pl.read_csv(data / "carbon/grid_carbon_hourly_2020.csv.gz").with_columns(
        pl.col("hour_start").str.to_datetime("%Y-%m-%d %H:%M")
    )
    year = table.filter(pl.col("hour_start").dt.year() == 2020)
    return [(str(zone[0]), rows) for zone, rows in sorted(year.group_by("zone"))]


def _cycle(rows: pl.DataFrame) -> dict[str, Any]:
    """Return the cycle of g/kWh relative to the yearly mean, and its errors.

    ``mape_unseen`` scores each month with a fit to the others, ``mape_constant`` the mean alone.
    """
    hours = rows["hour_start"]
    x = design(
        hours.dt.hour().to_numpy(),
        hours.dt.weekday().to_numpy() >= 6,
        hours.dt.ordinal_day().to_numpy(),
    )
    grams = rows["g_co2e_per_kwh"].to_numpy().astype(np.float64)
    mean = float(grams.mean())
    y = grams / mean
    months = hours.dt.month().to_numpy()
    unseen = np.empty_like(y)
    for month in range(1, 13):
        left_out = months == month
        unseen[left_out] = x[left_out] @ _fit(x[~left_out], y[~left_out])
    coefficients = _fit(x, y)
    fitted = x @ coefficients
    unexplained = float(((y - fitted) ** 2).sum() / ((y - 1) ** 2).sum())
    return {
        "mean_g_per_kwh": round(mean, 1),
        "rows": len(y),
        "r2": round(1 - unexplained, 3),
        "mape": round(float(np.abs(fitted / y - 1).mean()), 3),
        "mape_unseen": round(float(np.abs(unseen / y - 1).mean()), 3),
        "mape_constant": round(float(np.abs(1 / y - 1).mean()), 3),
        "coefficients": [round(float(coefficient), 5) for coefficient in coefficients],
    }


def _fit(x: FloatArray, y: FloatArray) -> FloatArray:
    """Return the least-squares coefficients of ``y`` on the columns of ``x``."""
    return np.asarray(np.linalg.lstsq(x, y, rcond=None)[0])


def documents(data: Path) -> dict[str, Any]:
    """Return the content of both files by name."""
    return {"prices": prices(data), "carbon": carbon(data)}


def _write(name: str, document: Any) -> None:
    yaml = YAML(typ="safe", pure=True)
    yaml.width = 100
    yaml.default_flow_style = None  # innermost collections on one line
    yaml.sort_base_mapping_type_on_output = False  # type: ignore[assignment]  # keep our order
    with (FOLDER / f"{name}.yaml").open("w") as file:
        file.write("# Written by tools/catalogue/fit_price_carbon.py; write again, do not edit.\n")
        yaml.dump(document, file)


def main() -> int:
    parser = argparse.ArgumentParser(prog="tools.catalogue.fit_price_carbon", description=__doc__)
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--check", action="store_true", help="write nothing, compare")
    options = parser.parse_args()
    if not options.data.is_dir():
        print(f"There is no data folder {options.data}: give --data DIR.", file=sys.stderr)
        return 2
    by_file = documents(options.data)
    for zone, cycle in by_file["carbon"]["cycles"].items():
        print(zone, {key: value for key, value in cycle.items() if key != "coefficients"})
    offers = by_file["prices"]["offers"]
    print(
        len(offers),
        "providers and GPUs,",
        sum(len(offer["usd_per_gpu_hour"]) for offer in offers),
        "regions",
    )
    same: bool = True
    for name, document in by_file.items():
        if options.check:
            path = FOLDER / f"{name}.yaml"
            shipped: Any = YAML(typ="safe").load(path.read_text())
            equal = bool(shipped == document)
            print(f"{path.name} is {'what' if equal else 'NOT what'} the data give.")
            same = same and equal
        else:
            _write(name, document)
    return 0 if same else 1


if __name__ == "__main__":
    sys.exit(main())
