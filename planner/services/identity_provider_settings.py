"""Read HEADROOM_OIDC_*: the identity provider, and the roles of the members of its groups."""

import os
import re
from collections.abc import Sequence
from typing import NamedTuple
from urllib.parse import urlsplit

from django.core.exceptions import ImproperlyConfigured

from planner.setting_checks import env_list, env_text, is_url

ROLES = ("viewer", "planner", "approver", "admin")  # from least to most rights
GRANT = re.compile(rf"(.+)=([^=:]+):({'|'.join(ROLES)})")  # GROUP=WORKSPACE:ROLE


class Grant(NamedTuple):
    """The role that members of a group of the identity provider get in a workspace."""

    group: str
    workspace: str  # its slug
    role: str


class IdentityProvider(NamedTuple):
    """The settings of the identity provider."""

    issuer: str
    client_id: str
    client_secret: str
    grants: tuple[Grant, ...]
    claim: str  # claim that lists the groups
    hosts: tuple[str, ...]  # further hosts of the provider, and private networks that they are in
    label: str  # of the button to sign in
    second_factor: bool  # a sign-in through the provider counts as a second factor


def identity_provider(
    *, hosts: Sequence[str] = (), second_factor: bool = False
) -> IdentityProvider | None:
    """Return the identity provider's settings; None if HEADROOM_OIDC_ISSUER is not set.

    ``hosts`` and ``second_factor`` are as in IdentityProvider. Raises ImproperlyConfigured if
    another setting is missing or wrong.
    """
    groups = env_list(
        "HEADROOM_OIDC_GROUPS",
        check=GRANT.fullmatch,
        give=f"GROUP=WORKSPACE:ROLE, the role one of {', '.join(ROLES)}, with commas between",
    )
    issuer = env_text(
        "HEADROOM_OIDC_ISSUER", check=_is_issuer, give="the https:// address of the provider"
    )
    if not issuer:
        return None
    client_id = _required_setting("HEADROOM_OIDC_CLIENT_ID")
    client_secret = _required_setting("HEADROOM_OIDC_CLIENT_SECRET")
    _required_setting("HEADROOM_OIDC_GROUPS")
    return IdentityProvider(
        issuer=issuer.rstrip("/"),
        client_id=client_id,
        client_secret=client_secret,
        grants=tuple(Grant(*grant) for text in groups for grant in GRANT.findall(text)),
        claim=env_text("HEADROOM_OIDC_CLAIM", "groups"),
        hosts=tuple(hosts),
        label=env_text("HEADROOM_OIDC_LABEL", "your organisation's account"),
        second_factor=second_factor,
    )


def _required_setting(name: str) -> str:
    """Return a variable that a provider needs; raise ImproperlyConfigured if it is not set."""
    value = os.environ.get(name, "").strip()  # a secret, which no message may repeat
    if not value:
        raise ImproperlyConfigured(f"HEADROOM_OIDC_ISSUER is set and {name} is not. Give both.")
    return value


def _is_issuer(text: str) -> bool:
    """Return whether ``text`` is an https address, or any address on this machine, for tests."""
    is_local = is_url(text) and urlsplit(text).hostname in ("127.0.0.1", "localhost")
    return is_local or is_url(text, schemes=("https",))
