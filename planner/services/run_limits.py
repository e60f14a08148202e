"""Stop a run that takes too long or too much memory, before it stops others."""

import os
import time
from pathlib import Path

from django.conf import settings

ENDED_WITH_RUN = os.EX_TEMPFAIL  # exit status of a worker whose run did not stop
GRACE_S = 30.0  # time to stop after the request; then the worker ends with its run
MB = 1_000_000
REMEDY = "choose a shorter window, a smaller scale or wider bins"


class RunLimits:
    """The limits on time and memory of one run, which began ``elapsed_s`` ago."""

    def __init__(self, elapsed_s: float = 0.0) -> None:
        self._began_s = time.monotonic() - max(0.0, elapsed_s)
        self._exceeded_at_s = 0.0
        self.violation = ""  # sentence on the limit that was exceeded; "" before

    def is_ignored(self) -> bool:
        """Check the limits; return whether the run still goes on GRACE_S after it exceeded one."""
        now_s = time.monotonic()
        if not self.violation:
            self.violation = self._find_violation(now_s - self._began_s)
            self._exceeded_at_s = now_s
        return bool(self.violation) and now_s - self._exceeded_at_s > GRACE_S

    def _find_violation(self, elapsed_s: float) -> str:
        """Return a sentence on the limit of time or memory that the run exceeds; "" if none."""
        max_s, max_mb = settings.HEADROOM_MAX_RUN_SECONDS, settings.HEADROOM_MAX_RUN_MB
        if elapsed_s > max_s:
            return (
                f"This run was stopped after {max_s:,} s, as long as a run may take here "
                f"(HEADROOM_MAX_RUN_SECONDS); {REMEDY}."
            )
        # Resident memory: what the container's limit counts, unlike reserved address space.
        used_mb = resident_mb()
        if used_mb > max_mb:
            return (
                f"This run was stopped at {used_mb:,.0f} MB of memory, where {max_mb:,} are "
                f"allowed (HEADROOM_MAX_RUN_MB); {REMEDY}."
            )
        return ""


def resident_mb() -> float:
    """Return the resident memory of this process in MB; 0 if the system does not report it."""
    try:
        _, resident_pages, *_ = Path("/proc/self/statm").read_text(encoding="ascii").split()
        return int(resident_pages) * os.sysconf("SC_PAGE_SIZE") / MB
    except (OSError, ValueError):
        return 0.0
