"""One input, and what many of them are made of."""

from collections.abc import Callable
from typing import NamedTuple

from bench.malformed.doors import Answer, Doors

DEEP = 100_000
LONG = "9" * 5_000


class Input(NamedTuple):
    kind: str
    name: str
    send: Callable[[Doors], Answer]
