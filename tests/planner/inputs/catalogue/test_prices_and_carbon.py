"""Prices, carbon and its daily cycle: what ships is what the published tables give."""

import csv
import gzip
from statistics import fmean, median

import numpy as np
import pytest

from planner.errors import CatalogueError
from planner.inputs import catalogue
from planner.inputs.catalogue.carbon import HOURS, carbon_by_hour, design, hourly_of_csv
from planner.inputs.catalogue.files import read
from tests.planner.management.calling import answer, problem
from tests.shared_folder import DATA, needs_shared
from tools.catalogue.fit_price_carbon import documents

needs_data = needs_shared(DATA)


def offers_of(provider, region, gpu):
    place = provider, region, gpu
    return [
        offer for offer in catalogue.prices() if (offer.provider, offer.region, offer.gpu) == place
    ]


def rows(path):
    opened = gzip.open if path.endswith(".gz") else open
    with opened(DATA / path, "rt") as file:
        return list(csv.DictReader(file))


@needs_data
def test_what_ships_is_what_the_tables_give():
    again = documents(DATA)
    assert read("prices") == again["prices"]
    ours, theirs = dict(read("carbon")), dict(again["carbon"])
    for zone, cycle in theirs.pop("cycles").items():
        shipped = dict(ours["cycles"][zone])
        assert shipped.pop("coefficients") == pytest.approx(cycle.pop("coefficients"), abs=1e-4)
        assert shipped == pytest.approx(cycle, abs=2e-3)
    ours.pop("cycles")
    assert ours == theirs


@needs_data
def test_a_price_is_the_median_over_days_and_zones():
    """Read here apart from the bench, so that a wrong column cannot hide in both."""
    offers = rows("price/gpu_prices_2026-05.csv.gz")
    for provider, region, gpu, raw, memory in (
        ("aws", "us-east-1", "H100-SXM", "H100", "80"),
        ("gcp", "us-central1", "L4", "L4", "24"),
        ("azure", "eastus", "A100-80GB", "A100", "80"),
        ("lambdalabs", "us-east-1", "H100-SXM", "H100", "80"),
    ):
        (price,) = offers_of(provider, region, gpu)
        for spot, ours in (
            ("False", price.usd_per_gpu_hour),
            ("True", price.spot_usd_per_gpu_hour),
        ):
            listed_usd = [
                float(row["price_per_gpu_hour_usd"])
                for row in offers
                if (row["provider"], row["gpu_type"], row["is_spot"]) == (provider, raw, spot)
                and row["gpu_memory_gb"] == memory
                and (row["region"] == region
                     or (provider == "gcp" and row["region"].rpartition("-")[0] == region))
            ]  # fmt: skip
            assert ours == (pytest.approx(median(listed_usd), abs=1e-4) if listed_usd else None)


def test_no_offer_is_there_twice_and_spot_is_never_dearer():
    offers = catalogue.prices()
    assert len({(p.provider, p.region, p.gpu) for p in offers}) == len(offers) > 500
    for p in offers:  # of clouds; marketplaces may ask more for what can be taken back
        if p.provider in ("aws", "azure", "gcp") and None not in (
            p.usd_per_gpu_hour,
            p.spot_usd_per_gpu_hour,
        ):
            assert p.spot_usd_per_gpu_hour <= p.usd_per_gpu_hour


def test_regions_take_spot_and_further_gpus_from_the_offers():
    region = catalogue.regions()["us-east-1"]
    (offer,) = offers_of("aws", "us-east-1", "H100-SXM")
    assert region.spot_usd_per_gpu_hour["H100-SXM"] == offer.spot_usd_per_gpu_hour
    assert region.sources["spot H100-SXM"].kind == "published"
    assert region.usd_per_gpu_hour["L4"] > 0
    assert len(catalogue.regions()) > 40


def test_grids_by_region_and_country():
    assert catalogue.grid("East US", "azure").carbon_g_per_kwh == 415.755
    assert catalogue.grid("europe-west3").cycle == "DE"
    assert catalogue.grid("ZA").location == "South Africa"
    with pytest.raises(CatalogueError, match="Region 'mars' has no published carbon factor"):
        catalogue.grid("mars")


