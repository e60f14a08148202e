"""Define the sign-in form."""

from __future__ import annotations

from typing import Any

from django.contrib.auth.forms import AuthenticationForm
from django.core.exceptions import ValidationError

from planner.errors import TooManyAttempts
from planner.services.login_limits import login_attempt


class LoginForm(AuthenticationForm):
    """Django's sign-in form, with limits on attempts to guess a password."""

    def clean(self) -> dict[str, Any]:
        try:
            assert self.request is not None  # argument of LoginView
            with login_attempt(self.request, str(self.cleaned_data.get("username") or "")):
                return super().clean()
        except TooManyAttempts as refusal:
            raise ValidationError(str(refusal)) from None
