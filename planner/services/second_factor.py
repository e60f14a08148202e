"""Set up a second factor, confirm it, check it at every sign-in, and end it.

Codes are those of RFC 6238: six digits that change every 30 s, computed from a key that the app of
the user shares. The previous and the next code are accepted too, for clocks that differ. No code
works twice. The shared key is encrypted under SECRET_KEY, and recovery codes are stored as hashes,
so a stolen database is no second factor.
"""

import base64
import hashlib
import secrets
import time
from dataclasses import dataclass

import pyotp
from cryptography.fernet import Fernet, InvalidToken
from django.conf import settings
from django.db import transaction
from django.utils import timezone

from planner.errors import NotAllowed, NotReady, PlannerError
from planner.models import SecondFactor, User
from planner.models.workspace import current_workspace
from planner.services.access import check_may_administer
from planner.services.audit import record
from planner.services.login_limits import GuessLimit, guess
from planner.services.people import check_may_change_account

STEP_S = 30
RECOVERY_CODES = 10
RECOVERY_BYTES = 10  # 80 random bits cannot be found from a hash without salt
MAX_WRONG = 5  # wrong codes of one account within a minute; 3 of a million codes are right


class NotEnrolled(NotAllowed):
    """An error for an account without the second factor that it needs."""


@dataclass(frozen=True, slots=True)
class Enrolment:
    """The shared key of a new second factor, in the two forms that a page shows."""

    key: str  # for an authenticator app, base32
    address: str  # otpauth:// address, for a QR code


def factor_of(user: User) -> SecondFactor | None:
    """Return the confirmed second factor of a user, whose code a sign-in needs; None: no factor."""
    return SecondFactor.objects.filter(user=user, confirmed_at__isnull=False).first()


def is_required(user: User) -> bool:
    """Return whether the installation or the current workspace requires a second factor."""
    if settings.HEADROOM_REQUIRE_SECOND_FACTOR:
        return True
    return bool(user.workspaces) and current_workspace().second_factor


def check_enrolled(user: User) -> None:
    """Raise NotEnrolled if a second factor is required and the user has none."""
    if is_required(user) and factor_of(user) is None and not provider_checks_factor(user):
        raise NotEnrolled(
            "Everybody here needs a second factor. Set yours up under Account, Second factor."
        )


def provider_checks_factor(user: User) -> bool:
    """Return whether the user can only sign in by a provider that checks a second factor."""
    provider = settings.HEADROOM_OIDC
    if provider is None or not provider.second_factor or user.has_usable_password():
        return False
    return bool(user.identities.filter(issuer=provider.issuer).exists())


def factor_begin(*, user: User) -> Enrolment:
    """Create a shared key for a user; it takes effect once ``factor_confirm`` gets a code."""
    if factor_of(user) is not None:
        raise NotReady("You have a second factor. End it first, then set up another.")
    key = pyotp.random_base32()
    encrypted = _cipher().encrypt(key.encode()).decode("ascii")
    fresh = {"encrypted_key": encrypted, "last_step": 0, "recovery": []}
    SecondFactor.objects.update_or_create(user=user, defaults=fresh)
    return _enrolment(user, key)


def pending_enrolment(user: User) -> Enrolment | None:
    """Return the enrolment that still needs its first code, or None."""
    pending = SecondFactor.objects.filter(user=user, confirmed_at=None).first()
    return _enrolment(user, _decrypted_key(pending)) if pending else None


def factor_confirm(*, user: User, code: str) -> list[str]:
    """Confirm the shared key with a first code; return the recovery codes, for the user alone."""
    with guess(_code_limit(user)), transaction.atomic():
        rows = SecondFactor.objects.select_for_update()
        pending = rows.filter(user=user, confirmed_at=None).first()
        if pending is None:
            raise NotReady("No second factor is being set up. Start again.")
        if not _accept_code(pending, code):
            raise PlannerError("code: not the current code. Check the clock of your device.")
        codes = [secrets.token_hex(RECOVERY_BYTES) for _ in range(RECOVERY_CODES)]
        pending.recovery = [_hash(code) for code in codes]
        pending.confirmed_at = timezone.now()
        pending.save()
        record("user.second-factor", user, by=user, on=True)
    return codes


