"""Define the request type of pages."""

from django.http import HttpRequest
from django_htmx.middleware import HtmxDetails

from planner.models import User


class Request(HttpRequest):
    """A request of a signed-in user with htmx details; planner.web.errors.page ensures both."""

    user: User
    htmx: HtmxDetails
