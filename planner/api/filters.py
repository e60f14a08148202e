"""Define the pagination, the filters and the ordering of lists."""

from collections.abc import Callable, Sequence
from typing import Any, ClassVar, TypeVar

import django_filters as filters
from django.db.models import Model, Q, QuerySet
from django_filters.rest_framework import DjangoFilterBackend
from drf_spectacular.utils import extend_schema_view
from rest_framework import generics
from rest_framework.exceptions import ValidationError
from rest_framework.filters import OrderingFilter
from rest_framework.pagination import CursorPagination, PageNumberPagination
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.serializers import BaseSerializer
from rest_framework.views import APIView

from planner.api.base import ApiView
from planner.api.schema import operation
from planner.api.serializers.fields import Values
from planner.inputs.ingest import FORMATS
from planner.models import ActivePlan, Proposal, Run, Scenario, Trace
from planner.selectors.active_plans import activated_plans
from planner.selectors.lookup import id_of

RowT = TypeVar("RowT", bound=Model)
V = TypeVar("V", bound="type[ListView[Any]]")


class NumberPagination(PageNumberPagination):
    """Pagination by ``page``, for lists in memory."""

    page_size = 50
    page_size_query_param = "page_size"
    max_page_size = 500
    invalid_page_message = "page: there is no such page; page 1 has the number of pages."


class _Cursor(CursorPagination):
    """Pagination by creation order, newest first.

    Keys are never reused. No row is skipped or repeated if others are added or removed meanwhile.
    """

    page_size = NumberPagination.page_size
    page_size_query_param = NumberPagination.page_size_query_param
    max_page_size = NumberPagination.max_page_size
    ordering = "-pk"

    def get_ordering(self, request: Request, queryset: QuerySet[Any], view: Any) -> tuple[str, ...]:
        # Ignore the ordering of the view: only keys give a stable cursor.
        return (self.ordering,)


class Pages(NumberPagination):
    """Pagination by ``page`` in the requested order, or by ``cursor`` in creation order.

    An empty cursor starts the list. The links ``next`` and ``previous`` continue it.
    """

    _cursor: _Cursor | None = None

    def paginate_queryset(
        self, queryset: Any, request: Request, view: APIView | None = None
    ) -> list[Any] | None:
        """Return the rows of the requested page.

        Raises ValidationError if a cursor is combined with ``page`` or ``ordering``.
        """
        if "cursor" not in request.query_params:
            return super().paginate_queryset(queryset, request, view)
        for name in ("page", "ordering"):
            if name in request.query_params:
                raise ValidationError(
                    {name: "With a cursor, rows are in order of creation. Leave it out."}
                )
        # Cursor pagination does not count, but every page of the API has ``count``.
        self._cursor, self._count = _Cursor(), queryset.count()
        return self._cursor.paginate_queryset(queryset, request, view)

    def get_paginated_response(self, data: Any) -> Response:
        """Return the page of rows, with the total count and links to the neighbouring pages."""
        if self._cursor is None:
            return super().get_paginated_response(data)
        response = self._cursor.get_paginated_response(data)
        return Response({"count": self._count, **response.data})

    def get_schema_operation_parameters(self, view: Any) -> list[Values]:
        """Return the parameters for the OpenAPI document, including ``cursor``."""
        cursor = {
            "name": "cursor",
            "in": "query",
            "required": False,
            "schema": {"type": "string"},
            "description": (
                "In place of a page: empty for the start, then the value of `next`. Rows made or "
                "removed meanwhile neither skip nor repeat others."
            ),
        }
        return [*super().get_schema_operation_parameters(view), cursor]


class ListView(ApiView, generics.ListAPIView[RowT]):
    """A list of rows in pages, which the decorator ``lists`` completes.

    It sets the serializer of a row, and ``rows``, the function that returns the rows. A view whose
    rows depend on the request overrides ``get_queryset`` instead. The docstring of the class is the
    description in the OpenAPI document.
    """

    pagination_class = Pages
    filter_backends: Sequence[Any] = ()
    rows: ClassVar[Callable[[], QuerySet[Any]]]

    def get_queryset(self) -> QuerySet[RowT]:
        return type(self).rows()


def lists(
    item: type[BaseSerializer[Any]],
    *,
    rows: Callable[[], QuerySet[Any]] | None = None,
    **operation_options: Any,
) -> Callable[[V], V]:
    """Return a class decorator that lets a ``ListView`` list rows with the serializer ``item``.

    ``rows`` returns the rows; None: the view overrides ``get_queryset``. ``operation_options`` go
    to ``operation``, which describes the view.
    """

    def describe(view: V) -> V:
        """Document the view as a list of ``item``, and serialize with it."""
        get = operation({200: item(many=True)}, **operation_options)
        described: Any = extend_schema_view(get=get)(view)
        described.serializer_class = item
        if rows is not None:
            described.rows = staticmethod(rows)
        return described  # type: ignore[no-any-return]

    return describe


