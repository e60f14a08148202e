"""Serve GPU types, models, prices and carbon."""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, ClassVar

from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers, status
from rest_framework.parsers import MultiPartParser
from rest_framework.request import Request
from rest_framework.response import Response

from planner.api.base import ApiView, state_tag, valid, validated, version_of_client
from planner.api.filters import NumberPagination, page_response
from planner.api.results import schema_of
from planner.api.schema import CONFIG, GPU, LOCATION, MODEL, operation, removal
from planner.api.serializers.fields import (
    FieldsByName,
    FiniteField,
    LinkField,
    StrictSerializer,
    TypedField,
    Values,
    serializer_of,
)
from planner.api.serializers.options import BytesField
from planner.errors import CatalogueError
from planner.inputs.catalogue import user_hardware
from planner.models import OwnGpu, OwnModel
from planner.selectors import hardware as known
from planner.services import hardware, imports
from simulation.performance.specs import KINDS, GpuSpec, Provenance


class _Request(StrictSerializer):
    """The name of a GPU type or model, its quantities and their source."""

    quantities: tuple[user_hardware.Quantity, ...] = ()

    name = serializers.CharField(max_length=80)
    kind = serializers.ChoiceField(KINDS, default="assumed", help_text="Provenance of the figures.")
    source = serializers.CharField(  # type: ignore[assignment]
        max_length=500, required=False, help_text="Source of the figures."
    )

    def get_fields(self) -> FieldsByName:
        """Return the fields of the class, and a number field for each quantity."""
        fields: FieldsByName = {}
        for quantity in self.quantities:
            kind: Any = serializers.IntegerField if quantity.whole else FiniteField
            unit = f", {quantity.unit}" if quantity.unit else ""
            fields[quantity.name] = kind(
                required=quantity.required,
                help_text=f"{quantity.label}{unit}. {quantity.hint}".strip(" .") + ".",
                min_value=int(quantity.low) if quantity.whole else quantity.low,
                max_value=int(quantity.high) if quantity.whole else quantity.high,
            )
        return {**super().get_fields(), **fields}

    def facts(self) -> Values:
        """Return the given quantities or config: all values except name, kind and source."""
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
        lambda entry: {name: source for name, source in known.gpu_sources(entry).items() if name},
    )

    @extend_schema_field({"type": "object", "additionalProperties": True})
    def get_facts(self, entry: known.Entry[GpuSpec, OwnGpu]) -> Values:
        """Return the quantities of a GPU type in the units of a request that adds one."""
        values = user_hardware.gpu_form_values(entry.spec)
        facts = {quantity.name: values.get(quantity.name) for quantity in user_hardware.GPU}
        return {**facts, "family": entry.spec.family}


class ModelLinks(serializers.Serializer[Any]):
    self = LinkField("model", "name", "name")


class ModelItem(_Item):
    """A model and its memory; `fit` is for the GPU type of the request."""

    links = ModelLinks(source="*", read_only=True)
    weight_gb = TypedField(
        Mapping[str, float],
        lambda entry: {name: size / 1e9 for name, size in known.weight_bytes(entry.spec).items()},
    )
    kv_bytes_per_token = serializers.FloatField(source="spec.kv_bytes_per_token")
    max_context = serializers.IntegerField(source="spec.max_context")
    fit = serializers.SerializerMethodField()

    @extend_schema_field(schema_of(known.Fit))
    def get_fit(self, entry: known.Entry[Any, OwnModel]) -> Values:
        return asdict(known.fit_on_gpu(entry.spec, self.context["gpu"], "bf16"))


class ModelDetail(ModelItem):
    """A model with its shape and its fit on every GPU type."""

    shape = serializers.SerializerMethodField()
    fits = serializers.SerializerMethodField()

    @extend_schema_field({"type": ["object", "null"], "additionalProperties": True})
    def get_shape(self, entry: known.Entry[Any, OwnModel]) -> Values | None:
        return asdict(entry.spec.shape) if entry.spec.shape else None

    @extend_schema_field(schema_of(list[known.Fit]))
    def get_fits(self, entry: known.Entry[Any, OwnModel]) -> list[Any]:
        """Return how the model fits into each GPU type at each precision."""
        return [
            asdict(known.fit_on_gpu(entry.spec, gpu, precision))
            for gpu in self.context["gpus"]
            for precision in known.PRECISIONS
        ]


