"""List every kind of run that works on a scenario, with its options and its function.

The module of a kind has its name, with ``_`` for ``-``. So do its page, its template, its command
and its report. The module is imported when it is first used, because a command needs only one.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import Any, TypeVar

from planner.domain.options import RunOptions
from planner.domain.outcome import Outcome

T = TypeVar("T")
NAMES = (
    "forecast",
    "plan",
    "simulate",
    "compare",
    "provision",
    "size",
    "pd-ratio",
    "backtest",
    "pareto",
    "outlook",
    "place",
    "share",
)
# Kinds whose run can be divided among workers. Free workers join before its parts are known.
SPREAD = ("compare", "backtest", "outlook")


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of run: its options and its function.

    The function takes ``inputs``, ``options`` and ``progress``. If the run can be divided among
    workers (``spread``), it also takes ``parts``.
    """

    options: type[RunOptions]
    run: Callable[..., Outcome]
    spread: bool = False


@dataclass(frozen=True, slots=True)
class ByName(Mapping[str, T]):
    """A mapping whose value for each of ``names`` is made by ``make`` when it is read."""

    names: tuple[str, ...]
    make: Callable[[str], T]

    def __getitem__(self, name: str) -> T:
        if name not in self.names:
            raise KeyError(name)
        return self.make(name)

    def __contains__(self, name: object) -> bool:
        return name in self.names

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def __len__(self) -> int:
        return len(self.names)


def kind_module(name: str) -> Any:
    """Return the module of the kind of run ``name``."""
    return import_module(f"planner.domain.kinds.{name.replace('-', '_')}")


@cache
def _kind(name: str) -> Kind:
    """Return the kind of run ``name``, importing its module."""
    module = kind_module(name)
    return Kind(module.Options, module.run, spread=name in SPREAD)


KINDS: Mapping[str, Kind] = ByName(NAMES, _kind)
