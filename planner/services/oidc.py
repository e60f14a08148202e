"""Sign in by an identity provider: OpenID Connect's authorization code flow with PKCE.

Authlib writes the requests and checks the claims against the specification. joserfc verifies
signatures. Requests to the provider use ``outgoing_requests``: to its listed hosts alone, without
redirects. Roles follow the provider's groups at every sign-in, in the workspaces that
HEADROOM_OIDC_GROUPS names and in no others.
"""

import hashlib
import json
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlencode, urlsplit

from authlib.common.encoding import to_unicode
from authlib.common.errors import AuthlibBaseError
from authlib.common.security import generate_token
from authlib.oauth2.auth import encode_client_secret_basic
from authlib.oauth2.rfc6749.parameters import prepare_grant_uri
from authlib.oauth2.rfc7636 import create_s256_code_challenge
from authlib.oidc.core import CodeIDToken
from django.conf import settings
from django.core.cache import cache
from django.db import transaction
from django.utils.crypto import constant_time_compare
from joserfc import jwt
from joserfc.errors import JoseError
from joserfc.jwk import KeySet

from planner.errors import NotAllowed, NotFound, PlannerError
from planner.models import ExternalIdentity, User
from planner.models.workspace import use_workspace, workspace_of
from planner.selectors.people import admins_active
from planner.services import outgoing_requests
from planner.services.audit import record
from planner.services.identity_provider_settings import ROLES, IdentityProvider

ALGORITHMS = ["RS256", "PS256", "ES256"]  # "none" and shared secrets (HS256) are not accepted
LEEWAY_S = 60
METADATA_CACHE_S = 600  # seconds for which the provider's metadata is cached
MAX_BYTES = 500_000
SCOPE = "openid profile email"
UNKNOWN_SIGN_IN = "This sign-in did not start here, or has expired. Sign in again."
Document = dict[str, Any]  # of the identity provider: metadata, tokens or claims


class ProviderFailed(PlannerError):
    """An error for an identity provider that responds wrongly or not at all."""

    title = "Signing in by the identity provider failed"


@dataclass(frozen=True, slots=True)
class PendingSignIn:
    """The random values that a session stores while its user is at the identity provider."""

    state: str  # returned with the user
    nonce: str  # returned in the ID token
    verifier: str  # of PKCE, proves that the code is exchanged by whoever requested it


def provider() -> IdentityProvider | None:
    """Return the configured identity provider; None if there is none."""
    configured: IdentityProvider | None = settings.HEADROOM_OIDC
    return configured


def sign_in_begin(*, return_url: str, verify_again: bool = False) -> tuple[str, PendingSignIn]:
    """Return the provider's URL to send the user to, and the data to store until they return.

    ``return_url`` is the address on this site to which the provider returns. With ``verify_again``,
    the provider must verify the user again, even one with an open session there.
    """
    idp = _configured_provider()
    pending = PendingSignIn(
        state=generate_token(40), nonce=generate_token(40), verifier=generate_token(64)
    )
    verify_options = {"prompt": "login", "max_age": "0"} if verify_again else {}
    url = prepare_grant_uri(
        _metadata(idp)["authorization_endpoint"],
        idp.client_id,
        "code",
        redirect_uri=return_url,
        scope=SCOPE,
        state=pending.state,
        nonce=pending.nonce,
        code_challenge=create_s256_code_challenge(pending.verifier),
        code_challenge_method="S256",
        **verify_options,
    )
    return str(url), pending


def sign_in_finish(
    *, pending: PendingSignIn, response: dict[str, str], return_url: str
) -> tuple[User, float]:
    """Check the provider's response; return the user, and when the provider verified them.

    That time is in epoch seconds, 0 if unknown. ``response`` has the parameters with which the
    provider sent the user back to ``return_url``. The user gets the roles of their groups. Raises
    NotAllowed for a sign-in that did not begin here, a refusal by the provider, or a user in no
    group with access. Raises ProviderFailed for an invalid response.
    """
    idp = _configured_provider()
    if not constant_time_compare(pending.state, response.get("state", "")):
        raise NotAllowed(UNKNOWN_SIGN_IN)
    if response.get("iss", idp.issuer) != idp.issuer:
        raise ProviderFailed("Another identity provider answered.")
    if "code" not in response:
        raise NotAllowed(
            f"The identity provider did not let you in: {response.get('error', '')[:80]}."
        )
    metadata = _metadata(idp)
    tokens = _tokens(idp, metadata, response["code"], pending.verifier, return_url)
    claims = _claims(idp, metadata, tokens, pending.nonce)
    if idp.claim not in claims and "userinfo_endpoint" in metadata:
        headers = {"Authorization": f"Bearer {tokens.get('access_token', '')}"}
        document = _request_json(idp, metadata["userinfo_endpoint"], headers=headers)
        if document.get("sub") != claims["sub"]:
            raise ProviderFailed(
                "The identity provider named another person than the one who signed in."
            )
        claims = document | claims  # those of the signed token win
    verified_at = claims.get("auth_time")
    verified_s = float(verified_at) if isinstance(verified_at, int | float) else 0.0
    return _account(idp, claims), verified_s


