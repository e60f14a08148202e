"""Define the request type of pages, and the values that their templates show."""

from typing import Any

from django.http import HttpRequest
from django_htmx.middleware import HtmxDetails

from planner.models import User

TemplateContext = dict[str, Any]  # values of a template by name


class Request(HttpRequest):
    """A request of a signed-in user with htmx details; planner.web.errors.page ensures both."""

    user: User
    htmx: HtmxDetails
