"""The tool interface of the MPI library at hand, MPI_T: its control and performance variables (MPI-5.0 chapter 15).

mpi4py has no MPI_T, so this goes through ctypes to the very library that mpi4py loaded, found among the files mapped
into the process. Nothing here is special to one library but the first value of two enumerations.

with ToolInterface() as tool:
    ring = tool.variable("coll_tuned_allreduce_algorithm").items["ring"]
    tool.write("coll_tuned_allreduce_algorithm", ring)
"""

from __future__ import annotations

import ctypes
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, TypeAlias

from mpi4py import MPI

Value: TypeAlias = int | float | str
Flavour: TypeAlias = Literal["mpich", "openmpi", "abi"]

SCOPES = ("constant", "readonly", "local", "group", "group_eq", "all", "all_eq")
BINDINGS = (
    *("no_object", "comm", "datatype", "errhandler", "file", "group", "op", "request", "win", "message", "info"),
    "session",
)
FIRST_SCOPE: dict[Flavour, int] = {"mpich": 60438, "openmpi": 0, "abi": 1}
FIRST_BINDING: dict[Flavour, int] = {"mpich": 9700, "openmpi": 0, "abi": 1}

TEXT_NBYTES = 1 << 16
"""Bytes for a text of the library; the longest description of the libraries tried has 2 KiB."""


class ToolError(RuntimeError):
    """The tool interface is not there, or a call of it failed; the message names the call, the variable and why."""


class NoVariable(ToolError):
    """The library has no variable of that name."""


class NotWritable(ToolError):
    """The variable cannot be set, or not any more."""


@dataclass(frozen=True)
class Variable:
    """One control variable: what the library says of it.

    `kind` is the C type (``int``, ``char`` for text, ...); `scope` and `binding` are MPI's words in lower case;
    `items` are the names of an enumeration with their values, empty where the library gives none.
    """

    name: str
    index: int
    kind: str
    scope: str
    binding: str
    description: str = field(repr=False)
    items: Mapping[str, int] = field(repr=False, hash=False)

    @property
    def writable(self) -> bool:
        """Whether the library lets it be changed at all."""
        return self.scope not in ("constant", "readonly")


# The C types that MPI_T allows (MPI-5.0 section 15.3.5) and the further ones that Open MPI uses.
_KINDS: tuple[tuple[str, Any, MPI.Datatype], ...] = (
    ("int", ctypes.c_int, MPI.INT),
    ("unsigned", ctypes.c_uint, MPI.UNSIGNED),
    ("long", ctypes.c_long, MPI.LONG),
    ("unsigned long", ctypes.c_ulong, MPI.UNSIGNED_LONG),
    ("unsigned long long", ctypes.c_ulonglong, MPI.UNSIGNED_LONG_LONG),
    ("int32", ctypes.c_int32, MPI.INT32_T),
    ("uint32", ctypes.c_uint32, MPI.UINT32_T),
    ("int64", ctypes.c_int64, MPI.INT64_T),
    ("uint64", ctypes.c_uint64, MPI.UINT64_T),
    ("count", ctypes.c_longlong, MPI.COUNT),
    ("bool", ctypes.c_bool, MPI.C_BOOL),
    ("double", ctypes.c_double, MPI.DOUBLE),
    ("char", ctypes.c_char, MPI.CHAR),
)


def library_path() -> Path:
    """Return the MPI library that mpi4py loaded.

    Raises:
        ToolError: the system does not tell, or no mapped file looks like an MPI library.

    """
    try:
        lines = Path("/proc/self/maps").read_text().splitlines()
    except OSError as error:
        raise ToolError(f"cannot find the MPI library: /proc/self/maps cannot be read ({error.strerror})") from error
    mapped = dict.fromkeys(line.split(maxsplit=5)[-1] for line in lines if "/" in line)
    for path in map(Path, mapped):
        if re.match(r"libp?mpi[^/]*\.so", path.name):
            return path
    raise ToolError("cannot find the MPI library: no file named libmpi*.so is mapped into this process")


