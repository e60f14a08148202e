"""Run a command as ``python -m planner NAME``."""

import sys

from planner.command_line import manage

manage(["headroom", *sys.argv[1:]])
