"""Serve GPU types, models, prices and carbon."""

from collections.abc import Callable
from typing import Any, ClassVar

from rest_framework import status
from rest_framework.parsers import MultiPartParser
from rest_framework.request import Request
from rest_framework.response import Response

from planner.api.base import ApiView, checked, state_tag, valid, version_held
from planner.api.examples import CONFIG, GPU, MODEL
from planner.api.filters import NumberPagination, paged
from planner.api.schema import LOCATION, F, operation, removal
from planner.api.serializers.hardware import (
    CarbonItem,
    FileRequest,
    GpuItem,
    GpuRequest,
    HardwareAdded,
    ModelDetail,
    ModelItem,
    ModelRequest,
    ModelSearch,
    PriceItem,
    PriceListKept,
    PriceListRequest,
    PriceSearch,
    Search,
)
from planner.api.serializers.strict_fields import Values
from planner.errors import CatalogueError
from planner.models import OwnGpu, OwnModel
from planner.selectors import hardware as known
from planner.services import hardware, imports

USUAL_GPU = "H100-SXM"  # a model's ``fit`` is for it, unless the request names another
MODELS = {"By its memory": MODEL, "By its config.json": CONFIG}
REFUSALS = (400, 403, 404, 409, 412, 413, 415, 422)  # statuses of refused changes


def listing(item: Any, search: Any = Search, **more: Any) -> Callable[[F], F]:
    """Return a decorator for an operation that lists ``item``s, with the query of ``search``."""
    return operation({200: item(many=True)}, 400, 404, parameters=[search], **more)


class EntryView(ApiView):
    """A GPU type or model, built in or your own."""

    request_class: ClassVar[Any]  # serializer of the request
    item_class: ClassVar[Any]  # serializer of the entry
    entry: ClassVar[Any]  # function that returns the entry of a name
    save: ClassVar[Any]  # function that stores an entry and returns its row

    def answer(self, name: str, code: int = status.HTTP_200_OK) -> Response:
        """Return the response with the entry of this name, and status ``code``.

        A user's entries have the ETag that If-Match accepts. Built-in entries have an ETag of their
        bytes.
        """
        entry = self.entry(name)
        headers = {"ETag": state_tag(entry.row, self.request)} if entry.row else {}
        return self.shown(self.item_class, entry, code, headers, **self.context())

    def save_request(self, row: Any = None) -> Response:
        """Save the request as a new entry, or in place of ``row``, and answer with the entry."""
        sent = checked(self.request_class(data=self.request.data))
        values = sent.validated_data
        saved = self.save(
            row=row,
            name=values["name"],
            facts=sent.facts(),
            user=self.user,
            source=values.get("source", ""),
            kind=values["kind"],
            version=version_held(self.request, row) if row else None,
        )
        return self.answer(saved.name, status.HTTP_200_OK if row else status.HTTP_201_CREATED)

    def context(self) -> Values:
        """Return the context of the entry's serializer, besides the request."""
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

    @listing(GpuItem, operation_id="hardware_gpus_list")
    def get(self, request: Request) -> Response:
        """List GPU types: built-in ones and your own."""
        search = valid(Search(data=request.query_params)).get("search", "")
        return paged(self, known.gpus_list(search), GpuItem, {"request": request})

    @operation(
        {201: GpuItem}, *REFUSALS,
        request=GpuRequest, parameters=[LOCATION], examples={"A GPU": GPU},
    )  # fmt: skip
    def post(self, request: Request) -> Response:
        """Add your own GPU type."""
        return self.save_request()


class GpuView(GpuEntry):
    @operation({200: GpuItem}, 400, 404)
    def get(self, request: Request, name: str) -> Response:
        """Get a GPU type with the source of each figure."""
        return self.answer(name)

    @operation({200: GpuItem}, *REFUSALS, request=GpuRequest, examples={"A GPU": GPU})
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

    @listing(ModelItem, ModelSearch, operation_id="hardware_models_list")
    def get(self, request: Request) -> Response:
        """List models and the memory that they need."""
        query = valid(ModelSearch(data=request.query_params))
        gpu = known.gpu_get(query.get("gpu") or USUAL_GPU).spec
        entries = known.models_list(query.get("search", ""))
        return paged(self, entries, ModelItem, {"request": request, "gpu": gpu})

    @operation(
        {201: ModelDetail}, *REFUSALS,
        request=ModelRequest, parameters=[LOCATION], examples=MODELS,
    )  # fmt: skip
    def post(self, request: Request) -> Response:
        """Add your own model."""
        return self.save_request()


class ModelView(ModelEntry):
    @operation({200: ModelDetail}, 400, 404)
    def get(self, request: Request, name: str) -> Response:
        """Get a model, its shape and the GPUs that it fits."""
        return self.answer(name)

    @operation({200: ModelDetail}, *REFUSALS, request=ModelRequest, examples=MODELS)
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

    @operation(
        {201: HardwareAdded}, 400, 403, 412, 413, 415, 422,
        request={"multipart/form-data": FileRequest},
    )  # fmt: skip
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
        return Response(HardwareAdded(added).data, status.HTTP_201_CREATED)


class PriceListView(ApiView):
    pagination_class = NumberPagination

    @listing(PriceItem, PriceSearch, operation_id="hardware_prices_list")
    def get(self, request: Request) -> Response:
        """List prices by provider, region and GPU; your own price lists come first."""
        query = valid(PriceSearch(data=request.query_params))
        filters = {name: value for name, value in query.items() if not name.startswith("page")}
        return paged(self, known.prices_list(**filters), PriceItem, {})


class PriceListsView(ApiView):
    parser_classes = [MultiPartParser]

    @operation(
        {201: PriceListKept}, 400, 403, 413, 415, 422,
        request={"multipart/form-data": PriceListRequest},
    )  # fmt: skip
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
        return Response(PriceListKept(answer).data, status.HTTP_201_CREATED)


class PriceListDetailView(ApiView):
    @removal
    def delete(self, request: Request, name: str) -> None:
        """Remove your own price list.

        It is refused while a scenario names the list.
        """
        hardware.price_list_delete(row=known.price_list_get(name), user=self.user)


class CarbonListView(ApiView):
    pagination_class = NumberPagination

    @listing(CarbonItem, operation_id="hardware_carbon_list")
    def get(self, request: Request) -> Response:
        """List carbon of the grid and PUE by region."""
        search = valid(Search(data=request.query_params)).get("search", "")
        return paged(self, known.carbon_list(search), CarbonItem, {})
