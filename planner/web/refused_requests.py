"""Log and count refused requests."""

import logging
from collections.abc import Callable

from django.http import HttpRequest, HttpResponse

from planner.models import User
from planner.services.client_address import client_address
from planner.services.refused_requests import count_refusal

logger = logging.getLogger(__name__)
# 404 is less notable: it also hides objects of other workspaces, and wrong addresses are common.
LEVELS = {401: logging.WARNING, 403: logging.WARNING, 404: logging.INFO, 429: logging.WARNING}


class RefusalsMiddleware:
    """Log each request to a page or the API that is not allowed, not found or too frequent."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        """Answer the request, and log and count it if it is refused."""
        answer = self.get_response(request)
        if answer.status_code in LEVELS:
            who = request.user.username if isinstance(request.user, User) else "nobody"
            count_refusal(answer.status_code, signed_in=isinstance(request.user, User))
            logger.log(
                LEVELS[answer.status_code],
                "refused with %d: %s %.200r by %.150r from %s",
                answer.status_code, request.method, request.path, who, client_address(request),
            )  # fmt: skip
        return answer
