"""List the settings that a what-if can change, and apply new values to a scenario.

An address is the place of a value in a scenario, such as "tiers[chat].ttft_ms". A variation is a
mapping from addresses to new values.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from math import prod
from typing import Any

from pydantic import ValidationError

from planner.domain.formats import key_words
from planner.errors import PlannerError, ScenarioError
from planner.inputs.scenario import document as text
from planner.inputs.scenario.address import with_values
from planner.inputs.scenario.build import Hardware
from planner.inputs.scenario.schema import Scenario
from planner.inputs.scenario.schema.planning import MEAN
from planner.policies.registry import TRAITS

DEMAND, SLO, GPUS, PLAN = "Demand", "SLO", "GPUs", "Plan"  # groups of settings on a page
TIMES, PERCENT = "× now", "%"  # units
TIER_LIMITS = {"ttft_ms": 1e6, "tbt_ms": 1e6, "percentile": 99.999}  # largest value by name
LABELS = {  # name of a setting: its label and unit; what it is of follows a dot
    "growth": ("Demand", TIMES),
    "cached": ("Cached prompt tokens", PERCENT),
    "quantile": ("Forecast percentile", PERCENT),
    "ttft_ms": ("TTFT limit", "ms"),
    "tbt_ms": ("TPOT limit", "ms"),
    "percentile": ("SLO target", PERCENT),
    "price": ("Price", TIMES),
    "gpus": ("Available GPUs", TIMES),
    "mix": ("Largest share per region", PERCENT),
    "power": ("Power limit", "kW"),
    "spare": ("Spare replicas per pool", "replicas"),
    "interval": ("Scaling interval", "min"),
    "epsilon": ("Least share served in the home region", PERCENT),
    "spot_share": ("Largest share on spot GPUs", PERCENT),
}
ENTRY = re.compile(r"(\w+)\[(.+?)\]\.(.+)")  # section, entry and field of an address
Variation = Mapping[str, Any]  # addresses of a scenario to values; None removes a value
MOST_AXES, MOST_CELLS = 2, 256  # of a grid
SHARE = "mix."  # names of settings that limit a GPU type to a share of a region's GPUs


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting that a what-if can change; ``value`` is the present one, in ``unit``.

    ``addresses`` are those of the scenario's values that it changes, with the present values. A
    ``relative`` setting multiplies them. Others replace them by the new value divided by ``per``,
    the number of units of the setting in one of the scenario. A list, as prices by hour, is always
    multiplied.
    """

    name: str
    group: str
    value: float | None  # None: the scenario does not state a number
    least: float
    most: float
    addresses: Mapping[str, float | list[float] | None]
    relative: bool = False
    whole: bool = False  # values at the addresses are whole numbers
    per: float = 1.0
    clears: tuple[str, ...] = ()  # addresses that a change removes

    @property
    def label(self) -> str:
        """Return the name for people, such as "TTFT limit, chat"."""
        label, _ = label_and_unit(self.name)
        return label

    @property
    def unit(self) -> str:
        """Return the unit of the value."""
        _, unit = label_and_unit(self.name)
        return unit

    def variation(self, value: float) -> dict[str, Any]:
        """Return the changed values by address; raise PlannerError outside the limits."""
        if not self.least <= value <= self.most:
            raise PlannerError(
                f"{self.label}: {value:g} is outside the range from {self.least:g} to "
                f"{self.most:g}. Choose a value within it."
            )
        changed: dict[str, Any] = dict.fromkeys(self.clears)  # None removes a value
        for address, present in self.addresses.items():
            if isinstance(present, list):  # prices by hour
                changed[address] = [price * value for price in present]
                continue
            new = (present or 0.0) * value if self.relative else value / self.per
            changed[address] = round(new) if self.whole else new
        return changed


def label_and_unit(key: str) -> tuple[str, str]:
    """Return the label and the unit of a setting; "": no unit.

    ``key`` is a name, with an entry after a point (price.H100), or an address in the scenario.
    """
    name, _, entry = key.partition(".")
    address = ENTRY.fullmatch(key)
    if name in LABELS:
        label, unit = LABELS[name]
    elif address is not None:
        section, entry, field = address.groups()
        label, unit = LABELS.get(field, (key_words(field), ""))
        if section == "policies" and entry in TRAITS:
            entry = TRAITS[entry].label
    else:
        return key_words(key), ""
    return f"{label}, {entry}" if entry else label, unit


def settings_for(scenario: Scenario, hardware: Hardware) -> dict[str, Setting]:
    """Return the settings that a what-if of a scenario can change, by name.

    ``hardware`` has the present prices.
    """
    gpus = (*_gpus(scenario, hardware), *_power(scenario))
    settings = (*_demand(scenario), *_slo(scenario), *gpus, *_plan(scenario))
    return {setting.name: setting for setting in settings}


def is_address(key: str) -> bool:
    """Return whether a key begins with a section of the scenario, as an address does."""
    return re.split(r"[.\[]", key, maxsplit=1)[0] in Scenario.model_fields


