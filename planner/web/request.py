"""The request as a page sees it."""

from django.http import HttpRequest
from django_htmx.middleware import HtmxDetails

from planner.models import User


class Request(HttpRequest):
    """Signed in (planner.web.errors.page sees to it), with what htmx says about itself."""

    user: User
    htmx: HtmxDetails
