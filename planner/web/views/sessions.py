"""List a person's sessions and end them."""

from django.conf import settings
from django.contrib import messages
from django.http import HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_http_methods

from planner.services import sessions
from planner.services.refused_requests import limits_reached
from planner.web.forms.widgets import ZoneForm
from planner.web.request import Request


@never_cache
@require_http_methods(["GET", "POST"])
def own(request: Request) -> HttpResponse:
    """Show the person's own sessions; end one of them, or all except the current one."""
    current_key = sessions.row_key_of(request)
    if request.method == "POST":
        if key := request.POST.get("end", ""):
            sessions.session_end(user=request.user, key=key)
            messages.success(request, "Session ended.")
        else:
            sessions.sessions_end(user=request.user, by=request.user, except_key=current_key)
            messages.success(request, "All other sessions ended.")
        return redirect("web:sessions")
    here_zone = request.user.here.time_zone if request.user.here else "UTC"
    context = {
        "zone_form": ZoneForm(request.user.time_zone, here_zone),
        "limits": limits_reached(request.user),
        "sessions": sessions.sessions_of(request.user),
        "this": current_key,
        "hours": settings.SESSION_COOKIE_AGE // 3600,
    }
    return render(request, "web/sessions.html", context)
