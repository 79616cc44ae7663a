"""Arrays that machine code does not count references of: those that their caller keeps while it runs.

Numba counts an array whenever it is given a name, also as an argument of what is inlined, and those counts are most of
what a loop of many small functions takes. An array without an owner is not counted.
"""

from __future__ import annotations

from typing import Any


def uncounted(arrays: Any) -> Any:
    """Return a tuple of arrays, or of other things, as it is; in machine code its arrays have no owner."""
    return arrays


def teach_numba() -> None:
    """Tell numba what `uncounted` means.

    Raises:
        ImportError: There is no numba.
    """
    from numba.core import cgutils, types
    from numba.extending import intrinsic, overload
    from numba.np.arrayobj import make_array

    struct_of: Any = make_array
    unpack_tuple: Any = cgutils.unpack_tuple

    def without_owner(context: Any, builder: Any, kind: Any, value: Any) -> Any:
        if isinstance(kind, types.Array):
            array = struct_of(kind)(context, builder, value)
            array.meminfo, array.parent = map(cgutils.get_null_value, (array.meminfo.type, array.parent.type))
            return array._getvalue()  # noqa: SLF001 -- numba's own way to the value of a struct
        if isinstance(kind, types.BaseTuple):
            tuple_kind: Any = kind
            members = zip(tuple_kind.types, unpack_tuple(builder, value), strict=True)
            bare = [without_owner(context, builder, kind, value) for kind, value in members]
            return context.make_tuple(builder, kind, bare)
        return value

    def typed(_: Any, arrays: Any) -> Any:
        def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            return without_owner(context, builder, signature.args[0], arguments[0])

        return arrays(arrays), code

    in_code: Any = intrinsic(typed)

    def for_any(_: Any) -> Any:
        return lambda arrays: in_code(arrays)

    overload(uncounted, strict=False, jit_options={"forceinline": True})(for_any)
