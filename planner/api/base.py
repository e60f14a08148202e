"""Define the base of every view: access, limits of requests, ETags and answers to started runs."""

from collections.abc import Mapping
from typing import Any, TypeVar

from django.conf import settings
from django.utils.decorators import method_decorator
from django.views.decorators.http import conditional_page
from rest_framework import exceptions, status
from rest_framework.authentication import SessionAuthentication
from rest_framework.permissions import IsAuthenticated
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.reverse import reverse
from rest_framework.serializers import BaseSerializer
from rest_framework.throttling import BaseThrottle, UserRateThrottle
from rest_framework.views import APIView

from planner.api.authentication import TokenAuthentication
from planner.api.parsers import BoundedJsonParser
from planner.api.serializers.fields import Values
from planner.api.serializers.runs import RunDetail
from planner.errors import NotFound, VersionConflict
from planner.models import ApiToken, OwnGpu, OwnModel, Run, Scenario, User
from planner.models.workspace import current_workspace, enter
from planner.selectors.people import workspace_for
from planner.services.access import check_may_administer
from planner.services.client_address import client_network
from planner.services.refused_requests import record_limit_reached
from planner.services.second_factor import check_enrolled


class PersonThrottle(UserRateThrottle):
    """A limit on the requests of a user, over all of their tokens and sessions."""

    scope = "person"

    def get_rate(self) -> str:
        return f"{settings.HEADROOM_API_REQUESTS}/min"

    def get_ident(self, request: Request) -> str:
        return client_network(request._request)

    def allow_request(self, request: Request, view: APIView) -> bool:
        """Return whether the request is within the limit; record it if it is refused."""
        allowed = super().allow_request(request, view)
        if not allowed:
            name = request.user.get_username()
            record_limit_reached(
                f"Requests of {name} to the API are refused: more than "
                f"{settings.HEADROOM_API_REQUESTS:,} a minute.",
                key=f"requests of {name}",
                name=name,
            )
        return allowed


KEY_HEADER = "Idempotency-Key"
WORKSPACE_HEADER = "Headroom-Workspace"
KEY_CHARACTERS = 120  # most characters of an idempotency key
MAX_VERSION_DIGITS = 9  # these fit the integers of the database
Checked = TypeVar("Checked", bound=BaseSerializer[Any])
Versioned = Scenario | OwnGpu | OwnModel


class TooLarge(exceptions.APIException):
    """The body exceeds the size limit."""

    status_code = status.HTTP_413_REQUEST_ENTITY_TOO_LARGE


# Scripts use tokens, browsers use sessions with CSRF tokens. Services check roles. The answer to
# GET has an ETag of its bytes unless its view sets another, and is 304 on a match.
# No docstring: the schema would repeat it for every operation.
@method_decorator(conditional_page, name="dispatch")
class ApiView(APIView):
    authentication_classes = [TokenAuthentication, SessionAuthentication]
    permission_classes = [IsAuthenticated]
    parser_classes = [BoundedJsonParser]
    throttle_classes: list[type[BaseThrottle]] = [PersonThrottle]
    needs_factor = True  # applies if the workspace requires a second factor
    for_admins = False  # only for admins of the workspace

    @property
    def user(self) -> User:
        """Return the user of the request; for views that require a login."""
        assert isinstance(self.request.user, User)
        return self.request.user

    def row_response(
        self,
        serializer: type[BaseSerializer[Any]],
        row: Any,
        code: int = status.HTTP_200_OK,
        headers: Mapping[str, str] | None = None,
        **context: Any,
    ) -> Response:
        """Return the response with ``row``, as the class ``serializer`` writes it.

        ``context`` is passed to the serializer. For any ``code`` but 200, such as 201 (created),
        the header Location has the address of the row.
        """
        body = serializer(row, context={"request": self.request, **context}).data
        # Serializers of rows have the address as ``link``, or as ``self`` among their ``links``.
        address = body.get("link") or body.get("links", {}).get("self")
        all_headers = dict(headers or {})
        if code != status.HTTP_200_OK and address:
            all_headers.setdefault("Location", address)
        return Response(body, code, headers=all_headers)

    def finalize_response(
        self, request: Request, response: Response | None, *args: Any, **kwargs: Any
    ) -> Response:
        """Return the response of the view, or 204 (no content) if it returned none."""
        if response is None:
            response = Response(status=status.HTTP_204_NO_CONTENT)
        return super().finalize_response(request, response, *args, **kwargs)

    def initial(self, request: Request, *args: Any, **kwargs: Any) -> None:
        """Enter the workspace, and check second factor, role and the size of the body."""
        super().initial(request, *args, **kwargs)
        if isinstance(request.user, User):
            _enter(request, request.user)
            if self.needs_factor:
                check_enrolled(request.user)
            if self.for_admins:
                check_may_administer(request.user)
        # Uploads stream to a file and have a separate limit; other bodies are held in memory.
        is_upload = (request.content_type or "").startswith("multipart/")
        body_bytes = int(request.META.get("CONTENT_LENGTH") or 0)
        max_bytes = settings.DATA_UPLOAD_MAX_MEMORY_SIZE
        if body_bytes > max_bytes and not is_upload:
            raise TooLarge(f"The body has {body_bytes:,} bytes; {max_bytes:,} are allowed here.")