class ImportedHardware(serializers.Serializer[Any]):
    gpus = serializers.ListField(child=serializers.CharField())
    models = serializers.ListField(child=serializers.CharField())


PriceItem = serializer_of(known.PriceRow)


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
        choices=list(known.PRICE_ORDERS),
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


class PriceListDetail(serializers.Serializer[Any]):
    name = serializers.CharField()
    version = serializers.IntegerField(help_text="Number of uploads with this name.")
    prices = serializers.IntegerField(help_text="Number of prices.")
    source = serializers.CharField()  # type: ignore[assignment]  # as above


class ModelSearch(Search):
    gpu = serializers.CharField(
        required=False, max_length=80, help_text="GPU type of `fit`. Default: H100-SXM."
    )


USUAL_GPU = "H100-SXM"  # a model's ``fit`` is for it, unless the request names another
MODELS = {"By its memory": MODEL, "By its config.json": CONFIG}


class EntryView(ApiView):
    """A GPU type or model, built in or your own."""

    request_class: ClassVar[Any]  # serializer of the request
    item_class: ClassVar[Any]  # serializer of the entry
    entry: ClassVar[Any]  # function that returns the entry with a name
    save: ClassVar[Any]  # function that stores an entry and returns its row

    def answer(self, name: str, code: int = status.HTTP_200_OK) -> Response:
        """Return the response with the entry called ``name`` and the status ``code``.

        The ETag of a user's entry is one that If-Match accepts. A built-in entry cannot be changed,
        so its ETag is the usual digest of the body.
        """
        entry = self.entry(name)
        headers = {"ETag": state_tag(entry.row, self.request)} if entry.row else {}
        return self.row_response(self.item_class, entry, code, headers, **self.context())

    def save_request(self, row: Any = None) -> Response:
        """Save the request as a new entry, or as the new values of ``row``; return the response."""
        sent = validated(self.request_class(data=self.request.data))
        values = sent.validated_data
        saved = self.save(
            row=row,
            name=values["name"],
            facts=sent.facts(),
            user=self.user,
            source=values.get("source", ""),
            kind=values["kind"],
            version=version_of_client(self.request, row) if row else None,
        )
        return self.answer(saved.name, status.HTTP_200_OK if row else status.HTTP_201_CREATED)

    def context(self) -> Values:
        """Return the context that the serializer of the entry needs besides the request."""
        return {}


class GpuEntry(EntryView):
    request_class, item_class = GpuRequest, GpuItem
    entry, save = staticmethod(known.gpu_get), staticmethod(hardware.gpu_save)


def _model_save(*, name: str, facts: Values, **more: Any) -> OwnModel:
    """Save a model from its memory figures or from its config.json."""
    config = facts.pop("config", None)
    if config is not None and facts:
        raise CatalogueError(
            f"Model {name}: its memory follows from config. Leave out {', '.join(facts)}."
        )
    described = facts if config is None else imports.model_of_config(name, config)
    return hardware.model_save(name=name, facts=described, **more)


class ModelEntry(EntryView):
    request_class, item_class = ModelRequest, ModelDetail
    entry, save = staticmethod(known.model_get), staticmethod(_model_save)

    def context(self) -> Values:
        """Return the GPU types for which the serializer computes the fit."""
        gpus = [entry.spec for entry in known.gpus_list()]
        return {"gpu": known.gpu_get(USUAL_GPU).spec, "gpus": gpus}


class GpuListView(GpuEntry):
    pagination_class = NumberPagination

    @operation({200: GpuItem(many=True)}, parameters=[Search], operation_id="hardware_gpus_list")
    def get(self, request: Request) -> Response:
        """List GPU types: built-in ones and your own."""
        search = valid(Search(data=request.query_params)).get("search", "")
        return page_response(self, known.gpus_list(search), GpuItem, {"request": request})

    @operation({201: GpuItem}, request=GpuRequest, parameters=[LOCATION], examples={"A GPU": GPU})
    def post(self, request: Request) -> Response:
        """Add your own GPU type."""
        return self.save_request()


class GpuView(GpuEntry):
    @operation({200: GpuItem})
    def get(self, request: Request, name: str) -> Response:
        """Get a GPU type with the source of each figure."""
        return self.answer(name)

    @operation({200: GpuItem}, request=GpuRequest, examples={"A GPU": GPU})
    def put(self, request: Request, name: str) -> Response:
        """Replace your own GPU type."""
        return self.save_request(known.own_gpu_get(name))

    @removal
    def delete(self, request: Request, name: str) -> None:
        """Remove your own GPU type.

        It is refused while something uses the type.
        """
        hardware.hardware_delete(row=known.own_gpu_get(name), user=self.user)


