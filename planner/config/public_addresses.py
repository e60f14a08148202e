"""List the addresses that answer strangers; all others need a session or a token.

The gate in ``planner.config.middleware``, docs/threat-model.md, ``bin/bench prelogin`` and the
tests read this list.
"""

STRANGER_BYTES = 65_536  # largest body that a public address reads from a stranger

# View name: what a stranger gets there. ``/static/`` holds scripts and styles and no data.
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
