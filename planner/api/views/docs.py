"""Serve the OpenAPI document, the page that shows it, and 404 for unknown addresses."""

from typing import Any

from django.contrib.auth.decorators import login_required
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.urls import Resolver404, resolve
from django.utils.decorators import method_decorator
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.http import conditional_page, require_safe
from drf_spectacular.utils import extend_schema
from drf_spectacular.views import SpectacularAPIView
from rest_framework.request import Request

from planner.api.errors import problem
from planner.api.openapi import document


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
def nothing_here(request: HttpRequest) -> HttpResponse:
    """Return 404 as a problem; if only the final slash is missing, name the right address."""
    detail = "Not found. /api/v1/docs/ lists every address."
    if not request.path.endswith("/") and _is_view(f"{request.path_info}/"):
        detail = f"Not found. Addresses end with a slash: {request.path}/"
    return problem(404, detail, request.path)


def _is_view(path: str) -> bool:
    """Return whether a view serves ``path``."""
    try:
        return resolve(path).func is not nothing_here
    except Resolver404:
        return False
