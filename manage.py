#!/usr/bin/env python
"""Django's command line; `bin/manage` runs it in the virtual environment."""

import os
import sys

from django.core.management import execute_from_command_line

from planner.version import VERSION

if __name__ == "__main__":
    if sys.argv[1:] in (["--version"], ["version"]):
        sys.stdout.write(f"Headroom {VERSION}\n")
        sys.exit(0)
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "planner.config.settings")
    execute_from_command_line(sys.argv)
