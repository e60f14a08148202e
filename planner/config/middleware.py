"""Which workspace a request is about, and requests that are refused before anything reads them."""

from collections.abc import Callable
from functools import partial

from django.conf import settings
from django.contrib.auth import SESSION_KEY
from django.http import HttpRequest, HttpResponse, JsonResponse

from planner.models import User, Workspace
from planner.models.workspace import NoWorkspace, within
from planner.selectors.workspaces import workspace_last
from planner.services.sessions import session_noted

ENTERED = "workspace"  # its slug, in a session


class SessionsMiddleware:
    """That a session of somebody is used, and where, for the page that lists theirs."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        if SESSION_KEY in request.session:
            session_noted(request)
        return self.get_response(request)


class WorkspaceMiddleware:
    """A request is about the workspace that its session entered last, or the first of its user;
    what signs in by itself, as tokens do, enters another. A stranger is in none."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        with within(partial(_of_session, request)):
            return self.get_response(request)


def _of_session(request: HttpRequest) -> Workspace:
    if not isinstance(request.user, User):
        raise NoWorkspace("Nobody has signed in, so nothing says which workspace is meant.")
    return workspace_last(request.user, request.session.get(ENTERED, ""))


class UploadLimitMiddleware:
    """Refuse a body above HEADROOM_MAX_UPLOAD_BYTES by its stated length, before it fills a disk;
    from strangers, any body larger than a form.

    It is asked before the CSRF check looks at a view, which would read the whole body to find its
    token. A body without a stated length is read as empty, so there is no way around.
    """

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        length = request.META.get("CONTENT_LENGTH") or "0"
        size = int(length) if length.isdecimal() else 0
        limit, form = settings.HEADROOM_MAX_UPLOAD_BYTES, settings.DATA_UPLOAD_MAX_MEMORY_SIZE
        if size > limit:
            sentence = (
                f"The upload has {size:,} bytes and the limit is {limit:,}; compress the file "
                "(.gz or .zst), split it by time, or have HEADROOM_MAX_UPLOAD_BYTES raised."
            )
            return _refused(request, 413, "Too large", sentence)
        if size > form and not _has_credentials(request):
            return _refused(request, 401, "Log in first", f"Log in to send over {form:,} bytes.")
        return self.get_response(request)


def _has_credentials(request: HttpRequest) -> bool:
    """Signed in, or with a token that the API checks before it reads anything."""
    token = request.path.startswith("/api/") and "Authorization" in request.headers
    return token or request.user.is_authenticated


def _refused(request: HttpRequest, status: int, title: str, sentence: str) -> HttpResponse:
    if request.path.startswith("/api/"):
        problem = {"type": "about:blank", "title": title, "status": status, "detail": sentence}
        return JsonResponse(problem, status=status, content_type="application/problem+json")
    return HttpResponse(sentence, status=status, content_type="text/plain; charset=utf-8")