def _enter(request: Request, user: User) -> None:
    """Enter the workspace of the request.

    A token determines the workspace; the header may only repeat it. A session uses the workspace of
    the header, or else its current one. Raises NotFound if the user does not belong to the
    workspace.
    """
    requested_slug = request.headers.get(WORKSPACE_HEADER, "").strip()
    if not requested_slug:
        current_workspace()  # raises an error if there is none
    elif not isinstance(request.auth, ApiToken):
        enter(workspace_for(user, requested_slug))
    elif requested_slug != current_workspace().slug:
        raise NotFound(
            f"This token is of workspace {current_workspace().slug}. Make one in "
            f"{requested_slug[:40]}."
        )


def validated(body: Checked) -> Checked:
    """Return the serializer after validation; raises ValidationError."""
    body.is_valid(raise_exception=True)
    return body


def valid(body: BaseSerializer[Any]) -> Values:
    """Return the validated values of a serializer; raises ValidationError."""
    values: Values = validated(body).validated_data
    return values


def idempotency_key(request: Request) -> str:
    """Return the idempotency key of the request, or ""."""
    key = request.headers.get(KEY_HEADER, "").strip()
    if len(key) > KEY_CHARACTERS:
        raise exceptions.ValidationError(
            {KEY_HEADER: f"A key has at most {KEY_CHARACTERS} characters, not {len(key)}."}
        )
    return key


def state_tag(row: Versioned, request: Request) -> str:
    """Return the ETag of the current version of ``row``, in the format that the request accepts.

    Ids of rows are never reused and versions only grow, so no two versions have the same ETag.
    """
    return f'"{row.pk}-{row.version}-{request.accepted_renderer.format}"'


def version_of_client(request: Request, row: Versioned) -> int | None:
    """Return the version of ``row`` in the header If-Match; None if the header is missing or "*".

    An ETag is "ID-VERSION-FORMAT" of a row; any format counts. The caller's service checks whether
    the version is still current. Raises VersionConflict if no ETag in the header is of ``row``.
    """
    header = request.headers.get("If-Match", "").strip()
    if header in ("", "*"):
        return None
    for etag in header.split(","):
        pk, _, version_and_format = etag.strip().strip('"').partition("-")
        version, _, _ = version_and_format.partition("-")
        is_version = version.isdecimal() and len(version) <= MAX_VERSION_DIGITS
        if pk == str(row.pk) and is_version:
            return int(version)
    raise VersionConflict(
        f"If-Match is {header}, which was never an ETag of {row.name}. Load it again and "
        "repeat your changes."
    )


def run_response(run: Run, request: Request, body: Any = None) -> Response:
    """Return 202 with the address of a started run in Location, or 200 if the run has finished.

    ``body`` is the body of the response; None: the run itself. A run may have finished if the
    client repeated a request with the same idempotency key.
    """
    if body is None:
        body = RunDetail(run, context={"request": request}).data
    headers = {"Location": reverse("api:run", kwargs={"run_id": run.pk}, request=request)}
    if run.is_finished:
        return Response(body, headers=headers)
    headers["Retry-After"] = "1"
    return Response(body, status.HTTP_202_ACCEPTED, headers=headers)
