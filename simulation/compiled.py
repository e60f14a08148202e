"""How hot paths are compiled: one set of options, and a cache that notices every source change."""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Callable
from types import ModuleType
from typing import Any

from numba import njit
from numba.core import cgutils
from numba.extending import intrinsic

# No fastmath: the same seed must give the same bytes.
kernel: Callable[..., Any] = njit(nogil=True, error_model="numpy")
cached_kernel: Callable[..., Any] = njit(nogil=True, error_model="numpy", cache=True)


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


@intrinsic  # type: ignore[untyped-decorator]
def borrow(context: Any, array: Any) -> Any:
    """The same array without ownership, for compiled code that only runs while its caller holds it.

    Numba counts references with an atomic instruction for every array at every call that is not
    inlined; a borrowed array has no counter. It halves the time of the event loop.
    """

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        view = context.make_array(signature.return_type)(context, builder, args[0])
        view.meminfo = cgutils.get_null_value(view.meminfo.type)
        view.parent = cgutils.get_null_value(view.parent.type)
        return view._getvalue()

    return array(array), codegen