def flavour(path: Path) -> Flavour | None:
    """Return whose binary interface the library at `path` has, None where it is neither MPICH's nor Open MPI's."""
    if path.name.startswith("libmpi_abi"):
        return "abi"
    vendor, _ = MPI.get_vendor()
    known: dict[str, Flavour] = {"MPICH": "mpich", "Intel MPI": "mpich", "MVAPICH": "mpich", "Open MPI": "openmpi"}
    return known.get(vendor)


class ToolInterface:
    """MPI_T, initialised; `close` it at the end, or use ``with``. Allowed before MPI is initialised and after.

    Raises:
        ToolError: the library cannot be found, or has no tool interface.

    """

    def __init__(self) -> None:
        path = library_path()
        found = flavour(path)
        if found is None:
            raise ToolError(f"{path.name} is neither MPICH nor Open MPI; its tool interface has not been tried")
        self.flavour: Flavour = found
        self._library = ctypes.CDLL(str(path), mode=os.RTLD_NOW | os.RTLD_NOLOAD)
        self._open = False
        provided = ctypes.c_int()
        self._call("MPI_T_init_thread", ctypes.c_int(MPI.THREAD_MULTIPLE), ctypes.byref(provided))
        self._open = True

    def __enter__(self) -> ToolInterface:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Leave the tool interface. Variables keep what was written."""
        if self._open:
            self._open = False
            self._call("MPI_T_finalize")

    # -----------------------------------------------------------------------------------------------------------
    # Control variables

    @cached_property
    def variables(self) -> Mapping[str, Variable]:
        """All control variables by name, as they are now; loading a component may add some."""
        number = ctypes.c_int()
        self._call("MPI_T_cvar_get_num", ctypes.byref(number))
        found = (self._variable(index) for index in range(number.value))
        return MappingProxyType({one.name: one for one in found if one is not None})

    def variable(self, name: str) -> Variable:
        """Return what the library says of a variable.

        Raises:
            NoVariable: there is none of this name.

        """
        index = ctypes.c_int()
        code = self._function("MPI_T_cvar_get_index")(name.encode(), ctypes.byref(index))
        found = None if code else self._variable(index.value)
        if found is None:
            raise NoVariable(f"this MPI library has no control variable {name!r}")
        return found

    def read(self, variable: str | Variable) -> Value:
        """Return the value that a variable has in this process.

        Raises:
            NoVariable: there is none of this name.
            ToolError: it is bound to an object, or of a kind that MPI_T does not have.

        """
        known = self.variable(variable) if isinstance(variable, str) else variable
        with _CvarHandle(self, known) as handle:
            cells = handle.cells()
            self._call("MPI_T_cvar_read", handle.pointer, ctypes.byref(cells), about=known.name)
            return cells.value.decode(errors="replace") if known.kind == "char" else cells[0]

    def write(self, variable: str | Variable, value: Value) -> None:
        """Set a variable in this process and read it back. Where its scope is ``all_eq`` every rank must do so.

        Raises:
            NoVariable: there is none of this name.
            NotWritable: it is read-only, or cannot be set any more.
            ToolError: the library took the call but the variable does not have the value.

        """
        known = self.variable(variable) if isinstance(variable, str) else variable
        if not known.writable:
            raise NotWritable(f"{known.name} is {known.scope}: set it in the environment before MPI starts")
        with _CvarHandle(self, known) as handle:
            cells = handle.cells()
            if known.kind == "char":
                cells.value = str(value).encode()
            else:
                cells[0] = value
            try:
                self._call("MPI_T_cvar_write", handle.pointer, ctypes.byref(cells), about=known.name)
            except ToolError as error:
                raise NotWritable(f"{error}; set it in the environment before MPI starts") from error
        found = self.read(known)
        if found != value:
            raise ToolError(f"{known.name} was set to {value!r} and reads {found!r}")

    def _variable(self, index: int) -> Variable | None:
        """Return the variable of this index, None where the library has withdrawn it."""
        name, description = (ctypes.create_string_buffer(TEXT_NBYTES) for _ in range(2))
        name_length, description_length = (ctypes.c_int(TEXT_NBYTES) for _ in range(2))
        verbosity, binding, scope = ctypes.c_int(), ctypes.c_int(), ctypes.c_int()
        # A datatype is an int (MPICH) or a pointer (Open MPI, the common ABI); a zeroed pointer's room holds either.
        datatype, enumeration = ctypes.c_size_t(), ctypes.c_void_p()
        code = self._function("MPI_T_cvar_get_info")(
            ctypes.c_int(index),
            name,
            ctypes.byref(name_length),
            ctypes.byref(verbosity),
            ctypes.byref(datatype),
            ctypes.byref(enumeration),
            description,
            ctypes.byref(description_length),
            ctypes.byref(binding),
            ctypes.byref(scope),
        )
        if code:
            return None
        return Variable(
            name.value.decode(),
            index,
            next((kind for kind, _, one in _KINDS if MPI._handleof(one) == datatype.value), "unknown"),
            _word(SCOPES, scope.value - FIRST_SCOPE[self.flavour]),
            _word(BINDINGS, binding.value - FIRST_BINDING[self.flavour]),
            description.value.decode(errors="replace"),
            MappingProxyType(self._items(enumeration)),
        )

    def _items(self, enumeration: ctypes.c_void_p) -> dict[str, int]:
        if not enumeration:
            return {}
        number, length = ctypes.c_int(), ctypes.c_int(TEXT_NBYTES)
        name = ctypes.create_string_buffer(TEXT_NBYTES)
        self._call("MPI_T_enum_get_info", enumeration, ctypes.byref(number), name, ctypes.byref(length))
        items = {}
        for index in range(number.value):
            value, length = ctypes.c_int(), ctypes.c_int(TEXT_NBYTES)
            self._call(
                *("MPI_T_enum_get_item", enumeration, ctypes.c_int(index)),
                *(ctypes.byref(value), name, ctypes.byref(length)),
            )
            items[name.value.decode()] = value.value
        return items

    # -----------------------------------------------------------------------------------------------------------
    # Performance variables

    def watch(self, name: str, comm: MPI.Intracomm) -> Watched:
        """Return a reader of a performance variable that counts for each rank of `comm`. Free it at the end.

        Raises:
            NoVariable: the library has none of this name, or not bound to a communicator.

        """
        return Watched(self, name, comm)

    # -----------------------------------------------------------------------------------------------------------

    def _function(self, name: str) -> Any:
        try:
            return getattr(self._library, name)
        except AttributeError as error:
            raise ToolError(f"this MPI library has no {name}") from error

    def _call(self, name: str, *arguments: Any, about: str = "") -> None:
        code = self._function(name)(*arguments)
        if code:
            raise ToolError(f"{name}{f' of {about}' if about else ''} failed: {_reason(code)}")


class _CvarHandle:
    """A handle of a control variable, freed at the end."""

    def __init__(self, tool: ToolInterface, variable: Variable) -> None:
        if variable.binding != "no_object":
            raise ToolError(f"{variable.name} is bound to a {variable.binding}; only global ones are supported")
        if variable.kind == "unknown":
            raise ToolError(f"{variable.name} is of a type that MPI_T does not have")
        self._tool, self._variable = tool, variable
        self.pointer, self._count = ctypes.c_void_p(), ctypes.c_int()

    def __enter__(self) -> _CvarHandle:
        self._tool._call(
            *("MPI_T_cvar_handle_alloc", ctypes.c_int(self._variable.index), None),
            *(ctypes.byref(self.pointer), ctypes.byref(self._count)),
            about=self._variable.name,
        )
        return self

    def __exit__(self, *exception: object) -> None:
        self._tool._call("MPI_T_cvar_handle_free", ctypes.byref(self.pointer))

    def cells(self) -> Any:
        """Return zeroed room for the variable's value, with more than the library says where it is text."""
        if self._variable.kind == "char":
            return ctypes.create_string_buffer(max(self._count.value + 1, TEXT_NBYTES))
        kind = next(one for name, one, _ in _KINDS if name == self._variable.kind)
        return (kind * max(self._count.value, 1))()