class ModelListView(ModelEntry):
    pagination_class = NumberPagination

    @operation(
        {200: ModelItem(many=True)}, parameters=[ModelSearch], operation_id="hardware_models_list"
    )
    def get(self, request: Request) -> Response:
        """List models and the memory that they need."""
        query = valid(ModelSearch(data=request.query_params))
        gpu = known.gpu_get(query.get("gpu") or USUAL_GPU).spec
        entries = known.models_list(query.get("search", ""))
        return page_response(self, entries, ModelItem, {"request": request, "gpu": gpu})

    @operation({201: ModelDetail}, request=ModelRequest, parameters=[LOCATION], examples=MODELS)
    def post(self, request: Request) -> Response:
        """Add your own model."""
        return self.save_request()


class ModelView(ModelEntry):
    @operation({200: ModelDetail})
    def get(self, request: Request, name: str) -> Response:
        """Get a model, its shape and the GPUs that it fits."""
        return self.answer(name)

    @operation({200: ModelDetail}, request=ModelRequest, examples=MODELS)
    def put(self, request: Request, name: str) -> Response:
        """Replace your own model."""
        return self.save_request(known.own_model_get(name))

    @removal
    def delete(self, request: Request, name: str) -> None:
        """Remove your own model.

        It is refused while something uses the model.
        """
        hardware.hardware_delete(row=known.own_model_get(name), user=self.user)


class HardwareFileView(ApiView):
    parser_classes = [MultiPartParser]

    @operation({201: ImportedHardware}, request={"multipart/form-data": FileRequest})
    def post(self, request: Request) -> Response:
        """Import GPU types and models from a file.

        The file is YAML with `gpus` and `models`, or one `config.json`. Either all entries are
        stored or none.
        """
        sent = valid(FileRequest(data=request.data))
        file = sent["file"]
        rows = imports.hardware_import(
            user=self.user,
            data=file.read(imports.MAX_BYTES + 1),
            file_name=file.name,
            name=sent.get("name", ""),
        )
        added = {
            "gpus": [row.name for row in rows if isinstance(row, OwnGpu)],
            "models": [row.name for row in rows if not isinstance(row, OwnGpu)],
        }
        return Response(ImportedHardware(added).data, status.HTTP_201_CREATED)


class PriceListView(ApiView):
    pagination_class = NumberPagination

    @operation(
        {200: PriceItem(many=True)}, parameters=[PriceSearch], operation_id="hardware_prices_list"
    )
    def get(self, request: Request) -> Response:
        """List prices by provider, region and GPU; your own price lists come first."""
        query = valid(PriceSearch(data=request.query_params))
        filters = {name: value for name, value in query.items() if not name.startswith("page")}
        return page_response(self, known.prices_list(**filters), PriceItem, {})


class PriceListsView(ApiView):
    parser_classes = [MultiPartParser]

    @operation({201: PriceListDetail}, request={"multipart/form-data": PriceListRequest})
    def post(self, request: Request) -> Response:
        """Store your own price list.

        A scenario names it under `price_list`. A file of the same name replaces it.
        """
        sent = valid(PriceListRequest(data=request.data))
        file = sent["file"]
        row = hardware.price_list_save(
            user=self.user,
            data=file.read(hardware.MAX_BYTES + 1),
            file_name=file.name,
            name=sent.get("name", ""),
        )
        answer = {
            "name": row.name,
            "version": row.version,
            "prices": len(row.facts["prices"]),
            "source": row.source,
        }
        return Response(PriceListDetail(answer).data, status.HTTP_201_CREATED)


class PriceListDetailView(ApiView):
    @removal
    def delete(self, request: Request, name: str) -> None:
        """Remove your own price list.

        It is refused while a scenario names the list.
        """
        hardware.price_list_delete(row=known.price_list_get(name), user=self.user)


class CarbonListView(ApiView):
    pagination_class = NumberPagination

    @operation(
        {200: CarbonItem(many=True)}, parameters=[Search], operation_id="hardware_carbon_list"
    )
    def get(self, request: Request) -> Response:
        """List carbon of the grid and PUE by region."""
        search = valid(Search(data=request.query_params)).get("search", "")
        return page_response(self, known.carbon_list(search), CarbonItem, {})
