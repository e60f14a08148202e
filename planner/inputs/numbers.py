"""Read single numbers, as people and files write them."""

import math
from typing import Any


def finite_number(value: Any) -> float | None:
    """Return ``value`` as a finite float; None if it is none, such as a text or a truth value."""
    if isinstance(value, bool):
        return None
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None
