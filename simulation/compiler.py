"""Compilation of hot paths, with one set of options for all.

Numba would optimize each function together with everything that it calls, once per caller. Here a
``kernel`` is only lowered. An entry point links all kernels that it reaches into one module, which
is optimized and compiled to machine code once.
"""

from collections.abc import Callable, Iterator
from typing import Any

from numba import config, njit
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import Compiler

from simulation.kernel_cache import KernelCache

_njit: Callable[..., Any] = njit  # its type knows only some of its options
_config: Any = config  # its type lacks the options
# LLVM's level 2 compiles in a tenth less time than numba's default of 3. The code is as fast.
_config.OPT = type(_config.OPT)(2)
# No fastmath: the same seed must give the same bytes.
_ALL: dict[str, Any] = {"nogil": True, "error_model": "numpy", "no_cfunc_wrapper": True}


class _NoExecutionEngine:
    """Does nothing in place of Numba's code generator of a kernel.

    Numba only calls its ``set_env``, to store the Python globals that wrappers for Python use.
    Kernels have no such wrapper.
    """

    def set_env(self, name: str, environment: Any) -> None: ...


class _LoweredFunction(JITCodeLibrary):
    """A function lowered to LLVM, which is linked into the functions that call it."""

    codegen = _NoExecutionEngine()

    def finalize(self) -> None:
        """Skip the optimization and compilation that numba would do here."""
        # The only parts of Numba's own ``finalize`` that are still needed.
        for library in self._linking_libraries:
            self._reload_init.update(library._reload_init)
        self._finalized = True

    def get_pointer_to_function(self, name: str) -> int:
        return 0

    def _get_module_for_linking(self) -> Any:
        """Return this function's module, with all functions that it calls linked in once."""
        if self._shared_module is None:
            module = self._final_module.clone()
            for called in self._linked_modules({self}):
                module.link_in(called, preserve=True)
            for function in module.functions:
                if not function.is_declaration and function.linkage.name == "external":
                    function.linkage = "linkonce_odr"
            self._shared_module = module
        return self._shared_module

    def _linked_modules(self, seen: set[Any]) -> Iterator[Any]:
        """Yield the modules of all functions that this one calls, each once."""
        for library in self._linking_libraries:
            if library in seen:
                continue
            seen.add(library)
            if isinstance(library, _LoweredFunction):
                yield library._final_module
                yield from library._linked_modules(seen)
            else:
                yield library._get_module_for_linking()


class _EntryLibrary(JITCodeLibrary):
    """An entry point with all kernels that it reaches, which no other module calls."""

    def _optimize_final_module(self) -> None:
        """Optimize the kernels as private functions, so that LLVM may change their calls."""
        for function in self._final_module.functions:
            if not function.is_declaration and function.linkage.name == "linkonce_odr":
                function.linkage = "internal"
        super()._optimize_final_module()


class _EntryCompiler(Compiler):
    """Compiler of an entry point."""

    def define_pipelines(self) -> Any:
        """Return numba's pipelines, set to put their code into an ``_EntryLibrary``."""
        state = self.state
        state.library = _EntryLibrary(state.targetctx.codegen(), state.func_id.func_qualname)
        state.library.enable_object_caching()
        return super().define_pipelines()


class _LoweringCompiler(Compiler):
    """Compiler that lowers a function without making machine code."""

    def define_pipelines(self) -> Any:
        """Return numba's pipelines, set to put their code into a ``_LoweredFunction``."""
        state = self.state
        state.library = _LoweredFunction(state.targetctx.codegen(), state.func_id.func_qualname)
        return super().define_pipelines()


def _lowering_decorator(**options: Any) -> Callable[..., Any]:
    """Return the decorator of ``kernel``: it lowers a function without making machine code."""
    decorate: Callable[..., Any] = _njit(
        pipeline_class=_LoweringCompiler, no_cpython_wrapper=True, **_ALL, **options
    )
    return decorate


kernel = _lowering_decorator()
# A kernel that is inlined into its callers, for short functions to which passing many arrays costs
# more than their work. LLVM does the inlining: numba would infer the types of all at once, which
# takes twice as long. Use it rarely: if such kernels call each other in many places, machine code
# grows. The engine then takes four times as long to compile.
inlined_kernel = _lowering_decorator(forceinline=True)


def cached_kernel(function: Callable[..., Any]) -> Any:
    """Return ``function`` as an entry point for Python, compiled at the first call and cached."""
    entry = _njit(pipeline_class=_EntryCompiler, **_ALL)(function)
    entry._cache = KernelCache(entry)
    return entry
