"""The built-in facts against their sources: shapes, measured rows, price, carbon and PUE tables."""

import csv
import gzip
from pathlib import Path

import numpy as np
import pytest
from ruamel.yaml import YAML

from planner.inputs import catalogue
from planner.inputs.catalogue.files import read
from simulation.performance.memory import MEMORY_SHARE, kv_capacity_tokens
from simulation.performance.profile import measured_range
from simulation.performance.specs import KINDS
from tests.shared_folder import DATA, needs_shared
from tests.simulation.builders import linear_seconds
from tools.catalogue.fit_profiles import as_document, fit_all

ROOT = Path(__file__).parents[4]
FOLDER = ROOT / "planner/inputs/catalogue"

needs_data = needs_shared(DATA)


def shipped(name):
    return YAML(typ="safe").load(FOLDER / f"{name}.yaml")


def rows(path):
    opened = gzip.open if path.endswith(".gz") else open
    with opened(DATA / path, "rt") as file:
        return list(csv.DictReader(file))


def test_every_fact_states_its_source_and_kind():
    regions = catalogue.regions().values()
    facts = [
        *(gpu.provenance for gpu in catalogue.gpus().values()),
        *(model.provenance for model in catalogue.models().values()),
        *(profile.provenance for profile in catalogue.profiles().values()),
        *(
            phase.provenance
            for profile in catalogue.profiles().values()
            for phase in profile.phases
        ),
        catalogue.limits_source(),
        *(source for region in regions for source in region.sources.values()),
        *(region.provenance for region in regions),
    ]
    assert all(fact.kind in KINDS and len(fact.source) > 10 for fact in facts)
    for region in regions:
        spot = {f"spot {gpu}" for gpu in region.spot_usd_per_gpu_hour}
        priced = {*region.usd_per_gpu_hour, *spot}
        assert region.sources.keys() == {"carbon_g_per_kwh", "pue", *priced}
        assert priced


@pytest.mark.parametrize("name", ["carbon", "efficiency", "shapes"])
def test_files_say_what_yaml_1_2_makes_of_them(name):
    """The fast reader is of YAML 1.1 by itself: NO was a boolean, 1e-14 a word."""
    assert repr(read(name)) == repr(shipped(name))


def test_callers_cannot_change_the_catalogue():
    for facts in (catalogue.gpus(), catalogue.models(), catalogue.profiles(), catalogue.regions()):
        assert facts
        with pytest.raises(TypeError):
            facts["new"] = next(iter(facts.values()))


def test_every_profile_fits_in_memory_and_has_its_errors():
    profiles, intervals = catalogue.profiles(), catalogue.intervals()
    assert profiles.keys() == intervals.keys()
    for key, profile in profiles.items():
        model, gpu = catalogue.models()[profile.model], catalogue.gpus()[profile.gpu]
        assert key == (profile.model, profile.gpu, profile.tp)
        assert profile.kv_capacity_tokens == kv_capacity_tokens(model, gpu, profile.tp)
        held = profile.kv_capacity_tokens * model.kv_bytes_per_token + model.weight_bytes
        assert held <= MEMORY_SHARE * profile.tp * gpu.memory_bytes
        assert min(profile.alpha_s, profile.beta_s, profile.gamma_s, profile.delta_s) > 0
        values = {
            "alpha": profile.alpha_s,
            "beta": profile.beta_s,
            "gamma": profile.gamma_s,
            "delta": profile.delta_s,
        }
        for name, (low, high) in intervals[key].items():
            assert 0 <= low <= values[name] <= high
        assert profile.checks
        for phase, names in zip(profile.phases, (("prefill time",), ("TBT",)), strict=True):
            if phase.provenance.kind == "measured":
                assert any(c.quantity.startswith(names) and c.rows for c in profile.checks)
                assert len(intervals[key]) >= 2
        assert 1 < profile.fitted_decodes <= profile.max_batch
        assert measured_range(profile, profile.fitted_decodes, 0, 0, 0)
        assert not measured_range(profile, 0, 0, profile.fitted_prefill_tokens + 1, 0)


def test_a_measured_profile_is_measured_in_both_halves():
    for profile in catalogue.profiles().values():
        both = {phase.provenance.kind for phase in profile.phases} == {"measured"}
        assert (profile.provenance.kind == "measured") == both


@pytest.mark.parametrize("model", ["llama-2-70b", "llama-3.1-8b", "llama-3.1-70b"])
def test_an_h100_is_never_slower_than_an_a100(model):
    profiles = catalogue.profiles()
    both = [tp for m, g, tp in profiles if (m, g) == (model, "H100-SXM")]
    compared = [tp for tp in both if (model, "A100-80GB", tp) in profiles]
    assert compared
    for tp in compared:
        slow, fast = profiles[model, "A100-80GB", tp], profiles[model, "H100-SXM", tp]
        for decodes, tokens in ((1, 0), (32, 0), (0, 2048), (32, 512)):
            assert linear_seconds(fast, decodes, tokens) < linear_seconds(slow, decodes, tokens)


@needs_data
def test_the_shipped_profiles_are_what_the_rows_give():
    def numbers(document):
        return {
            (entry["model"], entry["gpu"], entry["tp"], where, name): value
            for entry in document["profiles"]
            for where, part in [("", entry), *((str(i), c) for i, c in enumerate(entry["checks"]))]
            for name, value in part.items()
            if isinstance(value, float | int)
        }

    ours, again = shipped("profiles"), as_document(fit_all(DATA))
    assert numbers(ours) == pytest.approx(numbers(again), rel=1e-3)
    assert [entry["source"] for entry in ours["profiles"]] == [
        entry["source"] for entry in again["profiles"]
    ]


