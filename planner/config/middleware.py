"""Set the workspace of a request, note its session, and refuse bodies before they are read."""

from collections.abc import Callable
from datetime import UTC
from functools import partial

from django.conf import settings
from django.contrib.auth import SESSION_KEY
from django.contrib.auth.views import redirect_to_login
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.urls import Resolver404, resolve

from planner.config.public_addresses import MAX_BODY_BYTES_SIGNED_OUT, PUBLIC
from planner.domain.formats import ZONE
from planner.models import User, Workspace
from planner.models.workspace import NoWorkspace, use_workspace
from planner.selectors.people import last_workspace
from planner.services.login_limits import remember_browser
from planner.services.sessions import session_touch
from planner.services.tokens import token_of

ENTERED = "workspace"  # in a session: the slug of the workspace that the user entered last
API = "/api/"


class SessionsMiddleware:
    """Middleware that records the use of a session, and after a sign-in remembers the browser."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        user_before = request.session.get(SESSION_KEY)
        if user_before is not None:
            session_touch(request)
        response = self.get_response(request)
        user_after = request.session.get(SESSION_KEY)
        if user_after is not None and user_after != user_before:  # just signed in
            remember_browser(response, user_after)
        return response


class WorkspaceMiddleware:
    """Middleware that sets the workspace and the time zone of a request.

    The workspace is the one that the session entered last, or the user's first. Authentication by a
    token sets the token's workspace later. People who have not signed in are in no workspace.
    """

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        with use_workspace(partial(_workspace_of_session, request)):
            token = ZONE.set(request.user.zone if isinstance(request.user, User) else UTC)
            try:
                return self.get_response(request)
            finally:
                ZONE.reset(token)


def _workspace_of_session(request: HttpRequest) -> Workspace:
    """Return the workspace that the session entered last, or the user's first one.

    Raises NoWorkspace if nobody has signed in.
    """
    if not isinstance(request.user, User):
        raise NoWorkspace("No workspace: nobody has signed in.")
    return last_workspace(request.user, request.session.get(ENTERED, ""))


class BodyGateMiddleware:
    """Middleware that refuses a request's body before anything reads it.

    It runs before every view and before the CSRF check, which would read a whole body to find its
    token. Without a valid session or token, a body may go to the addresses of ``PUBLIC`` only, and
    have at most MAX_BODY_BYTES_SIGNED_OUT. With one, it may have HEADROOM_MAX_UPLOAD_BYTES. The web
    server closes the connection after a body that nothing read (``web_workers.pre_request``).
    """

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        return _body_refusal(request) or self.get_response(request)


def _body_refusal(request: HttpRequest) -> HttpResponse | None:
    """Return the answer that refuses a request's body; None if it may be read."""
    if "Transfer-Encoding" in request.headers:
        return _refusal(
            request, 411, "Length needed", "The body has no Content-Length. Send it with one."
        )
    length = request.META.get("CONTENT_LENGTH") or "0"
    body_bytes = int(length) if length.isdecimal() else 0
    if body_bytes == 0:
        return None
    is_signed_in = _is_signed_in(request)
    if not is_signed_in and not _is_public(request):
        return _log_in_first(request, body_bytes)
    max_bytes = MAX_BODY_BYTES_SIGNED_OUT
    sentence = f"Sign in to send more than {max_bytes:,} bytes."
    if is_signed_in:
        max_bytes = settings.HEADROOM_MAX_UPLOAD_BYTES
        sentence = (
            f"The upload has {body_bytes:,} bytes and the limit is {max_bytes:,}. Compress the "
            "file (.gz or .zst), split it by time, or ask for a larger HEADROOM_MAX_UPLOAD_BYTES."
        )
    return _refusal(request, 413, "Too large", sentence) if body_bytes > max_bytes else None


def _is_signed_in(request: HttpRequest) -> bool:
    """Return whether the request has a valid session, or below /api/ a valid token."""
    if request.user.is_authenticated:
        return True
    kind, _, key = request.headers.get("Authorization", "").partition(" ")
    is_api = request.path_info.startswith(API)
    return is_api and kind == "Token" and token_of(key) is not None


def _is_public(request: HttpRequest) -> bool:
    """Return whether the address needs no session or token."""
    try:
        return resolve(request.path_info).view_name in PUBLIC
    except Resolver404:
        return False


def _log_in_first(request: HttpRequest, body_bytes: int) -> HttpResponse:
    """Return the answer to a body from somebody who has not signed in.

    A form of a page, whose session has probably ended, leads to the sign-in form.
    """
    is_form = body_bytes <= MAX_BODY_BYTES_SIGNED_OUT and not _is_script(request)
    if is_form and request.headers.get("HX-Request"):
        return HttpResponse(status=204, headers={"HX-Refresh": "true"})
    if is_form:
        return redirect_to_login(request.get_full_path())
    sentence = "Log in first, with a session or a token that is valid. The body was not read."
    answer = _refusal(request, 401, "Log in first", sentence)
    answer["WWW-Authenticate"] = "Token"
    return answer


def _refusal(request: HttpRequest, status: int, title: str, sentence: str) -> HttpResponse:
    """Return a refusal: problem+json for scripts, one sentence for browsers."""
    if not _is_script(request):
        return HttpResponse(sentence, status=status, content_type="text/plain; charset=utf-8")
    problem = {
        "type": "about:blank", "title": title, "status": status, "detail": sentence,
        "instance": request.path,
    }  # fmt: skip
    return JsonResponse(problem, status=status, content_type="application/problem+json")


def _is_script(request: HttpRequest) -> bool:
    """Return whether the request is of the API, or of a script of a page."""
    is_api = request.path_info.startswith(API)
    return is_api or request.headers.get("Accept") == "application/json"