def factor_check(*, user: User, code: str) -> None:
    """Raise NotAllowed unless ``code`` is current or an unused recovery code; use it up."""
    with guess(_code_limit(user)):
        if not _use_code(user, code):
            record("user.refused", user.username, by=None, rule="second factor")
            raise NotAllowed("Wrong code. Give the current code, or an unused recovery code.")


@transaction.atomic
def _use_code(user: User, code: str) -> bool:
    """Return whether a code, current or for recovery, is correct, and if so mark it as used."""
    row = SecondFactor.objects.select_for_update().get(user=user, confirmed_at__isnull=False)
    hashed = _hash(_normalise_code(code))
    if hashed in row.recovery:
        row.recovery = [unused for unused in row.recovery if unused != hashed]
        row.save(update_fields=["recovery"])
        record("user.recovery-code", user, by=user, left=len(row.recovery))
        return True
    if _accept_code(row, code):
        row.save(update_fields=["last_step"])
        return True
    return False


def factor_end(*, user: User, code: str) -> None:
    """Remove one's own second factor; this needs one of its codes."""
    if factor_of(user) is None:
        raise NotReady("You have no second factor.")
    factor_check(user=user, code=code)
    SecondFactor.objects.filter(user=user).delete()
    record("user.second-factor", user, by=user, on=False)


def factor_reset(*, by: User | None, person: User) -> None:
    """Remove the second factor of a person who lost it, as an admin or (None) the command line."""
    check_may_administer(by)
    check_may_change_account(by, person, "end the second factor of")
    removed, _ = SecondFactor.objects.filter(user=person).delete()
    if not removed:
        raise NotReady(f"{person.username} has no second factor.")
    record("user.second-factor", person, by=by, on=False)


def _code_limit(user: User) -> GuessLimit:
    """Return the limit on wrong codes of a user, however they were sent."""
    return GuessLimit(
        kind="factor",
        target=str(user.pk),
        max_wrong=MAX_WRONG,
        log_key=f"codes of {user.username}",
        audit_sentence=f"Codes of {user.username}'s second factor were refused for a while: "
        f"{MAX_WRONG} wrong ones within a minute, after the right password.",
        guess_words="wrong codes",
        account_name=user.username,
    )


def _accept_code(row: SecondFactor, code: str) -> bool:
    """Return whether the code is unused and of the current time step or a neighbouring one.

    If so, set ``last_step`` of the row, without saving it.
    """
    plain_code = _normalise_code(code)
    totp = pyotp.TOTP(_decrypted_key(row), interval=STEP_S)
    current_step = int(time.time()) // STEP_S
    for step in (current_step - 1, current_step, current_step + 1):
        expected = totp.generate_otp(step).encode()
        is_equal = secrets.compare_digest(expected, plain_code.encode())
        if is_equal and step > row.last_step:  # no code works twice
            row.last_step = step
            return True
    return False


def _normalise_code(code: str) -> str:
    """Return a typed code without blanks and hyphens, in lower case."""
    return "".join(code.split()).replace("-", "").lower()[:64]


def _hash(code: str) -> str:
    return hashlib.sha256(code.encode()).hexdigest()


def _enrolment(user: User, key: str) -> Enrolment:
    """Return the key with the address that an authenticator app reads as a QR code."""
    address = pyotp.TOTP(key, interval=STEP_S).provisioning_uri(
        name=user.username, issuer_name="Headroom"
    )
    return Enrolment(key, address)


def _cipher() -> Fernet:
    """Return the cipher for shared keys, whose own key is derived from SECRET_KEY."""
    digest = hashlib.sha256(b"second factor " + settings.SECRET_KEY.encode()).digest()
    return Fernet(base64.urlsafe_b64encode(digest))


def _decrypted_key(row: SecondFactor) -> str:
    """Return the shared key; raise NotAllowed if SECRET_KEY changed since enrolment."""
    try:
        return str(_cipher().decrypt(row.encrypted_key.encode()), "ascii")
    except InvalidToken:
        raise NotAllowed(
            "The second factor was set up under another secret key. An admin "
            "can end it. Then set up another."
        ) from None
