"""Access of compiled code to the arrays of a state, all through one pointer.

A numba array is a structure of ten numbers that owns memory. Passing forty of them in every call
costs more than the called function. So Python passes one array, the *handle*: a list of the
addresses and shapes of all arrays, each number a 64-bit word. Numba knows the type of an array at
once, while the type of any other object costs more than most calls.

Compiled code opens the handle: it casts the pointer to the type ``Tables``, and reads the address
of ``state.name`` from it when it is needed. A ``Table`` is one of the arrays. It owns nothing and
has the memory layout of C. An element is a number, or a record that is read and written in place.
With fewer indices than dimensions the element is a table again. Indices do not wrap around: -1
means none.

Functions with the arguments ``context`` and ``builder`` run when numba compiles. They build LLVM
instructions, as numba's extension API asks for.
"""

import operator
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.core.typing.templates import (
    AbstractTemplate,
    AttributeTemplate,
    infer_getattr,
    infer_global,
    signature,
)
from numba.extending import intrinsic, lower_builtin, lower_getattr_generic, models, register_model
from numba.np.numpy_support import from_dtype

Array = npt.NDArray[Any]
Layout = Mapping[str, tuple[np.dtype[Any], int]]
"""Element type and number of dimensions of each array, by name."""

_WORD = ir.IntType(64)


def handle(layout: Layout, arrays: Mapping[str, Array]) -> npt.NDArray[np.uint64]:
    """Return the addresses and shapes of ``arrays``, in the order of ``layout``.

    The arrays must outlive the result. Raises ``TypeError`` if an array does not match ``layout``.
    """
    words: list[int] = []
    for name, (dtype, dimensions) in layout.items():
        array = arrays[name]
        if (array.dtype, array.ndim, array.flags.c_contiguous) != (dtype, dimensions, True):
            raise TypeError(f"State.{name} must be {dtype} in {dimensions} dimensions, as C has it")
        words += [array.ctypes.data, *array.shape]
    return np.array(words, np.uint64)


class Record(types.Record):
    """Numba's record type with a short name, since numba compares and prints types by name."""

    def __init__(self, name: str, dtype: np.dtype[Any]) -> None:
        numba_record = from_dtype(dtype)
        fields = [(field, kind._asdict()) for field, kind in numba_record.fields.items()]
        super().__init__(fields, numba_record.size, numba_record.aligned)
        self.name = f"Record({name})"


class Table(types.Type):
    """Type of one array, with the type of its elements."""

    def __init__(self, item: types.Type, item_bytes: int, ndim: int) -> None:
        super().__init__(f"Table({item}, {ndim})")
        self.item, self.item_bytes, self.ndim = item, item_bytes, ndim

    def element(self, index: Any) -> Any:
        """Return the type of ``table[index]`` for the type ``index``; None: not an index."""
        indices = _indices(index)
        remaining = self.ndim - len(indices)
        if remaining < 0 or not indices or not all(isinstance(i, types.Integer) for i in indices):
            return None
        return Table(self.item, self.item_bytes, remaining) if remaining else self.item


class Tables(types.Type):
    """Type of an opened handle: all arrays of a layout, as attributes."""

    def __init__(self, name: str, layout: Layout) -> None:
        super().__init__(f"Tables({name})")
        # Part of the key of the cache on disk, since the name does not contain the layout.
        self.made_of = repr(dict(layout))
        self.tables: dict[str, tuple[Table, int]] = {}  # with the index of its first word
        words = 0
        for field, (dtype, ndim) in layout.items():
            item = Record(field, dtype) if dtype.fields else from_dtype(dtype)
            self.tables[field] = Table(item, dtype.itemsize, ndim), words
            words += 1 + ndim


register_model(Record)(models.RecordModel)
register_model(Tables)(models.OpaqueModel)


@register_model(Table)
class _TableModel(models.StructModel):
    """Memory layout of a ``Table`` in compiled code: a pointer, and the dimensions' lengths."""

    def __init__(self, manager: Any, kind: Table) -> None:
        shape = types.UniTuple(types.intp, kind.ndim)
        super().__init__(manager, kind, [("data", types.voidptr), ("shape", shape)])


def opener(kind: Tables) -> Any:
    """Return a function for compiled code that opens a handle: it casts it to the type ``kind``."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        """Build the cast of the handle's data pointer."""
        handle_array = context.make_array(sig.args[0])(context, builder, args[0])
        return builder.bitcast(handle_array.data, cgutils.voidptr_t)

    def open_handle(typing: Any, handle: Any) -> Any:
        """Return the signature and the code generator, as ``intrinsic`` asks for."""
        return kind(handle), codegen

    function: Any = intrinsic(open_handle)
    function.made_of = kind.made_of  # the layout, for the key of the cache on disk
    return function


# --- state.name, table.shape ---------------------------------------------------------------------


@infer_getattr
class _TablesAttributes(AttributeTemplate):
    """Types of the attributes of ``Tables``."""

    key = Tables

    def generic_resolve(self, kind: Any, name: str) -> Any:  # type: ignore[override]
        """Return the type of ``state.name``; None if there is no such table."""
        return kind.tables[name][0] if name in kind.tables else None


