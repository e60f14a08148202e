#!/usr/bin/env python
"""Django's command line; `bin/manage` runs it in the virtual environment."""

import sys

from planner.command_line import manage

if __name__ == "__main__":
    manage(sys.argv)