def _configured_provider() -> IdentityProvider:
    """Return the identity provider; raise NotFound if there is none."""
    idp = provider()
    if idp is None:
        raise NotFound("This installation has no identity provider. Sign in with a password.")
    return idp


def _metadata(idp: IdentityProvider) -> Document:
    """Return the provider's metadata; raise ProviderFailed if it names another issuer."""
    metadata = _cached_document(idp, f"{idp.issuer}/.well-known/openid-configuration")
    if str(metadata.get("issuer", "")).rstrip("/") != idp.issuer:
        raise ProviderFailed("The identity provider names another issuer than the configured one.")
    for endpoint in ("authorization_endpoint", "token_endpoint", "jwks_uri"):
        if not isinstance(metadata.get(endpoint), str):
            raise ProviderFailed(f"The identity provider does not say its {endpoint}.")
    return metadata


def _tokens(
    idp: IdentityProvider, metadata: Document, code: str, verifier: str, return_url: str
) -> Document:
    """Return the tokens that the provider gives for the authorization ``code``."""
    body = {
        "grant_type": "authorization_code",
        "code": code,
        "redirect_uri": return_url,
        "code_verifier": verifier,
    }
    client = SimpleNamespace(client_id=idp.client_id, client_secret=idp.client_secret)
    _, signed_headers, _ = encode_client_secret_basic(client, "POST", "", {}, "")
    headers = {
        "Content-Type": "application/x-www-form-urlencoded",
        "Authorization": to_unicode(signed_headers["Authorization"]),
    }
    return _request_json(idp, metadata["token_endpoint"], urlencode(body).encode(), headers)


def _claims(idp: IdentityProvider, metadata: Document, tokens: Document, nonce: str) -> Document:
    """Return the claims of the ID token; raise ProviderFailed if it is not valid.

    It must be signed by a key of the provider, be for this client and this sign-in (``nonce``), and
    not be expired.
    """
    try:
        token = _decode_token(idp, metadata, str(tokens.get("id_token", "")))
        options = {
            "iss": {"essential": True, "values": [idp.issuer, metadata["issuer"]]},
            "aud": {"essential": True, "value": idp.client_id},
        }
        params = {
            "nonce": nonce, "client_id": idp.client_id, "access_token": tokens.get("access_token")
        }  # fmt: skip
        CodeIDToken(token.claims, token.header, options, params).validate(leeway=LEEWAY_S)
    except PlannerError:
        raise
    except (JoseError, AuthlibBaseError, ValueError) as error:
        raise ProviderFailed(
            f"The identity provider's token is not valid ({type(error).__name__}). Sign in again."
        ) from None
    return dict(token.claims)


def _decode_token(idp: IdentityProvider, metadata: Document, token: str) -> jwt.Token:
    """Return the token after verifying its signature; fetch the keys again if none matches."""
    keys = _keys(idp, metadata)
    try:
        return jwt.decode(token, keys, algorithms=ALGORITHMS)
    except (JoseError, ValueError):
        return jwt.decode(token, _keys(idp, metadata, fresh=True), algorithms=ALGORITHMS)


def _keys(idp: IdentityProvider, metadata: Document, *, fresh: bool = False) -> KeySet:
    """Return the provider's public keys; ``fresh``: not from the cache."""
    document = _cached_document(idp, metadata["jwks_uri"], fresh=fresh)
    return KeySet.import_key_set({"keys": document.get("keys", [])})