def variation_of(settings: Mapping[str, Setting], chosen: Mapping[str, Any]) -> Variation:
    """Return the variation for ``chosen`` values, by name of a setting or by address.

    Raises PlannerError for an unknown name, and for a value outside the limits of its setting.
    """
    values: dict[str, Any] = {}
    for key, value in chosen.items():
        setting = settings.get(key)
        if setting is not None:
            values |= setting.variation(_number(setting, value))
        elif is_address(key):
            values[key] = value
        else:
            raise PlannerError(
                f"{key[:80]}: no such setting. Choose from {', '.join(settings)}, or give an "
                "address of the scenario."
            )
    return values


def chosen_of(sent: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields that an API call or command sent, as values by name of a setting.

    Of the fields, ``prices``, ``without`` and ``mix`` are by GPU type, ``tiers`` by tier and limit,
    and ``values`` by address. ``quantile`` and the values of ``mix`` are fractions.
    """
    # An empty or missing field changes nothing.
    fields = {name: value for name, value in sent.items() if value is not None}
    chosen: dict[str, Any] = dict(fields.get("values", {}))
    chosen |= {name: fields[name] for name in ("growth", "spare") if name in fields}
    if "quantile" in fields:
        chosen["quantile"] = 100 * fields["quantile"]
    chosen |= {f"price.{gpu}": times for gpu, times in fields.get("prices", {}).items()}
    chosen |= {f"gpus.{gpu}": 0.0 for gpu in fields.get("without", ())}
    chosen |= {f"{SHARE}{gpu}": 100 * share for gpu, share in fields.get("mix", {}).items()}
    for tier, limits in fields.get("tiers", {}).items():
        chosen |= {f"{limit}.{tier}": value for limit, value in limits.items()}
    return chosen


def shares_of(chosen: Mapping[str, Any]) -> dict[str, float]:
    """Return the chosen limits on the share of a region's GPUs, by GPU type, as fractions."""
    return {
        name.removeprefix(SHARE): float(value) / 100
        for name, value in chosen.items()
        if name.startswith(SHARE)
    }


def _number(setting: Setting, value: Any) -> float:
    """Return a chosen value as a number; raise PlannerError if it is none."""
    try:
        return float(value)
    except (TypeError, ValueError):
        raise PlannerError(f"{setting.label}: {value!r} is not a number.") from None


def _demand(scenario: Scenario) -> Iterator[Setting]:
    """Yield the settings of demand and forecast."""
    scales = _of_sources(scenario, "scale")
    yield Setting("growth", DEMAND, 1.0, least=0.05, most=20.0, addresses=scales, relative=True)
    if any(serving.prefix_caching for serving in scenario.serving):
        shares = _of_sources(scenario, "cached_share")
        stated = set(shares.values())
        share = stated.pop() if len(stated) == 1 else None
        percent = None if share is None else 100.0 * share
        yield Setting("cached", DEMAND, percent, least=0.0, most=99.0, addresses=shares, per=100.0)
    level = scenario.forecast.quantile
    yield Setting(
        "quantile", DEMAND,
        None if level in (None, MEAN) else 100.0 * float(level), least=5.0, most=95.0,
        addresses={"forecast.quantile": None}, per=100.0, clears=("forecast.quantiles",),
    )  # fmt: skip


def _of_sources(scenario: Scenario, field: str) -> dict[str, float | None]:
    """Return the values of a field of the sources of traffic, by address."""
    sources = enumerate(scenario.traffic.sources)
    return {f"traffic.sources[{i}].{field}": getattr(source, field) for i, source in sources}


def _slo(scenario: Scenario) -> Iterator[Setting]:
    """Yield the settings of SLO limits and targets."""
    for tier in scenario.tiers:
        if tier.deferrable:
            continue
        for limit, most in TIER_LIMITS.items():
            value = getattr(tier, limit)
            yield Setting(
                f"{limit}.{tier.name}", SLO, value, least=0.001, most=most,
                addresses={f"tiers[{tier.name}].{limit}": value},
            )  # fmt: skip


def _gpus(scenario: Scenario, hardware: Hardware) -> Iterator[Setting]:
    """Yield the settings of GPU prices and limits."""
    available_by_gpu = _available_by_gpu(scenario)
    for gpu, counts in available_by_gpu.items():
        prices = dict(_prices(scenario, hardware, gpu))
        yield Setting(
            f"price.{gpu}", GPUS, 1.0, least=0.05, most=20.0, addresses=prices, relative=True
        )
        yield Setting(
            f"gpus.{gpu}", GPUS, 1.0, least=0.0, most=20.0,
            addresses=counts, relative=True, whole=True,
        )  # fmt: skip
        if len(available_by_gpu) > 1:  # the share of a single type is always 100%
            yield Setting(f"{SHARE}{gpu}", GPUS, 100.0, least=0.0, most=100.0, addresses={})


def _available_by_gpu(scenario: Scenario) -> dict[str, dict[str, float | None]]:
    """Return the available GPUs of each type, as counts by address."""
    available: dict[str, dict[str, float | None]] = {}
    for region in scenario.regions:
        where = f"regions[{region.name}]"
        for gpu, count in region.capacity.items():
            available.setdefault(gpu, {})[f"{where}.capacity[{gpu}]"] = count
        for gpu, spot in region.spot.items():
            available.setdefault(gpu, {})[f"{where}.spot[{gpu}].capacity"] = spot.capacity
    return available


def _power(scenario: Scenario) -> Iterator[Setting]:
    """Yield the settings of the power limits of regions."""
    for region in scenario.regions:
        if region.power is not None and region.power.site_kw is not None:
            limit_kw = region.power.site_kw
            yield Setting(
                f"power.{region.name}", GPUS, limit_kw,
                least=0.001, most=1e7,
                addresses={f"regions[{region.name}].power.site_kw": limit_kw},
            )  # fmt: skip


def _prices(
    scenario: Scenario, hardware: Hardware, gpu: str
) -> Iterator[tuple[str, float | list[float]]]:
    """Yield (address, present price) of a GPU type in each region, owned and as spot.

    Prices that differ by hour of the day are a list of 24.
    """
    for r, region in enumerate(scenario.regions):
        for g, column in enumerate(hardware.columns):
            if hardware.gpus[g].name != gpu:
                continue
            by_hour = hardware.usd_by_hour[:, r, g].tolist()
            usd = by_hour if len(set(by_hour)) > 1 else by_hour[0]
            if column.spot and gpu in region.spot:
                yield f"regions[{region.name}].spot[{gpu}].usd_per_gpu_hour", usd
            elif not column.spot and gpu in region.capacity:
                yield f"regions[{region.name}].usd_per_gpu_hour[{gpu}]", usd


def _plan(scenario: Scenario) -> Iterator[Setting]:
    """Yield the settings of the plan's objective and limits."""
    objective = scenario.objective
    spare = objective.spare.instances
    yield Setting(
        "spare", PLAN, spare, least=0, most=1000,
        addresses={"objective.spare.instances": spare}, whole=True,
    )  # fmt: skip
    seconds = scenario.horizon.period_s
    yield Setting(
        "interval", PLAN, None if seconds is None else seconds / 60,
        least=1.0, most=1440.0, addresses={"horizon.period_s": seconds}, per=1 / 60,
    )  # fmt: skip
    if len(scenario.regions) > 1:
        yield Setting(
            "epsilon", PLAN, 100.0 * objective.epsilon, least=1.0, most=100.0,
            addresses={"objective.epsilon": objective.epsilon}, per=100.0,
        )  # fmt: skip
    if any(region.spot for region in scenario.regions):
        yield Setting(
            "spot_share", PLAN, 100.0 * objective.spot_share, least=0.0, most=100.0,
            addresses={"objective.spot_share": objective.spot_share}, per=100.0,
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Axis:
    """A setting that a grid varies, with its values; ``key`` is its name or an address."""

    key: str
    values: tuple[Any, ...]


def cells_of(axes: Sequence[Axis]) -> list[tuple[Any, ...]]:
    """Return the combination of values of every cell of a grid; the last axis varies fastest.

    Raises PlannerError if the grid is not valid.
    """
    if not 1 <= len(axes) <= MOST_AXES:
        raise PlannerError(f"vary: {len(axes)} settings. Choose one or two.")
    if len({axis.key for axis in axes}) < len(axes):
        raise PlannerError(f"vary: {axes[0].key} appears twice. Choose another second setting.")
    for axis in axes:
        if not axis.values:
            raise PlannerError(f"vary: {axis.key} has no values. Separate values with commas.")
        if len(set(map(repr, axis.values))) < len(axis.values):
            raise PlannerError(f"vary: {axis.key} has a value twice. Give each value once.")
    values = [axis.values for axis in axes]
    count = prod(map(len, values))
    if count > MOST_CELLS:
        raise PlannerError(f"vary: {count} cells. Use at most {MOST_CELLS}.")
    return list(product(*values))


def with_variation(scenario: Scenario, variation: Variation) -> Scenario:
    """Return ``scenario`` with a variation; raise ScenarioError if it is no longer valid."""
    if not variation:
        return scenario
    try:
        return Scenario.model_validate(with_values(scenario, variation))
    except ValidationError:  # parse the text for a message with the line and the field
        return text.parse(text.edit(text.dump(scenario), variation), "what if")


def varied_document(document: str, variation: Variation) -> str:
    """Return the text of a scenario with a variation; comments stay.

    Raises ScenarioError if the scenario is no longer valid.
    """
    assigned = ", ".join(f"{key} = {value}" for key, value in variation.items())
    try:
        changed = text.edit(document, variation)
        text.parse(changed)
    except ScenarioError as problem:
        raise ScenarioError(f"vary: with {assigned}: {problem}") from None
    return changed
