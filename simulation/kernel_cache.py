"""Cache on disk for compiled entry points, with a key over everything that they contain.

Numba's own cache uses the time and size of the single file with the function. It misses an edit of
a called function, and compiles again after a moved line. The key used here consists of:

- the bytecode of every kernel that is reached, and the constants that they read;
- the options of compilation;
- the fields of named tuples among the arguments;
- the files that extend numba itself.

Comments, docstrings and code that is not reached are not part of it. So the machine code found
under a key is the code that would be compiled now.
"""

import hashlib
import inspect
import sys
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any

from numba.core import runtime
from numba.core.caching import CompileResultCacheImpl, FunctionCache, IndexDataCacheFile
from numba.core.compiler import Compiler
from numba.core.dispatcher import Dispatcher
from numba.core.extending import _Intrinsic
from numba.core.sigutils import normalize_signature
from numba.core.types import BaseNamedTuple, BaseTuple

# Parts of numba with incomplete types for mypy.
FILES: Any = IndexDataCacheFile
ARGUMENTS: Any = normalize_signature
TUPLE: Any = BaseTuple
NAMED: Any = BaseNamedTuple
INTRINSIC: Any = _Intrinsic
RUNTIME: Any = runtime

LIBRARIES = ("math", "numpy")  # numba knows them, and its version is part of the key


class _Storage(CompileResultCacheImpl):
    """Numba's storage of compiled functions, reduced to the parts that compiled code needs."""

    def reduce(self, data: Any) -> Any:
        """Return the parts of a result to store, without environments that have no constants.

        Loading imports the module of each environment. Those of numba's own functions would import
        half of numba and ``scipy.linalg``.
        """
        reduced: Any = super().reduce
        *parts, environments = reduced(data)
        return (*parts, tuple(each for each in environments if each.consts))


STORAGE: Any = _Storage  # its constructor has no types


class KernelCache(FunctionCache):
    """Numba's interface to a cache: it loads before compilation and saves afterwards."""

    def __init__(self, entry: Any) -> None:
        function = entry.py_func
        self._entry, self._py_func, self._name = entry, function, repr(function)
        self._impl = STORAGE(function)
        self._cache_path = self._impl.locator.get_cache_path()
        self._enabled = True

    @cached_property
    def _cache_file(self) -> Any:  # type: ignore[override]
        """Return the cache file for the key of the entry point."""
        key = kernel_key(self._entry)
        name = f"{self._py_func.__module__.rpartition('.')[2]}.{self._py_func.__qualname__}"
        name = name.replace("<", "").replace(">", "")
        return FILES(self._cache_path, f"{name}.{key}", key)

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """Return the compiled function of the cache, or None.

        Numba would first import and register everything that a compilation may need, which takes
        half a second. Machine code needs numba's runtime alone, and a compilation registers the
        rest.
        """
        RUNTIME.rtsys.initialize(target_context)
        load: Any = self._load_overload
        with self._guard_against_spurious_io_errors():
            return load(sig, target_context)

    def _index_key(self, sig: Any, codegen: Any) -> Any:
        """Return numba's index key plus the contents of types.

        Numba compares a named tuple by its class and types, and types by their names only.
        """
        arguments, _ = ARGUMENTS(sig)
        kinds = tuple(text for kind in arguments for text in _type_contents(kind))
        return sig, codegen.magic_tuple(), kinds


def kernel_key(entry: Any) -> str:
    """Return a key for all that the machine code of ``entry`` contains, except argument types."""
    digest = hashlib.blake2b(digest_size=12)
    for part in (sys.version_info[:3], *_dependencies(entry, set())):
        digest.update(f"{part!r}\n".encode())
    return digest.hexdigest()


def _dependencies(kernel: Any, seen: set[FunctionType]) -> Iterator[object]:
    """Yield what the machine code of a kernel depends on: options, byte code and all that it reads.

    ``seen`` has the functions that were yielded before.
    """
    function = kernel.py_func
    if function in seen:
        # Its contents are already part of the key.
        yield function.__qualname__
        return
    seen.add(function)
    yield sorted(kernel.targetoptions.items())
    # Our own compiler changes the machine code, so its source is part of the key.
    if kernel._compiler.pipeline_class is not Compiler:
        yield _file_hash(kernel._compiler.pipeline_class)
    yield function.__defaults__
    cells = [cell.cell_contents for cell in function.__closure__ or ()]
    values = function.__globals__ | dict(zip(function.__code__.co_freevars, cells, strict=True))
    for code in _code_objects(function.__code__):
        constants = [value for value in code.co_consts if not isinstance(value, CodeType)]
        # A docstring is the first constant of its function; it must not change the key.
        if code is function.__code__ and function.__doc__ is not None:
            constants[0] = None
        yield code.co_code, code.co_exceptiontable, constants, code.co_flags, code.co_argcount
        yield code.co_names, code.co_varnames, code.co_cellvars, code.co_freevars
        for name in (*code.co_names, *code.co_freevars):
            if name in values:
                yield name
                yield from _compiled_parts(
                    values[name], f"{function.__qualname__} reads {name}", seen
                )


def _compiled_parts(value: object, where: str, seen: set[FunctionType]) -> Iterator[object]:
    """Yield the parts of ``value``, which a kernel reads, as they would be compiled in.

    ``where`` says which kernel reads it. Raises ``TypeError`` for a type that the key cannot cover.
    """
    if isinstance(value, Dispatcher):
        yield from _dependencies(value, seen)
    elif isinstance(value, bool | int | float | str | None):
        yield value
    elif isinstance(value, tuple):
        for item in value:
            yield from _compiled_parts(item, where, seen)
    elif isinstance(value, ModuleType) and value.__name__ in LIBRARIES:
        yield value.__name__
    elif isinstance(value, INTRINSIC):  # it names contents that its file does not show
        yield _file_hash(value._defn)
        yield value.made_of
    elif isinstance(value, type) and issubclass(value, tuple) and hasattr(value, "_fields"):
        yield value.__qualname__, value._fields
    else:
        raise TypeError(f"{where}, a {type(value).__name__}: its parts are not known.")


def _code_objects(code: CodeType) -> Iterator[CodeType]:
    """Yield a code object and those nested in it."""
    yield code
    for value in code.co_consts:
        if isinstance(value, CodeType):
            yield from _code_objects(value)


def _type_contents(kind: Any) -> Iterator[str]:
    """Yield the parts of a numba type that its name lacks, for the key of a compiled function.

    These are the fields of named tuples, and the source and contents of types of our own.
    """
    if isinstance(kind, NAMED):
        yield f"{kind.instance_class.__qualname__}{kind.fields}"
    if isinstance(kind, TUPLE):
        for part in kind:
            yield from _type_contents(part)
    if not type(kind).__module__.startswith("numba."):
        yield _file_hash(type(kind))
        yield kind.made_of


def _file_hash(extension: Any) -> str:
    """Return the hash of a file that extends numba."""
    file = Path(inspect.getfile(extension))
    return hashlib.blake2b(file.read_bytes(), digest_size=12).hexdigest()
