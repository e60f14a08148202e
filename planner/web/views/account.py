"""Let people manage their own account and its sessions."""

from __future__ import annotations

from typing import Any

from django import forms
from django.conf import settings
from django.contrib import messages
from django.contrib.auth.forms import AuthenticationForm
from django.contrib.auth.views import LoginView, PasswordChangeView
from django.core.exceptions import ValidationError
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import redirect, render
from django.urls import reverse_lazy
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_http_methods, require_POST, require_safe

from planner.errors import PlannerError, TooManyAttempts
from planner.models import ApiToken
from planner.selectors.lookup import id_of
from planner.services import sessions, tokens
from planner.services.account_removal import account_data
from planner.services.client_address import client_network
from planner.services.login_limits import login_attempt
from planner.services.notifications import mail_configured
from planner.services.oidc import provider
from planner.services.passwords import (
    check_verified,
    needs_password,
    password_changed,
    password_forgotten,
)
from planner.services.people import time_zone_set
from planner.services.refused_requests import limits_reached
from planner.services.second_factor import factor_of
from planner.services.sessions import row_key_of
from planner.services.tokens import DEFAULT_DAYS, MAX_DAYS
from planner.web.form_responses import attempt, render_form
from planner.web.forms.widgets import DressedForm, ZoneForm, dress
from planner.web.request import Request, TemplateContext
from planner.web.views.second_factor import half_signed_in


class LoginForm(AuthenticationForm):
    """Django's sign-in form, with limits on attempts to guess a password."""

    def clean(self) -> dict[str, Any]:
        """Check name and password, which counts towards the limit of attempts."""
        try:
            assert self.request is not None  # argument of LoginView
            with login_attempt(self.request, str(self.cleaned_data.get("username") or "")):
                return super().clean()
        except TooManyAttempts as refusal:
            raise ValidationError(str(refusal)) from None


class Login(LoginView):
    template_name = "web/login.html"
    authentication_form = LoginForm
    redirect_authenticated_user = True
    extra_context = {"provider": provider}

    def form_valid(self, form: Any) -> HttpResponse:
        """Sign in; with a second factor, ask for its code first."""
        user = form.get_user()
        if factor_of(user) is not None:
            return half_signed_in(self.request, user, self.get_success_url())
        return super().form_valid(form)


class PasswordChange(PasswordChangeView):
    template_name = "web/password.html"
    success_url = reverse_lazy("web:home")

    def get_form(self, form_class: Any = None) -> Any:
        return dress(super().get_form(form_class))

    def form_valid(self, form: Any) -> HttpResponse:
        """Change the password, and end the user's other sessions."""
        answer = super().form_valid(form)
        password_changed(user=form.user, except_key=row_key_of(self.request))
        messages.success(self.request, "Password changed. All other sessions ended.")
        return answer


@never_cache
@require_http_methods(["GET", "POST"])
def forgotten(request: HttpRequest) -> HttpResponse:
    """Send a password mail, or say who can give a new password."""
    context: TemplateContext = {"mails": mail_configured()}
    problem: PlannerError | None = None
    if request.method == "POST":
        try:
            name = request.POST.get("username", "")
            password_forgotten(name=name, network=client_network(request))
            context["sent"] = True
        except PlannerError as refusal:
            problem = refusal
    return render_form(request, "web/forgotten.html", context, problem)


@never_cache
@require_http_methods(["GET", "POST"])
def token(request: Request) -> HttpResponse:
    """Create an API token, which is shown once, or revoke one."""
    if request.method != "POST":
        return _tokens(request, TokenForm())
    if "end" in request.POST:
        tokens.token_end(user=request.user, number=id_of(request.POST["end"]) or 0)
        messages.success(request, "Token ended.")
        return redirect("web:token")
    form = TokenForm(request.POST)

    def create() -> tokens.NewToken:
        """Create the token, if the user proved the password recently or does now."""
        check_verified(request, request.user, request.POST.get("again", ""))
        return tokens.token_create(user=request.user, **form.cleaned_data)

    new, problem = attempt(form, create)
    if new is None:
        return _tokens(request, form, problem=problem)
    return _tokens(request, TokenForm(), key=new.key)


@require_POST
def time_zone(request: Request) -> HttpResponse:
    """Set the time zone of the person, or of the workspace."""
    workspace = request.POST.get("whose") == "workspace"
    time_zone_set(by=request.user, name=request.POST.get("zone", ""), workspace=workspace)
    messages.success(request, "Time zone set.")
    return redirect("web:people" if workspace else "web:sessions")


@never_cache
@require_safe
def data(request: Request) -> HttpResponse:
    """Download everything stored about the person as one JSON file."""
    headers = {"Content-Disposition": 'attachment; filename="headroom-account.json"'}
    return JsonResponse(account_data(request.user, by=request.user), headers=headers)


def _tokens(
    request: Request, form: TokenForm, *, key: str = "", problem: Exception | None = None
) -> HttpResponse:
    """Show the page of API tokens; ``key`` is a new token, shown only now."""
    context = {
        "tokens": tokens.tokens_of(request.user),
        "form": form,
        "key": key,
        "again": needs_password(request),
    }
    return render_form(request, "web/token.html", context, problem)


class TokenForm(DressedForm):
    name = forms.CharField(
        label="Name", max_length=60, help_text="What it is for, such as nightly-plan."
    )
    scope = forms.ChoiceField(label="Rights", choices=ApiToken.Scope.choices)
    days = forms.IntegerField(
        label="Lifetime, days", min_value=1, max_value=MAX_DAYS, initial=DEFAULT_DAYS
    )


@never_cache
@require_http_methods(["GET", "POST"])
def own_sessions(request: Request) -> HttpResponse:
    """Show the person's own sessions; end one of them, or all except the current one."""
    current_key = sessions.row_key_of(request)
    if request.method == "POST":
        key_to_end = request.POST.get("end", "")
        if key_to_end:
            sessions.session_end(user=request.user, key=key_to_end)
            messages.success(request, "Session ended.")
        else:
            sessions.sessions_end(user=request.user, by=request.user, except_key=current_key)
            messages.success(request, "All other sessions ended.")
        return redirect("web:sessions")
    here_zone = request.user.here.time_zone if request.user.here else "UTC"
    context = {
        "factor": factor_of(request.user),
        "zone_form": ZoneForm(request.user.time_zone, here_zone),
        "limits": limits_reached(request.user),
        "sessions": sessions.sessions_of(request.user),
        "this": current_key,
        "hours": settings.SESSION_COOKIE_AGE // 3600,
    }
    return render(request, "web/sessions.html", context)
