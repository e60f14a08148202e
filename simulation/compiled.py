"""How hot paths are compiled: one set of options, and a cache that notices every source change.

Numba would optimise each function together with all that it calls, and make machine code of it,
once more in every function that calls it. Here a ``kernel`` stays as it was lowered until an entry
point links all that it reaches into one module, which is optimised and made machine code once.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from numba import njit
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import Compiler

HERE = Path(__file__).parent

_njit: Callable[..., Any] = njit  # its type knows only some of its options
# No fastmath: the same seed must give the same bytes.
_ALL: dict[str, Any] = {"nogil": True, "error_model": "numpy", "no_cfunc_wrapper": True}


class _NoEngine:
    """A kernel is never called from Python, so there is nothing to tell its machine code."""

    def set_env(self, name: str, environment: Any) -> None: ...


class _Lowered(JITCodeLibrary):
    """A function as it was lowered, to be linked into what calls it."""

    codegen = _NoEngine()

    def finalize(self) -> None:
        for library in self._linking_libraries:
            self._reload_init.update(library._reload_init)
        self._finalized = True

    def get_pointer_to_function(self, name: str) -> int:
        return 0

    def _get_module_for_linking(self) -> Any:
        """With all that it calls, each once."""
        if self._shared_module is None:
            module = self._final_module.clone()
            for called in self._reached({self}):
                module.link_in(called, preserve=True)
            for function in module.functions:
                if not function.is_declaration and function.linkage.name == "external":
                    function.linkage = "linkonce_odr"
            self._shared_module = module
        return self._shared_module

    def _reached(self, seen: set[Any]) -> Iterator[Any]:
        for library in self._linking_libraries:
            if library in seen:
                continue
            seen.add(library)
            if isinstance(library, _Lowered):
                yield library._final_module
                yield from library._reached(seen)
            else:
                yield library._get_module_for_linking()


class _Kernels(Compiler):
    def define_pipelines(self) -> Any:
        state = self.state
        state.library = _Lowered(state.targetctx.codegen(), state.func_id.func_qualname)
        return super().define_pipelines()


kernel: Callable[..., Any] = _njit(pipeline_class=_Kernels, no_cpython_wrapper=True, **_ALL)
cached_kernel: Callable[..., Any] = _njit(cache=True, **_ALL)


def source_stamp(*files: str) -> int:
    """A number that changes with any of ``files``, patterns below this folder.

    numba's on-disk cache looks only at the file of the function it stores, not at the files of the
    functions it calls. An entry point that closes over this number is compiled again when any of
    them changed.
    """
    digest = hashlib.blake2b(digest_size=7)
    for pattern in files:
        for file in sorted(HERE.glob(pattern)):
            digest.update(file.read_bytes())
    return int.from_bytes(digest.digest(), "big")
