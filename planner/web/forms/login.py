"""The login form, with limits on guessing passwords."""

from __future__ import annotations

import logging
from typing import Any

from django.contrib.auth.forms import AuthenticationForm
from django.core.exceptions import ValidationError

from planner.services.guesses import guessed, guesses
from planner.services.unusual import refused_often
from planner.whence import address_of

logger = logging.getLogger(__name__)

ATTEMPTS = 10  # wrong passwords of one name: the name is what is guessed at
FROM_ONE_ADDRESS = 60  # of any names: one password tried on everybody


class LoginForm(AuthenticationForm):
    """Refuses a name, and an address, for a while after too many wrong passwords, right ones
    too."""

    def clean(self) -> dict[str, Any]:
        name = str(self.cleaned_data.get("username") or "")
        address = address_of(self.request)
        limits = (
            ("page", name.casefold(), ATTEMPTS, "for this name"),
            ("address", address, FROM_ONE_ADDRESS, "from your address"),
        )
        for kind, text, most, whose in limits:
            if guesses(kind, text) >= most:
                logger.warning("log-ins %s are refused: %.150r from %s", whose, name, address)
                about = f"as {name[:150]}" if kind == "page" else f"from {address}"
                refused_often(
                    f"Sign-ins {about} are refused for a while: {most} wrong passwords within a "
                    f"minute, the last from {address}.",
                    key=f"sign-ins {about}",
                    name=name if kind == "page" else "",
                )
                raise ValidationError(f"Too many wrong passwords {whose}; try again in a minute.")
        try:
            return super().clean()
        except ValidationError:
            logger.warning("wrong password for %.150r from %s", name, address)
            for kind, text, _, _ in limits:
                guessed(kind, text)
            raise
