"""Read GPU types, models, prices and carbon: the built-in facts and the user's own."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from functools import partial
from statistics import median
from typing import Any, Generic, TypeVar

from django.db import OperationalError, ProgrammingError

from planner.errors import NotFound
from planner.inputs import catalogue
from planner.inputs.scenario.user_facts import NO_USER_FACTS, UserFacts
from planner.models import OwnGpu, OwnModel, PriceList
from planner.selectors.hardware_rows import gpu_of, model_of
from planner.selectors.lookup import matches
from simulation.errors import SimulationError
from simulation.performance import memory
from simulation.performance.specs import BYTES, Arrangement, GpuSpec, ModelSpec, Provenance

Spec = TypeVar("Spec", GpuSpec, ModelSpec)
Row = TypeVar("Row", OwnGpu, OwnModel)
MAX_NAMES = 20  # names listed in a message
NUMBERS = re.compile(r"(\d+)")


@dataclass(frozen=True, slots=True)
class Entry(Generic[Spec, Row]):
    """A GPU type or a model; ``row`` is its database row, None if it is built in."""

    spec: Spec
    row: Row | None

    @property
    def name(self) -> str:
        return self.spec.name

    @property
    def own(self) -> bool:
        return self.row is not None


@dataclass(frozen=True, slots=True)
class Carbon:
    """The carbon intensity of a region's grid, and the PUE of its data centres if known."""

    grid: catalogue.Grid
    pue: float | None
    pue_provenance: Provenance | None


def gpus_list(search: str = "") -> list[Entry[GpuSpec, OwnGpu]]:
    """Return GPU types, the user's own first; ``search`` is part of a name or family."""
    own_gpus = [Entry(gpu_of(row), row) for row in OwnGpu.objects.select_related("owner")]
    built_in: list[Entry[GpuSpec, OwnGpu]] = [
        Entry(spec, row=None) for spec in catalogue.gpus().values()
    ]
    entries = [*own_gpus, *built_in]
    return [entry for entry in entries if matches(search, entry.name, entry.spec.family)]


def models_list(search: str = "") -> list[Entry[ModelSpec, OwnModel]]:
    """Return models, the user's own first; ``search`` is part of a name."""
    own_models = [Entry(model_of(row), row) for row in OwnModel.objects.select_related("owner")]
    built_in: list[Entry[ModelSpec, OwnModel]] = [
        Entry(spec, row=None) for spec in catalogue.models().values()
    ]
    built_in.sort(key=lambda entry: _natural_order(entry.name))
    return [entry for entry in [*own_models, *built_in] if matches(search, entry.name)]


def _natural_order(name: str) -> tuple[str | int, ...]:
    """Return a sort key that compares the numbers in names by value: 8b comes before 70b."""
    # Parts alternate between text and digits, so keys compare text with text.
    return tuple(int(part) if part.isdigit() else part for part in NUMBERS.split(name))


def gpu_get(name: str) -> Entry[GpuSpec, OwnGpu]:
    """Return a GPU type; raise NotFound with the known names."""
    return _find("GPU", name, gpus_list())


def model_get(name: str) -> Entry[ModelSpec, OwnModel]:
    """Return a model; raise NotFound with the known names."""
    return _find("model", name, models_list())


def own_hardware() -> UserFacts:
    """Return every own GPU type and model by name.

    It is empty if the database is not set up yet, so that built-in types can still be estimated.
    """
    try:
        gpus = {row.name: gpu_of(row) for row in OwnGpu.objects.all()}
        models = {row.name: model_of(row) for row in OwnModel.objects.all()}
    except (OperationalError, ProgrammingError):
        return NO_USER_FACTS
    return UserFacts(gpus=gpus, models=models)


def model_in_precision(name: str, weights: str) -> ModelSpec:
    """Return the model called ``name`` with its weights in the precision ``weights``.

    A model without a known shape is returned as it is.
    """
    spec = model_get(name).spec
    if spec.shape is None or weights == "bf16":
        return spec
    return catalogue.model_of_shape(spec.shape, spec.provenance, weights)


def gpu_sources(entry: Entry[GpuSpec, OwnGpu]) -> dict[str, Provenance]:
    """Return the provenance of each attribute of a GPU type; key "" has that of all others."""
    if entry.own:
        return {"": entry.spec.provenance}
    sources = catalogue.gpu_sources(entry.name)
    power_source = sources.pop("watts", entry.spec.provenance)
    power_sources = dict.fromkeys(("idle_w", "prefill_w", "decode_w"), power_source)
    return {**power_sources, **sources, "": entry.spec.provenance}