class Setting:
    """A value for a variable, made ready: to `put` it and to bring `back` what was there take a microsecond each.

    Slower ways would push what a call needs out of the caches, and a short call just after would pay for it.

    Raises:
        NotWritable: the variable cannot be set, or not any more.
        ToolError: it is bound to an object, or does not take the value.

    """

    def __init__(self, tool: ToolInterface, variable: Variable, value: Value) -> None:
        before = tool.read(variable)
        tool.write(variable, value)  # which is read back, so that `put` need not
        tool.write(variable, before)
        self._variable, self._tool = variable, tool
        self._handle = _CvarHandle(tool, variable).__enter__()
        wanted, self._before = self._handle.cells(), self._handle.cells()
        if variable.kind == "char":
            wanted.value = str(value).encode()
        else:
            wanted[0] = value
        read, write = tool._function("MPI_T_cvar_read"), tool._function("MPI_T_cvar_write")
        self._keep = partial(read, self._handle.pointer, ctypes.byref(self._before))
        self._put = partial(write, self._handle.pointer, ctypes.byref(wanted))
        self._back = partial(write, self._handle.pointer, ctypes.byref(self._before))

    def put(self) -> None:
        """Keep what the variable is, and set it."""
        if self._keep() or self._put():
            raise NotWritable(f"{self._variable.name} cannot be set any more")

    def back(self) -> None:
        """Set it to what it was before."""
        if self._back():
            raise NotWritable(f"{self._variable.name} cannot be set back")

    def free(self) -> None:
        """Give back the handle."""
        self._handle.__exit__()


