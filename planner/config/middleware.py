"""Requests that are refused before anything reads them."""

from collections.abc import Callable

from django.conf import settings
from django.http import HttpRequest, HttpResponse, JsonResponse


class UploadLimitMiddleware:
    """Refuse a body above HEADROOM_MAX_UPLOAD_BYTES by its stated length, before it fills a disk.

    It stands before the CSRF check, which would read the whole body to find its token. A body
    without a stated length is read as empty, so there is no way around.
    """

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        length = request.META.get("CONTENT_LENGTH") or "0"
        limit = settings.HEADROOM_MAX_UPLOAD_BYTES
        if not length.isdecimal() or int(length) <= limit:
            return self.get_response(request)
        sentence = (
            f"The upload has {int(length):,} bytes and the limit is {limit:,}; compress the file "
            "(.gz or .zst), split it by time, or have HEADROOM_MAX_UPLOAD_BYTES raised."
        )
        if request.path.startswith("/api/"):
            problem = {"type": "about:blank", "title": "Too large", "status": 413}
            return JsonResponse(
                problem | {"detail": sentence}, status=413, content_type="application/problem+json"
            )
        return HttpResponse(sentence, status=413, content_type="text/plain; charset=utf-8")
