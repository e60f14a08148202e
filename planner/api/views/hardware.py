"""GPU types, models, prices and carbon."""

from __future__ import annotations

from typing import Any

from rest_framework import status
from rest_framework.parsers import MultiPartParser
from rest_framework.request import Request
from rest_framework.response import Response

from planner.api import schema_hardware as schema
from planner.api.base import ApiView, state_tag, version_held
from planner.api.filters import Pages
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
    Search,
)
from planner.errors import CatalogueError
from planner.models import OwnGpu
from planner.selectors import hardware as known
from planner.services import hardware, imports

USUAL_GPU = "H100-SXM"


class GpuListView(ApiView):
    @schema.gpu_list
    def get(self, request: Request) -> Response:
        asked = valid(Search(data=request.query_params))
        entries = known.gpus_list(asked.get("search", ""))
        return paged(self, entries, GpuItem, {"request": request})

    @schema.gpu_post
    def post(self, request: Request) -> Response:
        given = GpuRequest(data=request.data)
        given.is_valid(raise_exception=True)
        return _gpu(request, _keep_gpu(self, given, None), status.HTTP_201_CREATED)


class GpuView(ApiView):
    @schema.gpu_get
    def get(self, request: Request, name: str) -> Response:
        return _gpu(request, name)

    @schema.gpu_put
    def put(self, request: Request, name: str) -> Response:
        given = GpuRequest(data=request.data)
        given.is_valid(raise_exception=True)
        return _gpu(request, _keep_gpu(self, given, known.own_gpu_get(name)))

    @schema.gpu_delete
    def delete(self, request: Request, name: str) -> Response:
        hardware.gpu_delete(gpu=known.own_gpu_get(name), user=self.user)
        return Response(status=status.HTTP_204_NO_CONTENT)


class ModelListView(ApiView):
    @schema.model_list
    def get(self, request: Request) -> Response:
        asked = valid(ModelSearch(data=request.query_params))
        gpu = known.gpu_get(asked.get("gpu") or USUAL_GPU).spec
        entries = known.models_list(asked.get("search", ""))
        return paged(self, entries, ModelItem, {"request": request, "gpu": gpu})

    @schema.model_post
    def post(self, request: Request) -> Response:
        given = ModelRequest(data=request.data)
        given.is_valid(raise_exception=True)
        return _model(request, _keep_model(self, given, None), status.HTTP_201_CREATED)


class ModelView(ApiView):
    @schema.model_get
    def get(self, request: Request, name: str) -> Response:
        return _model(request, name)

    @schema.model_put
    def put(self, request: Request, name: str) -> Response:
        given = ModelRequest(data=request.data)
        given.is_valid(raise_exception=True)
        return _model(request, _keep_model(self, given, known.own_model_get(name)))

    @schema.model_delete
    def delete(self, request: Request, name: str) -> Response:
        hardware.model_delete(model=known.own_model_get(name), user=self.user)
        return Response(status=status.HTTP_204_NO_CONTENT)


class HardwareFileView(ApiView):
    parser_classes = [MultiPartParser]

    @schema.hardware_file
    def post(self, request: Request) -> Response:
        given = valid(FileRequest(data=request.data))
        file = given["file"]
        kept = imports.hardware_import(
            user=self.user,
            data=file.read(imports.MAX_BYTES + 1),
            file_name=file.name,
            name=given.get("name", ""),
        )
        added = {
            "gpus": [row.name for row in kept if isinstance(row, OwnGpu)],
            "models": [row.name for row in kept if not isinstance(row, OwnGpu)],
        }
        return Response(HardwareAdded(added).data, status.HTTP_201_CREATED)


class PriceListView(ApiView):
    @schema.price_list
    def get(self, request: Request) -> Response:
        asked = valid(Search(data=request.query_params))
        return paged(self, known.prices_list(asked.get("search", "")), PriceItem, {})


class CarbonListView(ApiView):
    @schema.carbon_list
    def get(self, request: Request) -> Response:
        asked = valid(Search(data=request.query_params))
        return paged(self, known.carbon_list(asked.get("search", "")), CarbonItem, {})


def valid(given: Any) -> dict[str, Any]:
    given.is_valid(raise_exception=True)
    found: dict[str, Any] = given.validated_data
    return found


def paged(view: ApiView, rows: list[Any], item: Any, context: dict[str, Any]) -> Response:
    """A page of a list that is in memory."""
    pages = Pages()
    page = pages.paginate_queryset(rows, view.request, view=view)
    return pages.get_paginated_response(item(page, many=True, context=context).data)


def _keep_gpu(view: ApiView, given: GpuRequest, row: OwnGpu | None) -> str:
    said = given.validated_data
    kept = hardware.gpu_save(
        user=view.user,
        name=said["name"],
        given=given.given(),
        source=said.get("source", ""),
        kind=said["kind"],
        gpu=row,
        version=version_held(view.request, row) if row else None,
    )
    return kept.name


def _keep_model(view: ApiView, given: ModelRequest, row: Any) -> str:
    said, facts = given.validated_data, given.given()
    config = facts.pop("config", None)
    if config is not None and facts:
        raise CatalogueError(
            f"Model {said['name']}: its memory follows from config; leave out {', '.join(facts)}."
        )
    kept = hardware.model_save(
        user=view.user,
        name=said["name"],
        given=facts,
        spec=imports.model_of_config(said["name"], config) if config is not None else None,
        source=said.get("source", ""),
        kind=said["kind"],
        model=row,
        version=version_held(view.request, row) if row else None,
    )
    return kept.name


def _gpu(request: Request, name: str, code: int = status.HTTP_200_OK) -> Response:
    entry = known.gpu_get(name)
    body = GpuItem(entry, context={"request": request}).data
    return Response(body, code, headers=_headers(request, entry, body, code))


def _model(request: Request, name: str, code: int = status.HTTP_200_OK) -> Response:
    entry = known.model_get(name)
    gpus = [one.spec for one in known.gpus_list()]
    usual = known.gpu_get(USUAL_GPU).spec
    context = {"request": request, "gpu": usual, "gpus": gpus}
    body = ModelDetail(entry, context=context).data
    return Response(body, code, headers=_headers(request, entry, body, code))


def _headers(request: Request, entry: Any, body: Any, code: int) -> dict[str, str]:
    """Own things carry the ETag that If-Match takes; built-in ones one of their bytes."""
    headers = {"ETag": state_tag(entry.row, request)} if entry.row else {}
    if code == status.HTTP_201_CREATED:
        headers["Location"] = body["links"]["self"]
    return headers
