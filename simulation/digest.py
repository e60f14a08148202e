"""Caches whose keys are digests of values, for arguments that have no hash."""

import hashlib
import pickle
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache, partial, wraps
from threading import Lock
from typing import Any, Generic, TypeVar, TypeVarTuple

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


@dataclass(slots=True)
class _Result(Generic[T]):
    """The result of a call, computed once, even if several threads need it at the same time."""

    compute: Callable[[], T]
    _values: list[T] = field(default_factory=list)
    _lock: Lock = field(default_factory=Lock)

    @property
    def value(self) -> T:
        """Return the result; a thread that asks while another computes it waits for it."""
        with self._lock:
            if not self._values:
                self._values.append(self.compute())
            return self._values[0]


def cached_by_value(
    max_results: int, inputs: Callable[..., tuple[object, ...]] | None = None
) -> Callable[[Callable[[*Ts], T]], Callable[[*Ts], T]]:
    """Return a decorator that caches the last ``max_results`` results by the call's arguments.

    ``inputs`` maps the arguments to the values on which the result depends; None: all arguments.
    """

    def decorate(function: Callable[[*Ts], T]) -> Callable[[*Ts], T]:
        """Return the function with a cache of its last results, by the digest of its arguments."""

        @lru_cache(maxsize=max_results)
        def cached(arguments: _Arguments) -> _Result[T]:
            return _Result(partial(function, *arguments.values))

        @wraps(function)
        def call(*values: *Ts) -> T:
            key = digest_of(values if inputs is None else inputs(*values))
            return cached(_Arguments(key, values)).value

        return call

    return decorate
