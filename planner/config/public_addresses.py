"""List the addresses that need no session or token; all others do.

The gate in ``planner.config.middleware``, docs/threat-model.md, ``bin/bench prelogin`` and the
tests read this list.
"""

MAX_BODY_BYTES_SIGNED_OUT = 65_536  # largest body that is read from somebody not signed in

# What everybody gets from each view. ``/static/`` has scripts and styles and no data.
PUBLIC: dict[str, str] = {
    "live": "whether the process answers",
    "ready": "whether the database answers",
    "health": "whether runs get done",
    "web:login": "the sign-in form",
    "web:login-code": "the form for the code of a second factor, after the right password",
    "web:provider": "a redirect to the identity provider",
    "web:provider-back": "the return from the identity provider",
    "web:welcome": "the form to choose a password, behind a link that works once",
    "web:password-forgotten": "the form to ask for such a link by mail",
    "api:token": "a token in exchange for a name and a password",
}
