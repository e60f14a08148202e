"""What people do with their own account."""

from django.contrib import messages
from django.contrib.auth.views import LoginView, PasswordChangeView
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse_lazy
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_http_methods
from rest_framework.authtoken.models import Token

from planner.web.forms.widgets import dress


class Login(LoginView):
    template_name = "web/login.html"
    redirect_authenticated_user = True


class PasswordChange(PasswordChangeView):
    template_name = "web/password.html"
    success_url = reverse_lazy("web:home")

    def get_form(self, *args, **kwargs):  # type: ignore[no-untyped-def] - as the base class
        return dress(super().get_form(*args, **kwargs))

    def form_valid(self, form):  # type: ignore[no-untyped-def] - as the base class
        messages.success(self.request, "Your password is changed.")
        return super().form_valid(form)


@never_cache
@require_http_methods(["GET", "POST"])
def token(request: HttpRequest) -> HttpResponse:
    """Show the API token; POST replaces it, which ends the old one."""
    mine = Token.objects.filter(user=request.user)
    if request.method == "POST":
        mine.delete()
        Token.objects.create(user=request.user)
        return redirect("web:token")
    return render(request, "web/token.html", {"token": mine.first()})
