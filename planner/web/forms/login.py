"""The login form, with a limit on guessing passwords."""

from __future__ import annotations

import hashlib
import time
from typing import Any

from django.contrib.auth.forms import AuthenticationForm
from django.core.cache import cache
from django.core.exceptions import ValidationError

ATTEMPTS, WITHIN_S = 10, 60.0  # wrong passwords of one name; the name is what is guessed at


class LoginForm(AuthenticationForm):
    """Refuses a name for a while after too many wrong passwords, right ones too."""

    def clean(self) -> dict[str, Any]:
        name = str(self.cleaned_data.get("username") or "")
        key = f"login-page-{hashlib.sha256(name.casefold().encode()).hexdigest()}"
        recent = [at for at in cache.get(key, []) if at > time.time() - WITHIN_S]
        if len(recent) >= ATTEMPTS:
            raise ValidationError("Too many wrong passwords for this name; try again in a minute.")
        try:
            return super().clean()
        except ValidationError:
            cache.set(key, [*recent, time.time()], WITHIN_S)
            raise