@transaction.atomic
def _account(idp: IdentityProvider, claims: Document) -> User:
    """Return the account of the user in ``claims``, with the roles that their groups grant.

    The first sign-in creates the account. Raises NotAllowed if no group grants a role.
    """
    claimed_groups = claims.get(idp.claim)
    if isinstance(claimed_groups, str):
        claimed_groups = [claimed_groups]
    groups = {str(name) for name in claimed_groups or ()}
    role_by_workspace: dict[str, str] = {}  # the highest role that the groups grant
    for grant in idp.grants:
        if grant.group in groups:
            roles = (grant.role, role_by_workspace.get(grant.workspace, ROLES[0]))
            role_by_workspace[grant.workspace] = max(roles, key=ROLES.index)
    subject = str(claims["sub"])[:255]
    identity = ExternalIdentity.objects.filter(issuer=idp.issuer, subject=subject).first()
    if identity is None and not role_by_workspace:
        raise NotAllowed("None of your groups at the identity provider may enter. Ask an admin.")
    user = identity.user if identity else _create_account(idp, claims, subject)
    if not user.is_active:
        raise NotAllowed(f"The account {user.username} is disabled. Ask an admin.")
    changed = _sync_memberships(user, idp, role_by_workspace)
    record("user.provided", user, by=user, issuer=idp.issuer, changed=changed)
    return user


def _create_account(idp: IdentityProvider, claims: Document, subject: str) -> User:
    """Create an account for a subject; raise NotAllowed if its user name exists."""
    preferred = str(claims.get("preferred_username") or claims.get("email") or subject)
    name = User.normalize_username(preferred.strip())[:150]
    if User.objects.filter(username__iexact=name).exists():
        raise NotAllowed(
            f"An account {name} with a password already exists. An admin links it: "
            f"bin/manage user link {name} --subject {subject}"
        )
    user = User(username=name)
    user.set_unusable_password()
    user.full_clean(exclude=["password"])
    user.save()
    ExternalIdentity.objects.create(user=user, issuer=idp.issuer, subject=subject)
    return user


def _sync_memberships(
    user: User, idp: IdentityProvider, role_by_workspace: dict[str, str]
) -> dict[str, str]:
    """Give ``user`` the roles in ``role_by_workspace``, and return those that changed.

    A membership that no group grants ends, and its role in the result is "". The last admin of a
    workspace stays an admin.
    """
    changed: dict[str, str] = {}
    for slug in sorted({grant.workspace for grant in idp.grants}):
        workspace, role = workspace_of(slug), role_by_workspace.get(slug, "")
        current_role = user.role_in(workspace) or ""
        if role == current_role:
            continue
        with use_workspace(workspace):
            has_other_admins = admins_active().exclude(pk=user.pk).exists()
        if current_role == "admin" and not has_other_admins:
            continue
        if role:
            user.join(workspace, role)
        else:
            user.leave(workspace)
        changed[slug] = role
    return changed


def identity_link(*, person: User, subject: str) -> None:
    """Link an existing account to a person (``subject``) of the identity provider."""
    idp, subject = _configured_provider(), subject.strip()
    if not subject:
        raise PlannerError("--subject is missing. Give the sub of the person at the provider.")
    identity, new = ExternalIdentity.objects.get_or_create(
        issuer=idp.issuer, subject=subject, defaults={"user": person}
    )
    if identity.user_id != person.pk:
        raise NotAllowed(f"{subject} is already linked to {identity.user.username}.")
    if new:
        record("user.linked", person, by=None, issuer=idp.issuer, subject=subject)


def _cached_document(idp: IdentityProvider, url: str, *, fresh: bool = False) -> Document:
    """Return a public document of the provider, from the cache or (``fresh``) fetched."""
    key = f"oidc-{hashlib.sha256(url.encode()).hexdigest()}"
    document = None if fresh else cache.get(key)
    if document is None:
        document = _request_json(idp, url)
        cache.set(key, document, METADATA_CACHE_S)
    return dict(document)


def _request_json(
    idp: IdentityProvider,
    url: str,
    body: bytes | None = None,
    headers: dict[str, str] | None = None,
) -> Document:
    """Send a request, a POST if it has a ``body``, and return the JSON object of the response.

    Raises ProviderFailed if there is none.
    """
    allowed = outgoing_requests.parse_allowed([idp.issuer, *idp.hosts], "HEADROOM_OIDC_HOSTS")
    try:
        response = outgoing_requests.request(
            "GET" if body is None else "POST", url, allowed, body=body,
            headers={"Accept": "application/json", **(headers or {})}, max_bytes=MAX_BYTES,
        )  # fmt: skip
    except outgoing_requests.Unreachable as error:
        raise ProviderFailed(f"The identity provider cannot be reached: {error}") from None
    try:
        document = json.loads(response.body)
    except (ValueError, RecursionError):
        raise ProviderFailed(
            f"The identity provider answered {urlsplit(url).path} with no JSON."
        ) from None
    if response.status != 200 or not isinstance(document, dict):
        raise ProviderFailed(
            f"The identity provider refused {urlsplit(url).path} with status {response.status}."
        )
    return document