@pytest.mark.parametrize("zone", ["DE", "FR", "GB"])
def test_a_cycle_has_the_yearly_mean_and_predicts_months_it_has_not_seen(zone):
    values = carbon_by_hour(zone, 300.0)
    assert len(values) == HOURS and min(values) > 0
    assert fmean(values) == pytest.approx(300)
    cycle = read("carbon")["cycles"][zone]
    assert cycle["mape"] < cycle["mape_unseen"] < cycle["mape_constant"]


@needs_data
@pytest.mark.parametrize("zone", ["DE", "FR", "GB"])
def test_a_cycle_is_close_to_the_mean_of_each_hour(zone):
    observed: dict[int, list[float]] = {}
    for row in rows("carbon/grid_carbon_hourly_2020.csv.gz"):
        if row["zone"] == zone and row["hour_start"].startswith("2020"):
            hour = int(row["hour_start"][11:13])
            observed.setdefault(hour, []).append(float(row["g_co2e_per_kwh"]))
    means = [fmean(observed[hour]) for hour in range(HOURS)]
    assert carbon_by_hour(zone, fmean(means)) == pytest.approx(means, rel=0.03)


def test_weekends_and_seasons_differ():
    hours, coefficients = np.arange(HOURS), read("carbon")["cycles"]["DE"]["coefficients"]
    weekday, weekend, in_july = (
        design(hours, np.full(HOURS, weekend), np.full(HOURS, day)) @ coefficients
        for weekend, day in ((0, 15), (1, 15), (0, 196))
    )
    assert weekend.mean() < weekday.mean() and not np.allclose(weekday, in_july)
    with pytest.raises(CatalogueError, match="Grid 'US' has no daily cycle here"):
        carbon_by_hour("US", 300)


def test_an_own_series_becomes_24_means_in_utc():
    lines = ["time,g_per_kwh"]
    for day in (1, 2):
        lines += [f"2024-05-0{day}T{hour:02d}:00:00+02:00,{100 * day + hour}" for hour in range(24)]
    values = hourly_of_csv("\n".join(lines))
    assert values[0] == 150 + 2  # 02:00 there
    assert values[23] == 150 + 1
    with pytest.raises(CatalogueError, match="no value for UTC hour"):
        hourly_of_csv("\n".join(lines[:5]))
    with pytest.raises(CatalogueError, match=r"mine.csv, line 2: expected a time"):
        hourly_of_csv("time,g\nnoon,12", "mine.csv")
    with pytest.raises(CatalogueError, match=r"line 1: -5 g per kWh is not between"):
        hourly_of_csv("2024-05-01T00:00:00,-5")
    with pytest.raises(CatalogueError, match=r"line 1: expected a time"):  # year 0 in UTC
        hourly_of_csv("0001-01-01T00:00:00+14:00,5")
    with pytest.raises(CatalogueError, match=r"line 1 cannot be read as CSV .* with LF or CRLF"):
        hourly_of_csv("time,g\r2024-05-01T00:00:00,5\r")


def test_the_command_gives_what_a_scenario_takes(tmp_path):
    path = tmp_path / "grid.csv"
    hours = [f"2024-05-01T{hour:02d}:00:00Z,{hour}" for hour in range(24)]
    path.write_text("time,g\n" + "\n".join(hours))
    given = answer("carbon", path)
    assert given["carbon_g_per_kwh"] == list(range(24)) and given["mean"] == 11.5
    given = answer("carbon", "DE")
    assert len(given["carbon_g_per_kwh"]) == 24
    assert given["mean"] == pytest.approx(catalogue.grid("DE").carbon_g_per_kwh, abs=0.1)
    assert "no daily cycle" in problem("carbon", "US")
    assert "there is no such file" in problem("carbon", "missing.csv")
    assert "--mean must be" in problem("carbon", "DE", "--mean=-1")
