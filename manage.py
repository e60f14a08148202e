#!/usr/bin/env python
"""Django's command line; `bin/manage` runs it in the virtual environment."""

import os
import sys

from django.core.management import execute_from_command_line

if __name__ == "__main__":
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "planner.config.settings")
    execute_from_command_line(sys.argv)