def page_response(view: APIView, rows: list[Any], item: Any, context: Values) -> Response:
    """Return the requested page of ``rows``, a list in memory, written by the serializer ``item``.

    ``context`` is passed to the serializer.
    """
    pagination = NumberPagination()
    rows_of_page = pagination.paginate_queryset(rows, view.request, view=view)
    body = item(rows_of_page, many=True, context=context).data
    return pagination.get_paginated_response(body)


class StrictFilter(DjangoFilterBackend):  # type: ignore[misc]  # it has no types
    """Filters that refuse unknown parameters, so that a typo does not return the whole list."""

    def filter_queryset(self, request: Request, queryset: QuerySet[Any], view: Any) -> Any:
        """Filter rows by the query; raise ValidationError for an unknown parameter."""
        known = {"page", "page_size", "cursor", "ordering", *view.filterset_class.base_filters}
        renderer_parameter = view.settings.URL_FORMAT_OVERRIDE  # ``?format=`` is no filter
        for name in request.query_params:
            if name not in known and name != renderer_parameter:
                raise ValidationError(
                    {name: f"There is no such parameter. Choose from {', '.join(sorted(known))}."}
                )
        return super().filter_queryset(request, queryset, view)


class StrictOrdering(OrderingFilter):
    """Ordering that refuses unknown fields."""

    def get_ordering(self, request: Request, queryset: QuerySet[Any], view: Any) -> Any:
        """Return the fields to order by; raise ValidationError for a field that is not offered."""
        requested = request.query_params.get(self.ordering_param, "")
        for field in requested.split(","):
            if field and field.removeprefix("-") not in view.ordering_fields:
                known = ", ".join(view.ordering_fields)
                raise ValidationError(
                    {self.ordering_param: f"Cannot order by {field!r}. Choose from {known}."}
                )
        return super().get_ordering(request, queryset, view)


def _by_name_or_id(runs: QuerySet[Run], relation: str, name_or_id: str) -> QuerySet[Run]:
    """Return the runs whose ``relation`` (scenario or trace) has this name or id."""
    match = Q(**{f"{relation}__name": name_or_id})
    pk = id_of(name_or_id)
    if pk is not None:
        match |= Q(**{f"{relation}_id": pk})
    return runs.filter(match)


def _choice_filter(choices: Sequence[tuple[str, Any]]) -> filters.ChoiceFilter:
    """Return a filter by one of ``choices``; its error message lists them."""
    names = ", ".join(value for value, _ in choices)
    message = f"There is no '%(value)s'. Choose from {names}."
    return filters.ChoiceFilter(choices=choices, error_messages={"invalid_choice": message})


class RunFilter(filters.FilterSet):  # type: ignore[misc]
    kind = _choice_filter(Run.Kind.choices)
    state = _choice_filter(Run.State.choices)
    scenario = filters.CharFilter(method=_by_name_or_id, max_length=120, label="Its name or id")
    trace = filters.CharFilter(method=_by_name_or_id, max_length=120, label="Its name or id")

    class Meta:
        model = Run
        fields = ["kind", "state", "scenario", "trace"]


class ScenarioFilter(filters.FilterSet):  # type: ignore[misc]
    name = filters.CharFilter(lookup_expr="icontains", label="Part of the name")

    class Meta:
        model = Scenario
        fields = ["name"]


class ProposalFilter(filters.FilterSet):  # type: ignore[misc]
    state = _choice_filter(Proposal.State.choices)
    scenario = filters.CharFilter(
        field_name="scenario__name", max_length=120, label="Name of the scenario"
    )
    author = filters.CharFilter(
        field_name="author__username", max_length=150, label="Who proposed it"
    )
    run = filters.NumberFilter(field_name="run_id", min_value=1, max_value=2**31 - 1)

    class Meta:
        model = Proposal
        fields = ["state", "scenario", "author", "run"]


class ActivePlanFilter(filters.FilterSet):  # type: ignore[misc]
    scenario = filters.CharFilter(
        method="by_scenario", max_length=120, label="Name of the scenario, now or at activation"
    )

    def by_scenario(self, rows: QuerySet[ActivePlan], _: str, scenario: str) -> Any:
        return activated_plans(scenario).defer("pools")

    class Meta:
        model = ActivePlan
        fields = ["scenario"]


class TraceFilter(filters.FilterSet):  # type: ignore[misc]
    name = filters.CharFilter(lookup_expr="icontains", label="Part of the name")
    kind = _choice_filter(Trace.Kind.choices)
    state = _choice_filter(Trace.State.choices)
    format = filters.CharFilter(label=f"As detected or given: {', '.join(FORMATS)}")

    class Meta:
        model = Trace
        fields = ["name", "kind", "state", "format"]
