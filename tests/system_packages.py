"""Install the programs of the system that the tests need, by apt-get where that may be done.

`.ci/run` calls it beside the setup of Python, so it imports only the standard library.
"""

import os
import shutil
import subprocess
import sys

from tests.programs import CHROMIUM, find_program


class Missing(Exception):
    """What the tests cannot do without, in one sentence."""


def install_missing() -> None:
    """Raises Missing when something is not installed and cannot be."""
    needed: dict[str, bool] = {
        "postgresql": bool(os.environ.get("DATABASE_URL") or find_program("initdb")),
        "redis-server": bool(os.environ.get("REDIS_URL") or find_program("redis-server")),
        "chromium": bool(find_program(*CHROMIUM)),
    }
    missing = [package for package, there in needed.items() if not there]
    wished = [] if find_program("prometheus") else ["prometheus"]  # its tests skip without it
    if not missing and not wished:
        return
    apt = shutil.which("apt-get")
    if apt is None or os.geteuid() != 0:
        if not missing:
            return
        raise Missing(
            f"The tests need {', '.join(missing)}. Install what is missing"
            " (or name running servers in DATABASE_URL and REDIS_URL), or run bin/test --core."
        )
    print(f"Installing {', '.join((*missing, *wished))} ...", file=sys.stderr)
    # RUNLEVEL: packages start no services of their own.
    quiet = {**os.environ, "DEBIAN_FRONTEND": "noninteractive", "RUNLEVEL": "1"}
    install = [apt, "install", "-y", "-q", "--no-install-recommends", *missing, *wished]
    for command in ([apt, "update", "-q"], install):
        failed = subprocess.run(command, env=quiet, stdout=sys.stderr, check=False).returncode
        if failed and missing:
            raise Missing(f"`{' '.join(command)}` failed. See its message above.")


if __name__ == "__main__":
    try:
        install_missing()
    except Missing as problem:
        sys.exit(str(problem))
