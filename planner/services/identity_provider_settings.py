"""Read HEADROOM_OIDC_*: the identity provider, and the roles of the members of its groups."""

import os
from collections.abc import Sequence
from typing import NamedTuple
from urllib.parse import urlsplit

from django.core.exceptions import ImproperlyConfigured

from planner.setting_checks import is_url

ROLES = ("viewer", "planner", "approver", "admin")  # from least to most rights


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
    groups = os.environ.get("HEADROOM_OIDC_GROUPS", "").strip()
    grants = tuple(_parse_grant(text) for text in groups.split(",")) if groups else ()
    issuer = os.environ.get("HEADROOM_OIDC_ISSUER", "").strip().rstrip("/")
    if not issuer:
        return None
    is_local = is_url(issuer) and urlsplit(issuer).hostname in ("127.0.0.1", "localhost")
    if not is_local and not is_url(issuer, schemes=("https",)):
        raise ImproperlyConfigured(
            f"HEADROOM_OIDC_ISSUER is {issuer[:200]!r}. Give the https:// address of the provider."
        )
    client_id = _required_setting("HEADROOM_OIDC_CLIENT_ID")
    client_secret = _required_setting("HEADROOM_OIDC_CLIENT_SECRET")
    _required_setting("HEADROOM_OIDC_GROUPS")
    return IdentityProvider(
        issuer,
        client_id,
        client_secret,
        grants,
        os.environ.get("HEADROOM_OIDC_CLAIM", "").strip() or "groups",
        tuple(hosts),
        os.environ.get("HEADROOM_OIDC_LABEL", "").strip() or "your organisation's account",
        second_factor,
    )


def _required_setting(name: str) -> str:
    value = os.environ.get(name, "").strip()
    if not value:
        raise ImproperlyConfigured(f"HEADROOM_OIDC_ISSUER is set and {name} is not. Give both.")
    return value


def _parse_grant(text: str) -> Grant:
    """Return the grant that GROUP=WORKSPACE:ROLE states; raise ImproperlyConfigured if invalid."""
    group, _, access = text.strip().rpartition("=")
    workspace, _, role = access.partition(":")
    if not group or not workspace or role not in ROLES:
        raise ImproperlyConfigured(
            f"HEADROOM_OIDC_GROUPS has {text.strip()!r}. Give GROUP=WORKSPACE:ROLE, the role "
            f"one of {', '.join(ROLES)}, with commas between."
        )
    return Grant(group, workspace, role)