@lower_getattr_generic(Tables)
def _get_table(context: Any, builder: Any, kind: Tables, value: Any, name: str) -> Any:
    """Compile access to a table of a state: read its address and lengths from the handle."""
    table, first = kind.tables[name]
    words = builder.bitcast(value, _WORD.as_pointer())

    def word(i: int) -> Any:
        """Build a read of word ``i`` of this table: its address, then its lengths."""
        loaded = builder.load(builder.gep(words, [_WORD(first + i)], inbounds=True))
        # addresses do not change while compiled code runs
        loaded.set_metadata("invariant.load", builder.module.add_metadata([]))
        return loaded

    data = builder.inttoptr(word(0), cgutils.voidptr_t)
    return _make(context, builder, table, data, [word(1 + i) for i in range(table.ndim)])


@infer_getattr
class _TableAttributes(AttributeTemplate):
    """Types of the attributes of ``Table``."""

    key = Table

    def resolve_shape(self, kind: Table) -> Any:
        """Return the type of ``table.shape``."""
        return types.UniTuple(types.intp, kind.ndim)


@lower_getattr_generic(Table)
def _get_shape(context: Any, builder: Any, kind: Table, value: Any, name: str) -> Any:
    """Build ``table.shape``, the only attribute of a table."""
    return cgutils.create_struct_proxy(kind)(context, builder, value).shape


def _make(context: Any, builder: Any, kind: Table, data: Any, shape: list[Any]) -> Any:
    """Build a table of ``shape`` over the memory at the pointer ``data``."""
    table = cgutils.create_struct_proxy(kind)(context, builder)
    table.data, table.shape = data, cgutils.pack_array(builder, shape)
    return table._getvalue()


# --- table[i], table[i, j] -----------------------------------------------------------------------


@infer_global(operator.getitem)
class _GetItem(AbstractTemplate):
    def generic(self, args: Any, kws: Any) -> Any:
        """Return the types of ``table[index]``; None for other types, which numba handles."""
        table, index = args
        element = table.element(index) if isinstance(table, Table) else None
        return None if element is None else signature(element, table, index)


@infer_global(operator.setitem)
class _SetItem(AbstractTemplate):
    def generic(self, args: Any, kws: Any) -> Any:
        """Return the types of ``table[index] = value``, if that selects a single value."""
        table, index, _ = args
        if isinstance(table, Table) and table.element(index) == table.item:
            return signature(types.none, table, index, table.item)
        return None


def _get_item(context: Any, builder: Any, sig: Any, args: Any) -> Any:
    """Build ``table[index]``: a smaller table if dimensions are left, else the value."""
    data, shape = _element_address(context, builder, sig, args)
    if shape:
        return _make(context, builder, sig.return_type, data, shape)
    element_type = sig.return_type
    pointer = _pointer(context, builder, element_type, data)
    return context.unpack_value(builder, element_type, pointer)


def _set_item(context: Any, builder: Any, sig: Any, args: Any) -> Any:
    """Build ``table[index] = value``."""
    data, _ = _element_address(context, builder, sig, args)
    element_type = sig.args[2]
    pointer = _pointer(context, builder, element_type, data)
    context.pack_value(builder, element_type, args[2], pointer)
    return context.get_dummy_value()


for _index in (types.Integer, types.BaseTuple):
    lower_builtin(operator.getitem, Table, _index)(_get_item)
    lower_builtin(operator.setitem, Table, _index, types.Any)(_set_item)


def _element_address(context: Any, builder: Any, sig: Any, args: Any) -> tuple[Any, list[Any]]:
    """Build the address of ``table[index]``; return it and the lengths of the other dimensions."""
    table_type, index = sig.args[:2]
    table = cgutils.create_struct_proxy(table_type)(context, builder, args[0])
    shape = cgutils.unpack_tuple(builder, table.shape)
    values = [args[1]]
    if isinstance(index, types.BaseTuple):
        values = cgutils.unpack_tuple(builder, args[1])
    offset = _WORD(0)
    for length, integer, value in zip(shape, _indices(index), values, strict=False):
        value = context.cast(builder, value, integer, types.intp)
        # Row-major index, one dimension at a time.
        offset = builder.add(builder.mul(offset, length), value)
    remaining = shape[len(values) :]
    for length in [*remaining, _WORD(table_type.item_bytes)]:
        offset = builder.mul(offset, length)
    return builder.gep(table.data, [offset], inbounds=True), remaining


def _indices(index: Any) -> Sequence[Any]:
    """Return the types of the indices in ``table[i]`` or ``table[i, j]``."""
    return index.types if hasattr(index, "types") else (index,)


def _pointer(context: Any, builder: Any, kind: Any, data: Any) -> Any:
    """Build a cast of the pointer ``data`` to one of type ``kind``."""
    return builder.bitcast(data, context.get_data_type(kind).as_pointer())