@needs_data
@pytest.mark.parametrize(
    ("model", "raw"), [("llama-2-70b", "llama2-70b"), ("bloom-176b", "bloom-176b")]
)
@pytest.mark.parametrize(
    ("gpu", "hardware"), [("A100-80GB", "a100-80gb"), ("H100-SXM", "h100-80gb")]
)
def test_a_profile_meets_its_stated_error_on_the_rows(model, raw, gpu, hardware):
    """Read here apart from the fit, so that a wrong unit or column cannot hide in both."""
    profile = catalogue.profiles()[model, gpu, 8]
    stated = {
        (c.quantity, "inside" in c.against): c for c in profile.checks if "fitted" in c.against
    }
    decode, distant, prefill, longer = [], [], [], []
    for row in rows("profiles/splitwise_perf_model.csv"):
        if (row["model"], row["hardware"], row["tensor_parallel"]) != (raw, hardware, "8"):
            continue
        prompt, batch = (int(row[k]) for k in ("prompt_size", "batch_size"))
        error = linear_seconds(profile, batch, 0) / (float(row["token_time"]) / 1000) - 1
        (decode if prompt <= profile.fitted_context else distant).append(error)
        full, rest = divmod(prompt * batch, profile.max_batch_tokens)
        took = full * linear_seconds(profile, 0, profile.max_batch_tokens)
        took += linear_seconds(profile, 0, rest) if rest else 0.0
        error = took / (float(row["prompt_time"]) / 1000) - 1
        (prefill if prompt * batch <= profile.max_batch_tokens else longer).append(error)
    for errors, check in (
        (decode, stated["TBT", True]),
        (distant, stated["TBT", False]),
        (prefill, stated["prefill time", True]),
        (longer, stated["prefill time", False]),
    ):
        assert len(errors) == check.rows
        assert np.abs(errors).mean() == pytest.approx(check.mape, abs=5e-4)
        assert np.median(np.abs(errors)) == pytest.approx(check.median, abs=5e-4)
        assert np.mean(errors) == pytest.approx(check.bias, abs=5e-4)
    assert stated["TBT", True].mape < 0.1
    assert stated["prefill time", True].mape < 0.1


@needs_data
def test_prices_are_those_of_the_data():
    offers = [row for row in rows("price/gpu_prices_2026-05.csv.gz") if row["is_spot"] == "False"]
    raw_types = {"A100-80GB": "A100", "H100-SXM": "H100"}

    def price(provider, gpu, region, memory_gb):
        priced = {
            round(float(row["price_per_gpu_hour_usd"]), 4)
            for row in offers
            if row["provider"] == provider
            and row["gpu_type"] == raw_types[gpu]
            and (
                row["region"] == region
                or (row["region"].startswith(f"{region}-") and provider == "gcp")
            )
            and float(row["gpu_memory_gb"]) == memory_gb
        }
        assert len(priced) == 1, (region, gpu, priced)
        return priced.pop()

    compared = 0
    for entry in shipped("regions")["regions"]:
        region = catalogue.regions()[entry["name"]]
        for gpu in entry["usd_per_gpu_hour"]:
            usd = region.usd_per_gpu_hour[gpu]
            if region.sources[gpu].kind == "modelled":  # 80 GB out of a mean with the 40 GB offer
                mix = price("aws", gpu, region.name, 60)
                expected = 2 * mix - price("aws", gpu, "us-east-2", 40)
            else:
                expected = price(region.provider, gpu, region.name, 80)
            assert usd == pytest.approx(expected, abs=2e-4)
            compared += 1
    assert compared > 14


@needs_data
def test_carbon_and_pue_are_those_of_the_data():
    def plain(name):
        return name.lower().replace(" ", "")

    carbon = {
        (row["provider"], plain(row["region"])): float(row["g_co2e_per_kwh"])
        for row in rows("carbon/cloud_region_grid_factors.csv")
    }
    by_campus = {
        row["region"]: float(row["PUE"])
        for row in rows("carbon/cloud_region_locations_pue.csv")
        if row["provider"] == "gcp" and row["PUE"]
    }
    for region in catalogue.regions().values():
        assert region.carbon_g_per_kwh == carbon[region.provider, region.name]
        if region.provider == "gcp":
            assert region.pue == by_campus.get(region.name, 1.09)  # else the mean of the fleet
        assert 1.0 < region.pue < 1.3


@needs_data
def test_gpu_facts_are_those_of_the_data():
    specs = {row["system"]: row for row in rows("profiles/gpu_specs.csv")}
    power = {row["gpu"]: row for row in rows("power/splitwise_power_model.csv")}
    for name, system, raw in (
        ("A100-80GB", "a100_sxm", "a100-80gb"),
        ("H100-SXM", "h100_sxm", "h100-80gb"),
    ):
        gpu = catalogue.gpus()[name]
        assert gpu.memory_bytes == float(specs[system]["mem_capacity_bytes"])
        if name.startswith("A100"):  # ours of an H100 is measured with a CUDA context
            assert gpu.idle_w == float(power[raw]["idle_w"])
        assert gpu.prefill_w == float(power[raw]["prompt_phase_w"])
        assert gpu.decode_w == float(power[raw]["token_phase_w"])
        assert max(gpu.prefill_w, gpu.decode_w) <= float(specs[system]["power_w"])
