"""Serve the OpenAPI document, the page that shows it, and 404 for unknown addresses."""

import hashlib
import importlib.metadata
import shutil
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

from django.contrib.auth.decorators import login_required
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.urls import Resolver404, resolve
from django.utils.decorators import method_decorator
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.http import conditional_page, require_safe
from drf_spectacular.renderers import OpenApiJsonRenderer, OpenApiYamlRenderer
from drf_spectacular.settings import spectacular_settings
from drf_spectacular.utils import extend_schema
from drf_spectacular.views import SpectacularAPIView
from rest_framework.request import Request

from planner.api.errors import problem
from planner.files.atomic_write import replace_folder
from planner.installation import ROOT
from planner.storage import row_arrays
from planner.version import VERSION

FOLDER = "openapi"
FORMATS = {"yaml": OpenApiYamlRenderer, "json": OpenApiJsonRenderer}
SOURCES = ("forecasting", "simulation", "planner")  # the document depends on these packages
LIBRARIES = ("django", "djangorestframework", "drf-spectacular")


@cache
def document(format: str) -> bytes:
    """Return the OpenAPI document in the ``format`` "yaml" or "json".

    drf-spectacular is not thread-safe while it creates its first document, which takes seconds on a
    busy machine. Therefore one thread of one process creates the document. All others wait and read
    the file.
    """
    folder = row_arrays.data_dir() / FOLDER / code_digest()
    with row_arrays.lock_folder(FOLDER, waiting=lambda: None):
        if not folder.exists():
            shutil.rmtree(folder.parent, ignore_errors=True)  # documents of earlier versions
            _write(folder)
        return (folder / f"openapi.{format}").read_bytes()


def _write(folder: Path) -> None:
    """Write the document in both formats; ``folder`` appears only when it is complete."""
    schema = spectacular_settings.DEFAULT_GENERATOR_CLASS().get_schema(request=None, public=True)
    with replace_folder(folder) as draft:
        for format, renderer in FORMATS.items():
            text: bytes = renderer().render(schema, renderer_context={})  # type: ignore[assignment]
            (draft / f"openapi.{format}").write_bytes(text)


@cache
def code_digest() -> str:
    """Return the release and a digest of all code that the document depends on, as one name."""
    digest = hashlib.sha256()
    for library in LIBRARIES:
        digest.update(importlib.metadata.version(library).encode())
    for package in SOURCES:
        root = ROOT / package
        for path in sorted([*root.rglob("*.py"), *root.rglob("*.yaml")]):
            digest.update(f"{path.relative_to(root)}\0".encode())
            digest.update(path.read_bytes())
    return f"{VERSION}-{digest.hexdigest()[:20]}"


@method_decorator(conditional_page, name="dispatch")  # an ETag, and 304 where it matches
class SchemaView(SpectacularAPIView):
    """The stored OpenAPI document, in the format that the request accepts: YAML or JSON."""

    @extend_schema(exclude=True)
    def get(self, request: Request, *args: Any, **kwargs: Any) -> HttpResponse:
        renderer = request.accepted_renderer
        headers = {"Content-Disposition": f'inline; filename="Headroom.{renderer.format}"'}
        return HttpResponse(document(renderer.format), renderer.media_type, headers=headers)


@require_safe
@login_required
def docs(request: HttpRequest) -> HttpResponse:
    """Show the OpenAPI document in Swagger UI, from local files."""
    return render(request, "api/docs.html")


@csrf_exempt  # it changes nothing; a POST also gets 404
def not_found(request: HttpRequest) -> HttpResponse:
    """Return 404 as a problem document; it names the address if only a final slash is missing."""
    detail = "Not found. /api/v1/docs/ lists every address."
    if not request.path.endswith("/"):
        with suppress(Resolver404):
            if resolve(f"{request.path_info}/").func is not not_found:
                detail = f"Not found. Addresses end with a slash: {request.path}/"
    return problem(404, detail, request.path)
