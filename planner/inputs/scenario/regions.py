"""Build the regions of a scenario, and find their GPU prices.

Values come from the scenario, from its price list, or from the built-in region that a region names
in ``like``. ``facts`` collects the source of each value.
"""

from dataclasses import dataclass
from math import inf
from statistics import fmean

from planner.errors import ScenarioError
from planner.inputs import catalogue
from planner.inputs.catalogue.hardware import gpu_known_as
from planner.inputs.catalogue.price_lists import OwnPrice
from planner.inputs.scenario.schema import Region as RegionSection
from planner.inputs.scenario.user_facts import UserFacts
from simulation.fleet import HOURS, Region
from simulation.performance.specs import Provenance

DEFAULT_PUE = 1.2  # if neither the scenario nor the catalogue has one
GIVEN = Provenance("assumed", "scenario")
LISTED = Provenance("assumed", "the scenario's price list")
TERMS = {"one_year": "One-year", "three_years": "Three-year"}
Facts = list[tuple[str, Provenance]]


def region_of(section: RegionSection, facts: Facts) -> Region:
    """Return a region of the simulator: carbon, PUE, electricity price and power limit.

    Adds their sources to ``facts``. Raise ScenarioError if the carbon intensity is not known.
    """
    like = _built_in_region(section)
    carbon, hourly, source = _carbon_of(section, like)
    facts.append((f"Carbon intensity in {section.name}", source))
    if section.carbon_g_per_kwh is None and like is not None and like.cycle is not None:
        facts.append((f"Daily cycle of carbon in {section.name}", catalogue.cycle_source()))
    if section.pue is not None:
        pue, source = section.pue, GIVEN
    elif like is not None:
        pue, source = like.pue, like.sources["pue"]
    else:
        pue, source = DEFAULT_PUE, Provenance("assumed", "no PUE given")
    facts.append((f"PUE in {section.name}", source))
    site_kw = section.power.site_kw if section.power else None
    by_hour = hourly_values(section.electricity_usd_per_kwh)
    if any(by_hour):
        facts.append((f"Price of electricity in {section.name}", GIVEN))
    return Region(section.name, carbon, pue, hourly, site_kw or inf, by_hour)


def _carbon_of(
    section: RegionSection, like: catalogue.CatalogueRegion | None
) -> tuple[float, tuple[float, ...] | None, Provenance]:
    """Return the mean carbon (g/kWh), its values by UTC hour if they are known, and the source."""
    grams = section.carbon_g_per_kwh
    if isinstance(grams, list):
        return fmean(grams), tuple(grams), GIVEN
    if grams is not None:
        return grams, None, GIVEN
    if like is not None:
        return like.carbon_g_per_kwh, like.carbon_hourly, like.sources["carbon_g_per_kwh"]
    raise ScenarioError(
        f"regions: {section.name} has no carbon_g_per_kwh. Give it, or 'like' with one of "
        f"{', '.join(sorted(catalogue.regions()))}."
    )


def hourly_values(value: float | list[float]) -> tuple[float, ...]:
    """Return 24 values by UTC hour; a single value holds in every hour."""
    return tuple(value) if isinstance(value, list) else (value,) * HOURS


def listed_price(section: RegionSection, gpu: str, user_facts: UserFacts) -> OwnPrice | None:
    """Return the entry of the scenario's price list for a GPU type in a region; None without one.

    The list may name the region itself, or else the built-in region in ``like``.
    """
    name = gpu_known_as(gpu)
    for region in (section.name, section.like):
        if region and (price := user_facts.prices.get((region, name))):
            return price
    return None


def price_of(
    section: RegionSection,
    gpu: str,
    facts: Facts,
    user_facts: UserFacts,
    *,
    spot: bool = False,
) -> tuple[float, ...]:
    """Return USD per hour of one GPU by UTC hour (24 values), on demand or as ``spot``.

    The price is that of the region, else that of the price list, else that of the built-in region.
    It is 0 if the region has no such GPUs. Adds the source to ``facts``. Raise ScenarioError if
    there is no price.
    """
    name, like = gpu_known_as(gpu), _built_in_region(section)
    listed = listed_price(section, gpu, user_facts)
    if spot and gpu not in section.spot:
        return hourly_values(0.0)
    if spot:
        kind, remedy = "spot price", "Add usd_per_gpu_hour to its spot"
        usd_stated = section.spot[gpu].usd_per_gpu_hour
        usd_listed = listed.spot if listed else None
    else:
        kind, remedy = "price", f"Add usd_per_gpu_hour: {{{gpu}: ...}}"
        usd_stated = section.usd_per_gpu_hour.get(gpu)
        usd_listed = listed.on_demand if listed else None
    prices_and_sources = [(usd_stated, GIVEN), (usd_listed, LISTED)]
    usd_built_in = None if like is None else _built_in_price(like, name, spot)
    if like is not None and usd_built_in is not None:
        prices_and_sources.append((usd_built_in, like.sources[f"spot {name}" if spot else name]))
    for price, source in prices_and_sources:
        if price is not None:
            facts.append((f"{kind.capitalize()} of {gpu} in {section.name}", source))
            return hourly_values(price)
    if not spot and not section.capacity.get(gpu):
        return hourly_values(0.0)  # no GPUs to pay for
    regions = catalogue.regions().items()
    priced = sorted(r for r, region in regions if _built_in_price(region, name, spot) is not None)
    like_words = f", or 'like' with one of {', '.join(priced)}" if priced else ""
    raise ScenarioError(f"regions: {section.name} has no {kind} for {gpu}. {remedy}{like_words}.")


def _built_in_price(region: catalogue.CatalogueRegion, gpu: str, spot: bool) -> float | None:
    """Return USD per GPU-hour in a built-in region, on demand or as ``spot``; None if unknown."""
    prices = region.spot_usd_per_gpu_hour if spot else region.usd_per_gpu_hour
    return prices.get(gpu)


@dataclass(frozen=True, slots=True)
class CommittedPrice:
    """The price of a GPU hour under a commitment; it is paid whether the GPU is used or not."""

    region: str
    gpu: str
    term: str  # one_year or three_years
    usd_per_gpu_hour: float


def committed_of(
    section: RegionSection, gpu: str, facts: Facts, user_facts: UserFacts
) -> tuple[CommittedPrice, ...]:
    """Return the committed prices of a GPU type, own or listed; add sources to ``facts``."""
    offer, listed_prices = section.committed.get(gpu), listed_price(section, gpu, user_facts)
    prices = []
    for term in TERMS:
        price = None if offer is None else getattr(offer, term)
        source = GIVEN
        if price is None and listed_prices is not None:
            price, source = getattr(listed_prices, term), LISTED
        if price is not None:
            facts.append((f"{TERMS[term]} price of {gpu} in {section.name}", source))
            prices.append(CommittedPrice(section.name, gpu, term, price))
    return tuple(prices)


def _built_in_region(section: RegionSection) -> catalogue.CatalogueRegion | None:
    """Return the built-in region in ``like``, None if empty; raise ScenarioError if unknown."""
    if not section.like:
        return None
    built_in = catalogue.regions()
    if section.like not in built_in:
        raise ScenarioError(
            f"regions: region {section.like!r} is not built in. Give it in full, or use one of "
            f"{', '.join(sorted(built_in))}."
        )
    return built_in[section.like]
