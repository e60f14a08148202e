"""How hot paths are compiled: one set of options for all.

Numba would optimise each function together with all that it calls, and make machine code of it,
once more in every function that calls it. Here a ``kernel`` stays as it was lowered until an entry
point links all that it reaches into one module, which is optimised and made machine code once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from numba import njit
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import Compiler

from simulation.kernel_cache import KernelCache

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


def _kernels(**options: Any) -> Callable[..., Any]:
    decorate: Callable[..., Any] = _njit(
        pipeline_class=_Kernels, no_cpython_wrapper=True, **_ALL, **options
    )
    return decorate


kernel = _kernels()
# One that becomes part of what calls it, where handing on many arrays costs more than what it does.
# It is LLVM that puts it there: numba would infer the types of all at once, which takes twice as
# long. Where such kernels call each other in many places, machine code grows beyond all measure:
# the engine's then takes four times as long to compile.
inlined_kernel = _kernels(forceinline=True)


def cached_kernel(function: Callable[..., Any]) -> Any:
    """An entry point: what Python calls, compiled when it first does and kept on disk."""
    entry = _njit(**_ALL)(function)
    entry._cache = KernelCache(entry)
    return entry
