"""Price lists of one's own: what a file says, and every way in which it can be wrong."""

import pytest

from planner.errors import CatalogueError, ScenarioError
from planner.inputs.catalogue.price_lists import OwnPrice, read_price_list
from planner.inputs.scenario.build import build_hardware
from planner.inputs.scenario.document import parse
from planner.inputs.scenario.user_facts import UserFacts
from planner.services.imports import read_description
from tests.planner.domain import builders as make

HEAD = "region,gpu,on_demand_usd,spot_usd,one_year_usd,three_years_usd\n"


def test_csv_and_yaml_say_the_same() -> None:
    csv = (HEAD + "east,h100,3.5,,2.1,1.4\nwest,G,2,0.5,,\n").encode()
    yaml = b"""prices:
  - {region: east, gpu: h100, on_demand_usd: 3.5, one_year_usd: 2.1, three_years_usd: 1.4}
  - {region: west, gpu: G, on_demand_usd: 2, spot_usd: 0.5}
"""
    rows = read_price_list(csv, "a.csv")
    assert rows == read_price_list(yaml, "a.yml")
    assert rows[0] == OwnPrice("east", "H100-SXM", "", 3.5, None, 2.1, 1.4)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("region,gpu,usd\n", "line 1: 'usd' is not known"),
        ("region,gpu\reast,G\r", "line 1 cannot be read as CSV .* with LF or CRLF line ends"),
        ("region,on_demand_usd\n", "line 1: gpu missing"),
        ("region,gpu\neast,G\n", "line 1: no price"),
        (HEAD + "east,G,abc,,,\n", "line 2: on_demand_usd must be a number from 0"),
        (HEAD + "east,G,-1,,,\n", "line 2: on_demand_usd must be"),
        (HEAD + "east,G,nan,,,\n", "line 2: on_demand_usd must be"),
        (HEAD + "east,G,,,,\n", "line 2: no price. Give one of"),
        (HEAD + ",G,1,,,\n", "line 2: region is empty"),
        (HEAD + "east,G,1,,,,9\n", "line 2: more values"),
        (HEAD + "east,G,1,,,\neast,G,2,,,\n", "line 3: G in east is listed twice"),
        (HEAD, "has no price"),
    ],
)
def test_a_file_that_is_wrong_says_where(text: str, words: str) -> None:
    with pytest.raises(CatalogueError, match=words):
        read_price_list(text.encode(), "a.csv")


@pytest.mark.parametrize("text", ["? [{a: 1}]\n: 1\n", "prices: 2024-13-01\n", "a: !!int x\n"])
def test_yaml_that_its_reader_cannot_build_is_a_sentence(text: str) -> None:
    """Found by the fuzzer: a key that is a list of mappings came to a traceback, everywhere."""
    with pytest.raises(CatalogueError, match=r"a\.yml: not valid YAML"):
        read_price_list(text.encode(), "a.yml")
    with pytest.raises(CatalogueError, match=r"a\.yml: not valid YAML"):
        read_description(text.encode(), "a.yml")
    with pytest.raises(ScenarioError, match="not valid YAML"):
        parse(text)


def test_aliases_that_expand_to_billions_of_values_are_refused() -> None:
    bomb = "a: &a [1, 1, 1, 1, 1, 1, 1, 1]\n" + "".join(
        f"{name}: &{name} [{', '.join([f'*{before}'] * 8)}]\n"
        for before, name in zip("abcdefgh", "bcdefghi", strict=True)
    )
    with pytest.raises(CatalogueError, match="values"):
        read_price_list(f"{bomb}prices: *i\n".encode(), "a.yml")


def test_a_region_takes_the_lists_prices_before_built_in_and_after_its_own() -> None:
    """There were only list prices of clouds, or a price typed into every scenario."""
    rows = [OwnPrice("east", "G", "", 1.5, 0.4, 0.9), OwnPrice("us-east-1", "G", "", 7.0)]
    known = UserFacts(prices={(row.region, row.gpu): row for row in rows})
    east = {"name": "east", "capacity": {"G": 8}, "carbon_g_per_kwh": 1, "pue": 1.1,
            "spot": {"G": {"capacity": 8}}}  # fmt: skip
    like = {"name": "other", "like": "us-east-1", "capacity": {"G": 8}}
    region = {**make.WEST, "committed": {"G": {"one_year": 2.5}}}
    sources = [make.source(regions={"east": 1})]
    scenario = make.scenario(regions=[east, like, region], traffic__sources=sources)
    hardware = build_hardware(scenario, known, spot=True)
    assert hardware.usd_per_gpu_hour[:, 0].tolist() == [1.5, 7.0, 3.0]
    assert hardware.usd_per_gpu_hour[0, 1] == 0.4
    terms = {(offer.region, offer.term): offer.usd_per_gpu_hour for offer in hardware.committed}
    assert terms == {("east", "one_year"): 0.9, ("west", "one_year"): 2.5}
    assert dict(hardware.provenance)["Price of G in east"].source == "the scenario's price list"
