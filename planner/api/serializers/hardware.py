from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

from planner.api.results import schema_of
from planner.api.serializers.options import BytesField
from planner.api.serializers.strict_fields import (
    FieldsByName,
    FiniteField,
    StrictSerializer,
    Values,
)
from planner.api.serializers.typed import LinkField, TypedField, serializer_of
from planner.inputs.catalogue import user_hardware
from planner.models import OwnGpu, OwnModel
from planner.selectors.hardware import (
    PRECISIONS,
    PRICE_ORDERS,
    Entry,
    Fit,
    PriceRow,
    fit_on_gpu,
    gpu_sources,
    model_memory,
    weight_bytes,
)
from simulation.performance.specs import KINDS, GpuSpec, Provenance


def _quantity_fields(quantities: tuple[user_hardware.Quantity, ...]) -> FieldsByName:
    """Return a field for each quantity, with its limits and its unit."""
    fields: FieldsByName = {}
    for quantity in quantities:
        kind: Any = serializers.IntegerField if quantity.whole else FiniteField
        unit = f", {quantity.unit}" if quantity.unit else ""
        fields[quantity.name] = kind(
            required=quantity.required,
            help_text=f"{quantity.label}{unit}. {quantity.hint}".strip(" .") + ".",
            min_value=int(quantity.low) if quantity.whole else quantity.low,
            max_value=int(quantity.high) if quantity.whole else quantity.high,
        )
    return fields


class _Request(StrictSerializer):
    """The name of a GPU type or model, its quantities and their source."""

    quantities: tuple[user_hardware.Quantity, ...] = ()

    name = serializers.CharField(max_length=80)
    kind = serializers.ChoiceField(KINDS, default="assumed", help_text="Provenance of the figures.")
    source = serializers.CharField(  # type: ignore[assignment]
        max_length=500, required=False, help_text="Source of the figures."
    )

    def get_fields(self) -> FieldsByName:
        return {**super().get_fields(), **_quantity_fields(self.quantities)}

    def facts(self) -> Values:
        """Return the given values apart from name, kind and source: the quantities, or a config."""
        values = self.validated_data.items()
        return {name: value for name, value in values if name not in ("name", "kind", "source")}


class GpuRequest(_Request):
    """A GPU type of your own."""

    quantities = user_hardware.GPU
    family = serializers.CharField(max_length=40, required=False, help_text="hopper, ada ...")


class ModelRequest(_Request):
    """A model of your own: its memory figures, or its `config.json`."""

    quantities = user_hardware.MODEL
    config = serializers.DictField(
        required=False, help_text="config.json from Hugging Face. Replaces the other fields."
    )

    def get_fields(self) -> FieldsByName:
        fields = super().get_fields()
        for quantity in user_hardware.MODEL:
            fields[quantity.name].required = False
        return fields


class FileRequest(StrictSerializer):
    """A YAML file of GPUs and models, or a model's config.json with its name."""

    file = BytesField(max_length=255, help_text=".yaml or .json, at most 1 MB.")
    name = serializers.CharField(
        max_length=80, required=False, help_text="Name of the model in a config.json."
    )


class _Item(serializers.Serializer[Any]):
    name = serializers.CharField()
    own = serializers.BooleanField(help_text="true: made here; false: built in.")
    provenance = TypedField(Provenance, source="spec.provenance")


class GpuLinks(serializers.Serializer[Any]):
    self = LinkField("gpu", "name", "name")


class GpuItem(_Item):
    """A GPU type; unknown figures are null."""

    links = GpuLinks(source="*", read_only=True)
    facts = serializers.SerializerMethodField()
    sources = TypedField(
        Mapping[str, Provenance],
        lambda entry: {name: source for name, source in gpu_sources(entry).items() if name},
    )

    @extend_schema_field({"type": "object", "additionalProperties": True})
    def get_facts(self, entry: Entry[GpuSpec, OwnGpu]) -> Values:
        """Return what users would give for this GPU type, as in a request that adds one."""
        values = user_hardware.gpu_given(entry.spec)
        facts = {quantity.name: values.get(quantity.name) for quantity in user_hardware.GPU}
        return {**facts, "family": entry.spec.family}


