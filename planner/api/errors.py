"""Convert every error of the API to problem+json (RFC 9457)."""

import logging
from collections.abc import Iterator
from typing import Any

from django.core.exceptions import PermissionDenied
from django.core.exceptions import ValidationError as ModelError
from django.http import Http404, JsonResponse
from rest_framework import exceptions
from rest_framework.views import set_rollback

from planner.errors import EXPECTED, TooManyAttempts, input_error_of, server_error_of, status_of

logger = logging.getLogger(__name__)

MEDIA_TYPE = "application/problem+json"
MAX_FAULT_CHARACTERS = 2000
TITLES = {
    400: "The request is not valid",
    401: "Log in first",
    403: "Not allowed",
    404: "Not found",
    405: "This address does not support this method",
    406: "Not available in this format",
    413: "Too large",
    415: "This content type is not supported",
    429: "Too many requests",
    500: "An error of the program",
    503: "The store of arrays does not answer",
}


def problem_handler(error: Exception, context: dict[str, Any]) -> JsonResponse:
    """Return the response to ``error``; it is DRF's EXCEPTION_HANDLER.

    Details of an unexpected error go to the log only.
    """
    # This handler swallows the exception, so mark the transaction for rollback here.
    set_rollback()
    request = context.get("request")
    method = getattr(request, "method", "")
    path = request.path if request is not None else ""
    # Bad input and unreachable servers also raise errors of libraries, such as OSError.
    explained = input_error_of(error) or server_error_of(error)
    if explained is not None:
        logger.warning("%s %s: %s", method, path, error, exc_info=error)
        error = explained
    if isinstance(error, EXPECTED):
        return _response_to_expected(error, path)
    error = _as_drf_error(error)
    if isinstance(error, exceptions.ValidationError):
        faults = list(_faults(error.detail))
        sentences = []
        for fault in faults:
            place = f"{fault['field']}: " if fault["field"] else ""
            sentences.append(f"{place}{fault['message']}")
        return problem(error.status_code, " ".join(sentences), path, errors=faults)
    if isinstance(error, exceptions.UnsupportedMediaType):
        parsers = getattr(context.get("view"), "parser_classes", ())
        accepted = " or ".join(dict.fromkeys(parser.media_type for parser in parsers))
        sent = getattr(request, "content_type", "") or "of no named type"
        detail = f"The body is {sent}. Send {accepted}, and set Content-Type."
        return problem(error.status_code, detail, path)
    if isinstance(error, exceptions.APIException):
        response = problem(error.status_code, str(error.detail), path)
        auth_header, wait_s = getattr(error, "auth_header", None), getattr(error, "wait", None)
        if auth_header:
            response["WWW-Authenticate"] = auth_header
        if wait_s:
            response["Retry-After"] = f"{wait_s:.0f}"
        return response
    logger.exception("%s %s", method, path, exc_info=error)
    return problem(500, "The program failed. See its log.", path)


def _as_drf_error(error: Exception) -> Exception:
    """Return Django's errors of access and validation as those of DRF, all others unchanged."""
    if isinstance(error, Http404):
        return exceptions.NotFound("Not found.")
    if isinstance(error, PermissionDenied):
        return exceptions.PermissionDenied()
    if isinstance(error, ModelError):
        return exceptions.ValidationError(
            error.message_dict if hasattr(error, "error_dict") else {"": error.messages}
        )
    return error


def _response_to_expected(error: Exception, path: str) -> JsonResponse:
    """Return the response to an expected error."""
    title = getattr(error, "title", "The request could not be carried out")
    choices = [choice._asdict() for choice in getattr(error, "choices", ())]
    answer = problem(status_of(error), str(error), path, title=title, choices=choices)
    if isinstance(error, TooManyAttempts):
        answer["Retry-After"] = str(error.wait_s)
    return answer


def problem(
    status: int,
    detail: str,
    instance: str,
    *,
    title: str = "",
    errors: list[dict[str, str]] | None = None,
    choices: list[dict[str, str]] | None = None,
) -> JsonResponse:
    """Return a response with a problem document (RFC 9457).

    ``instance`` is the path of the request. Each of ``errors`` has a ``field`` and a ``message``.
    ``choices`` are options for reading a file that would resolve the problem.
    """
    body: dict[str, Any] = {
        "type": "about:blank",
        "title": title or TITLES.get(status, "The request could not be carried out"),
        "status": status,
        "detail": detail,
        "instance": instance,
    }
    if errors:
        body["errors"] = errors
    if choices:
        body["choices"] = choices
    return JsonResponse(body, status=status, content_type=MEDIA_TYPE)


def _faults(detail: Any, field: str = "") -> Iterator[dict[str, str]]:
    """Yield {"field": dotted path, "message": text} for each message in DRF's nested ``detail``.

    ``field`` is the path of ``detail`` itself. A message may repeat a long input, so it is cut.
    """
    if isinstance(detail, dict):
        for name, inner in detail.items():
            path = field
            if name not in ("", "non_field_errors"):  # else it is of all fields together
                path = f"{field}.{name}" if field else str(name)
            yield from _faults(inner, path)
    elif isinstance(detail, list):
        for inner in detail:
            yield from _faults(inner, field)
    else:
        message = str(detail)
        if len(message) > MAX_FAULT_CHARACTERS:
            message = f"{message[:200]} ... {message[-200:]}"
        yield {"field": field, "message": message}
