"""How hot paths are compiled: one set of options, and a cache that notices every source change."""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Callable
from types import ModuleType
from typing import Any

from numba import njit
from numba.extending import intrinsic

_njit: Callable[..., Any] = njit  # its type knows only some of its options
# No fastmath: the same seed must give the same bytes.
_ALL: dict[str, Any] = {"nogil": True, "error_model": "numpy"}
# Only entry points are called from Python; the wrappers for that are a quarter of compiling.
_INNER = _ALL | {"no_cpython_wrapper": True, "no_cfunc_wrapper": True}

# Everything is inlined into the few entry points: the state is a tuple of forty arrays, and passing
# it at every call costs three times what the calls do.
kernel: Callable[..., Any] = _njit(forceinline=True, **_INNER)
# For what is rarely reached or large: a call then costs little beside what it does, and inlining it
# at every place would only cost compile time.
outlined: Callable[..., Any] = _njit(**_INNER)
cached_kernel: Callable[..., Any] = _njit(cache=True, no_cfunc_wrapper=True, **_ALL)


def source_stamp(*modules: ModuleType) -> int:
    """A number that changes with the source of any of ``modules``.

    numba's on-disk cache looks only at the file of the function it stores, not at the files of the
    functions it calls. An entry point that closes over this number is compiled again when any of
    them changed.
    """
    digest = hashlib.blake2b(digest_size=7)
    for module in modules:
        digest.update(inspect.getsource(module).encode())
    return int.from_bytes(digest.digest(), "big")


def _borrow(context: Any, array: Any) -> Any:
    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        view = context.make_array(signature.return_type)(context, builder, args[0])
        view.meminfo = view.meminfo.type(None)
        view.parent = view.parent.type(None)
        return view._getvalue()

    return array(array), codegen


# The same array without ownership, for compiled code that only runs while its caller holds it.
# Numba counts references to every array at every call with atomic instructions; a borrowed array
# has no counter, and the event loop takes a quarter of the time.
borrow: Any = intrinsic(_borrow)