class ModelLinks(serializers.Serializer[Any]):
    self = LinkField("model", "name", "name")


class ModelItem(_Item):
    """A model and its memory; `fit` is for the GPU type of the request."""

    links = ModelLinks(source="*", read_only=True)
    weight_gb = TypedField(
        Mapping[str, float],
        lambda entry: {name: size / 1e9 for name, size in weight_bytes(entry.spec).items()},
    )
    kv_bytes_per_token = serializers.FloatField(source="spec.kv_bytes_per_token")
    max_context = serializers.IntegerField(source="spec.max_context")
    fit = serializers.SerializerMethodField()

    @extend_schema_field(schema_of(Fit))
    def get_fit(self, entry: Entry[Any, OwnModel]) -> Values:
        return asdict(model_memory(entry.spec, self.context["gpu"]).fit)


class ModelDetail(ModelItem):
    """A model with its shape and its fit on every GPU type."""

    shape = serializers.SerializerMethodField()
    fits = serializers.SerializerMethodField()

    @extend_schema_field({"type": ["object", "null"], "additionalProperties": True})
    def get_shape(self, entry: Entry[Any, OwnModel]) -> Values | None:
        return asdict(entry.spec.shape) if entry.spec.shape else None

    @extend_schema_field(schema_of(list[Fit]))
    def get_fits(self, entry: Entry[Any, OwnModel]) -> list[Any]:
        """Return how the model fits into each GPU type at each precision."""
        return [
            asdict(fit_on_gpu(entry.spec, gpu, precision))
            for gpu in self.context["gpus"]
            for precision in PRECISIONS
        ]


class HardwareAdded(serializers.Serializer[Any]):
    gpus = serializers.ListField(child=serializers.CharField())
    models = serializers.ListField(child=serializers.CharField())


PriceItem = serializer_of(PriceRow)


class CarbonItem(serializers.Serializer[Any]):
    """The electricity of a cloud region or, without a provider, of a country."""

    provider = serializers.CharField(source="grid.provider")
    region = serializers.CharField(source="grid.name")
    location = serializers.CharField(source="grid.location")
    carbon_g_per_kwh = serializers.FloatField(
        source="grid.carbon_g_per_kwh", help_text="Carbon intensity, g CO2e per kWh, yearly mean."
    )
    cycle = serializers.CharField(
        source="grid.cycle", allow_null=True, help_text="Grid that gives the daily cycle."
    )
    provenance = TypedField(Provenance, source="grid.provenance")
    pue = serializers.FloatField(allow_null=True)
    pue_provenance = TypedField(Provenance | None)


class Search(StrictSerializer):
    search = serializers.CharField(
        required=False, max_length=120, help_text="Words of the name, in any order."
    )
    page = serializers.IntegerField(required=False, min_value=1)
    page_size = serializers.IntegerField(required=False, min_value=1, max_value=500)


class PriceSearch(Search):
    provider = serializers.CharField(required=False, max_length=80)
    region = serializers.CharField(required=False, max_length=80)
    gpu = serializers.CharField(required=False, max_length=80)
    price_list = serializers.CharField(
        required=False,
        max_length=80,
        help_text="Name of a price list. Default: all, your own first.",
    )
    order = serializers.ChoiceField(
        required=False,
        choices=list(PRICE_ORDERS),
        help_text="Order of the rows. Prices: cheapest first.",
    )


class PriceListRequest(StrictSerializer):
    file = serializers.FileField(
        help_text="CSV or YAML: region, gpu, on_demand_usd, spot_usd, one_year_usd, "
        "three_years_usd, provider; USD per GPU and hour."
    )
    name = serializers.CharField(
        required=False,
        max_length=80,
        help_text="Name of the price list. Default: the name in the file.",
    )


class PriceListKept(serializers.Serializer[Any]):
    name = serializers.CharField()
    version = serializers.IntegerField(help_text="Number of uploads with this name.")
    prices = serializers.IntegerField(help_text="Number of prices.")
    source = serializers.CharField()  # type: ignore[assignment]  # as above


class ModelSearch(Search):
    gpu = serializers.CharField(
        required=False,
        max_length=80,
        help_text="GPU type of `fit`. Default: H100-SXM.",
    )