def own_gpu_get(name: str) -> OwnGpu:
    """Return an own GPU type, which can be changed; raise NotFound for a built-in one."""
    return _own_row("GPU", gpu_get(name))


def own_model_get(name: str) -> OwnModel:
    """Return an own model, which can be changed; raise NotFound for a built-in one."""
    return _own_row("model", model_get(name))


def _own_row(noun: str, entry: Entry[Spec, Row]) -> Row:
    """Return the row of a user's entry; raise NotFound if the entry is built in."""
    if entry.row is None:
        raise NotFound(
            f"{entry.name} is built in and cannot change. Add a {noun} of your own instead."
        )
    return entry.row


@dataclass(frozen=True, slots=True)
class PriceRow(catalogue.Price):
    """One price: of the catalogue, or of a user's own price list (``price_list``)."""

    one_year_usd_per_gpu_hour: float | None = None  # with a one-year commitment
    three_years_usd_per_gpu_hour: float | None = None  # with a three-year commitment
    price_list: str = ""  # name of your price list; empty: built in


def _price_order(amount: str, row: PriceRow) -> tuple[bool, float]:
    """Return a sort key by the column ``amount``: cheapest first, unknown prices last."""
    usd = getattr(row, amount)
    return usd is None, usd or 0.0


AMOUNTS = (
    "usd_per_gpu_hour",
    "spot_usd_per_gpu_hour",
    "one_year_usd_per_gpu_hour",
    "three_years_usd_per_gpu_hour",
)
# Sort keys of prices, by name of the order.
PRICE_ORDERS: dict[str, Callable[[PriceRow], Any]] = {
    "gpu": lambda row: (row.gpu, row.provider, row.region),
    "region": lambda row: (row.region, row.gpu),
    "provider": lambda row: (row.provider, row.gpu, row.region),
    **{amount: partial(_price_order, amount) for amount in AMOUNTS},
}


def prices_list(
    search: str = "",
    gpu: str | None = None,
    *,
    provider: str = "",
    region: str = "",
    price_list: str = "",
    order: str = "",
) -> list[PriceRow]:
    """Return prices, by default own price lists first and then the catalogue.

    ``search`` matches parts of provider, region, GPU and list. The other filters are exact; "" and
    None match all. ``order`` is one of PRICE_ORDERS.
    """
    prices = [
        row
        for row in (*_own_prices(), *_built_in_prices())
        if gpu in (None, "", row.gpu)
        and provider in ("", row.provider)
        and region in ("", row.region)
        and price_list in ("", row.price_list)
        and matches(search, row.provider, row.region, row.gpu, row.price_list)
    ]
    return sorted(prices, key=PRICE_ORDERS[order]) if order in PRICE_ORDERS else prices


def usd_per_gpu_hour_by_type() -> dict[str, tuple[float, float]]:
    """Return the (median, lowest) on-demand price of each GPU type that has one, $/GPU-hour."""
    offers: dict[str, list[float]] = {}
    for row in prices_list():
        if row.usd_per_gpu_hour is not None:
            offers.setdefault(row.gpu, []).append(row.usd_per_gpu_hour)
    return {gpu: (median(prices), min(prices)) for gpu, prices in offers.items()}


def _built_in_prices() -> list[PriceRow]:
    """Return the catalogue's offers, with the prices that plans derive from other ones."""
    prices = {(price.provider, price.region, price.gpu): price for price in catalogue.prices()}
    for region in catalogue.regions().values():
        for gpu, usd in region.usd_per_gpu_hour.items():
            key = region.provider, region.name, gpu
            if key not in prices or prices[key].usd_per_gpu_hour != usd:
                spot_usd = region.spot_usd_per_gpu_hour.get(gpu)
                prices[key] = catalogue.Price(*key, usd, spot_usd, region.sources[gpu])
    names = [field.name for field in fields(catalogue.Price)]
    return [PriceRow(**{name: getattr(price, name) for name in names}) for price in prices.values()]


def _own_prices() -> list[PriceRow]:
    """Return the prices of the stored price lists."""
    return [
        PriceRow(
            provider=row["provider"],
            region=row["region"],
            gpu=row["gpu"],
            usd_per_gpu_hour=row["on_demand"],
            spot_usd_per_gpu_hour=row["spot"],
            provenance=Provenance(price_list.kind, price_list.source),
            one_year_usd_per_gpu_hour=row["one_year"],
            three_years_usd_per_gpu_hour=row["three_years"],
            price_list=price_list.name,
        )
        for price_list in PriceList.objects.all()
        for row in price_list.facts["prices"]
    ]


