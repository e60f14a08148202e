"""What people do with their own account."""

from typing import Any

from django.contrib import messages
from django.contrib.auth.views import LoginView, PasswordChangeView
from django.http import HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse_lazy
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_http_methods
from rest_framework.authtoken.models import Token

from planner.web.forms.login import LoginForm
from planner.web.forms.widgets import dress
from planner.web.request import Request


class Login(LoginView):
    template_name = "web/login.html"
    authentication_form = LoginForm
    redirect_authenticated_user = True


class PasswordChange(PasswordChangeView):
    template_name = "web/password.html"
    success_url = reverse_lazy("web:home")

    def get_form(self, form_class: Any = None) -> Any:
        return dress(super().get_form(form_class))

    def form_valid(self, form: Any) -> HttpResponse:
        messages.success(self.request, "Your password is changed.")
        return super().form_valid(form)


@never_cache
@require_http_methods(["GET", "POST"])
def token(request: Request) -> HttpResponse:
    """Show the API token; POST replaces it, which ends the old one."""
    tokens = Token.objects.filter(user=request.user)
    if request.method == "POST":
        tokens.delete()
        Token.objects.create(user=request.user)
        return redirect("web:token")
    return render(request, "web/token.html", {"token": tokens.first()})