class Watched:
    """A performance variable bound to a communicator: call it for one number for each rank."""

    def __init__(self, tool: ToolInterface, name: str, comm: MPI.Intracomm) -> None:
        self._tool = tool
        index, kind = self._find(name)
        self._session, self._handle = ctypes.c_void_p(), ctypes.c_void_p()
        count, address = ctypes.c_int(), ctypes.c_void_p(MPI._addressof(comm))
        tool._call("MPI_T_pvar_session_create", ctypes.byref(self._session))
        tool._call(
            *("MPI_T_pvar_handle_alloc", self._session, ctypes.c_int(index), address),
            *(ctypes.byref(self._handle), ctypes.byref(count)),
            about=name,
        )
        self._cells = (kind * count.value)()

    def _find(self, name: str) -> tuple[int, Any]:
        tool = self._tool
        number = ctypes.c_int()
        tool._call("MPI_T_pvar_get_num", ctypes.byref(number))
        found, text = ctypes.create_string_buffer(TEXT_NBYTES), ctypes.create_string_buffer(TEXT_NBYTES)
        for index in range(number.value):
            lengths = [ctypes.c_int(TEXT_NBYTES) for _ in range(2)]
            datatype, enumeration = ctypes.c_size_t(), ctypes.c_void_p()
            verbosity, kind, binding, readonly, continuous, atomic = (ctypes.c_int() for _ in range(6))
            code = tool._function("MPI_T_pvar_get_info")(
                *(ctypes.c_int(index), found, ctypes.byref(lengths[0]), ctypes.byref(verbosity), ctypes.byref(kind)),
                *(ctypes.byref(datatype), ctypes.byref(enumeration), text, ctypes.byref(lengths[1])),
                *map(ctypes.byref, (binding, readonly, continuous, atomic)),
            )
            if not code and found.value.decode() == name:
                bound = _word(BINDINGS, binding.value - FIRST_BINDING[tool.flavour])
                counts = next((one for _, one, mpi in _KINDS if MPI._handleof(mpi) == datatype.value), None)
                if bound == "comm" and continuous.value and counts is not None:
                    return index, counts
        raise NoVariable(f"this MPI library counts no {name!r} by communicator")

    def __call__(self) -> tuple[int, ...]:
        """Return the numbers as they are now. Allowed while another thread is inside MPI."""
        self._tool._call("MPI_T_pvar_read", self._session, self._handle, ctypes.byref(self._cells))
        return tuple(self._cells)

    def free(self) -> None:
        """Give back handle and session."""
        self._tool._call("MPI_T_pvar_handle_free", self._session, ctypes.byref(self._handle))
        self._tool._call("MPI_T_pvar_session_free", ctypes.byref(self._session))


def _word(words: tuple[str, ...], index: int) -> str:
    return words[index] if 0 <= index < len(words) else "unknown"


def _reason(code: int) -> str:
    if MPI.Is_initialized() and not MPI.Is_finalized():
        return MPI.Get_error_string(code)
    return f"error {code}"