def price_list_get(name: str) -> PriceList:
    """Return a price list; raise NotFound with the known names."""
    row = PriceList.objects.filter(name=name).first()
    if row is None:
        names = list(PriceList.objects.values_list("name", flat=True)[:MAX_NAMES])
        raise NotFound(f"There is no price list {name!r}. Known: {', '.join(names) or 'none'}.")
    return row


def carbon_list(search: str = "") -> list[Carbon]:
    """Return the carbon intensity of cloud regions and countries."""
    regions = catalogue.regions()
    intensities = []
    for grid in catalogue.grids():
        if matches(search, grid.provider, grid.name, grid.location):
            region = regions.get(grid.name)
            if region is not None and region.provider == grid.provider:
                intensities.append(Carbon(grid, region.pue, region.sources.get("pue")))
            else:
                intensities.append(Carbon(grid, pue=None, pue_provenance=None))
    return intensities


def _find(noun: str, name: str, entries: list[Entry[Spec, Row]]) -> Entry[Spec, Row]:
    """Return the entry called ``name``; raise NotFound that lists the first names."""
    for entry in entries:
        if entry.name == name:
            return entry
    known_names = ", ".join(entry.name for entry in entries[:MAX_NAMES])
    more = f" and {len(entries) - MAX_NAMES} more" if len(entries) > MAX_NAMES else ""
    raise NotFound(f"There is no {noun} {name!r}. Known: {known_names}{more}.")


PRECISIONS = ("bf16", "fp8", "fp4")
CONTEXT = 4096  # tokens per sequence of the batch that has to fit


@dataclass(frozen=True, slots=True)
class Fit:
    """The fewest GPUs of a type on which a model fits, with tensor parallelism."""

    gpu: str
    precision: str
    tp: int | None  # fewest GPUs on which the model fits; null: none
    context: int = 0  # longest sequence on these GPUs, tokens
    batch: int = 0  # sequences of 4,096 tokens, or of the model's own limit, that fit on them


@dataclass(frozen=True, slots=True)
class Memory:
    """The memory that a model needs."""

    weight_bytes: Mapping[str, float]  # by precision
    kv_bytes_per_token: float
    fit: Fit  # in the released precision, on the chosen GPU type


def model_memory(entry: Entry[ModelSpec, OwnModel], gpu: GpuSpec) -> Memory:
    """Return the memory of a model, and its fit on ``gpu`` in its released precision.

    That of a user's model is taken as bf16.
    """
    spec = entry.spec
    precision = "bf16" if entry.own else catalogue.published_precision(entry.name)
    return Memory(weight_bytes(spec), spec.kv_bytes_per_token, fit_on_gpu(spec, gpu, precision))


def weight_bytes(spec: ModelSpec) -> dict[str, float]:
    """Return the bytes of a model's weights by precision.

    If the shape of the model is unknown, all weights are assumed to shrink with the precision.
    """
    if spec.shape is not None:
        return {name: memory.weight_bytes(spec.shape, name) for name in PRECISIONS}
    return {name: spec.weight_bytes * BYTES[name] / BYTES["bf16"] for name in PRECISIONS}


def fit_on_gpu(spec: ModelSpec, gpu: GpuSpec, precision: str) -> Fit:
    """Return how a model fits on ``gpu`` with weights in ``precision`` and a 16-bit KV cache."""
    length = min(CONTEXT, spec.max_context)
    if spec.shape is None:
        return _fit_by_memory(spec, gpu, precision, length)
    try:
        tp = memory.minimum_tp(spec.shape, gpu, precision, length)
    except SimulationError:
        return Fit(gpu.name, precision, tp=None)
    arrangement = Arrangement(tp=tp, moe_tp=tp, weights=precision)
    return Fit(
        gpu=gpu.name,
        precision=precision,
        tp=tp,
        context=memory.largest_context(spec.shape, gpu, arrangement),
        batch=memory.largest_batch(spec.shape, gpu, arrangement, length),
    )


def _fit_by_memory(spec: ModelSpec, gpu: GpuSpec, precision: str, length: int) -> Fit:
    """Return how a model of unknown shape fits, by the bytes of its weights and KV cache.

    ``length`` is the tokens of each sequence of the batch.
    """
    in_precision = replace(spec, weight_bytes=weight_bytes(spec)[precision])
    for tp in memory.TP_CHOICES:
        try:
            tokens = memory.kv_capacity_tokens(in_precision, gpu, tp)
        except SimulationError:
            continue
        if tokens >= length:
            return Fit(gpu.name, precision, tp, min(tokens, spec.max_context), tokens // length)
    return Fit(gpu.name, precision, tp=None)
