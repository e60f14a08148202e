"""Set up a second factor, and ask for it between the password and the sign-in."""

import time
from typing import Any

import segno
from django import forms
from django.contrib import messages
from django.contrib.auth import login
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.utils.crypto import constant_time_compare
from django.views.decorators.cache import never_cache
from django.views.decorators.debug import sensitive_post_parameters
from django.views.decorators.http import require_http_methods

from planner.errors import PlannerError
from planner.models import User
from planner.services import second_factor
from planner.services.passwords import check_verified, needs_password
from planner.web.form_responses import render_form
from planner.web.forms.widgets import DressedForm
from planner.web.request import Request

HALF = "half-signed-in"  # session key: user whose password was right, who is not signed in yet
HALF_S = 300.0  # time to give the code
BACKEND = "django.contrib.auth.backends.ModelBackend"
NOT_CODE = "Give a code of your authenticator, or a recovery code."


def half_signed_in(request: HttpRequest, user: User, goal: str) -> HttpResponse:
    """Remember in the session that the password was correct, and ask for a code next."""
    request.session.cycle_key()
    request.session[HALF] = {
        "user": user.pk, "hash": user.get_session_auth_hash(), "at": time.time(), "goal": goal
    }  # fmt: skip
    return redirect("web:login-code")


@never_cache
@sensitive_post_parameters("code")
@require_http_methods(["GET", "POST"])
def ask(request: HttpRequest) -> HttpResponse:
    """Ask for the current code, or for a recovery code if the device is lost."""
    user = _half_signed_in_user(request)
    if user is None:
        request.session.pop(HALF, None)
        return redirect("web:login")
    if request.method != "POST":
        return render(request, "web/login_code.html", {"form": CodeForm()})
    form = CodeForm(request.POST)
    problem = PlannerError(NOT_CODE)
    if form.is_valid():
        try:
            second_factor.factor_check(user=user, code=form.cleaned_data["code"])
            goal = request.session.pop(HALF)["goal"]
            login(request, user, backend=BACKEND)
            return redirect(goal)
        except PlannerError as refusal:
            problem = refusal
    return render_form(request, "web/login_code.html", {"form": form}, problem)


@never_cache
@sensitive_post_parameters("code")
@require_http_methods(["GET", "POST"])
def own(request: Request) -> HttpResponse:
    """Set up the user's own second factor, confirm it, or remove it with a code."""
    if request.method != "POST":
        return _render_second_factor(request)
    user, action = request.user, request.POST.get("deed", "")
    form = CodeForm(request.POST)
    try:
        if action == "begin":
            check_verified(request, user, request.POST.get("again", ""))
            second_factor.factor_begin(user=user)
            return redirect("web:second-factor")
        if not form.is_valid():
            return _render_second_factor(request, problem=PlannerError(NOT_CODE), form=form)
        code = form.cleaned_data["code"]
        if action == "end":
            second_factor.factor_end(user=user, code=code)
            messages.success(request, "Your second factor is ended.")
            return redirect("web:second-factor")
        recovery_codes = second_factor.factor_confirm(user=user, code=code)
        return _render_second_factor(request, recovery=recovery_codes)
    except PlannerError as refusal:
        return _render_second_factor(request, problem=refusal, form=form)


def _half_signed_in_user(request: HttpRequest) -> User | None:
    """Return the user who entered the correct password at most HALF_S seconds ago.

    The result is None if the account is disabled or its password has changed since.
    """
    half = request.session.get(HALF)
    if half is None or not 0 <= time.time() - half["at"] <= HALF_S:
        return None
    user = User.objects.filter(pk=half["user"], is_active=True).first()
    if user is None or not constant_time_compare(half["hash"], user.get_session_auth_hash()):
        return None
    return user


def _render_second_factor(
    request: Request, *, problem: Exception | None = None, **context: Any
) -> HttpResponse:
    """Show the user's second factor, with a QR code while its set-up waits for the first code."""
    begun = second_factor.pending_enrolment(request.user)
    picture = ""
    if begun:
        picture = segno.make(begun.address).svg_data_uri(scale=5, border=4, light="white")
    context = {"form": CodeForm()} | context | {
        "factor": second_factor.factor_of(request.user),
        "required": second_factor.is_required(request.user),
        "begun": begun,
        "again": needs_password(request),
        "picture": picture,
    }  # fmt: skip
    return render_form(request, "web/second_factor.html", context, problem)


class CodeForm(DressedForm):
    code = forms.CharField(
        label="Code",
        max_length=64,
        widget=forms.TextInput(
            attrs={"autocomplete": "one-time-code", "inputmode": "text", "autocapitalize": "none"}
        ),
    )
