"""Caches whose keys are digests of values, for arguments that have no hash."""

import hashlib
import pickle
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache, wraps
from typing import Any, TypeVar, TypeVarTuple

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


def digest_of(values: tuple[object, ...]) -> str:
    """Return a SHA-256 digest that is equal for equal values."""
    return hashlib.sha256(pickle.dumps(values)).hexdigest()


@dataclass(frozen=True, slots=True)
class _Arguments:
    """Arguments of a call as a cache key, which compares their digest only."""

    digest: str
    values: tuple[Any, ...] = field(compare=False)


def cached_by_value(kept: int) -> Callable[[Callable[[*Ts], T]], Callable[[*Ts], T]]:
    """Return a decorator that keeps the last ``kept`` results for calls with equal arguments."""

    def decorate(function: Callable[[*Ts], T]) -> Callable[[*Ts], T]:
        @lru_cache(maxsize=kept)
        def cached(arguments: _Arguments) -> T:
            return function(*arguments.values)

        @wraps(function)
        def call(*values: *Ts) -> T:
            return cached(_Arguments(digest_of(values), values))

        return call

    return decorate
