"""What the MPI library at hand can be told to run: its own algorithms by name, read from the library.

Open MPI's ``coll_tuned_<collective>_algorithm`` carries an enumeration and is read when a communicator is made; MPICH's
``MPIR_CVAR_<COLLECTIVE>_INTRA_ALGORITHM`` has its names in its description and is read at every call.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import ClassVar

from collectives.mpit import NoVariable, ToolError, ToolInterface, Value
from collectives.names import UnknownNameError, assigned
from collectives.parameters import Parameter
from collectives.registry import Primitive
from collectives.registry import find as find_primitive

PREFIX = "native:"

FUNCTIONS: Mapping[str, str] = {
    "broadcast": "Bcast",
    "scatter": "Scatter",
    "scatterv": "Scatterv",
    "gather": "Gather",
    "gatherv": "Gatherv",
    "reduce": "Reduce",
    "allgather": "Allgather",
    "allgatherv": "Allgatherv",
    "allreduce": "Allreduce",
    "reduce_scatter": "Reduce_scatter_block",
    "reduce_scatterv": "Reduce_scatter",
    "alltoall": "Alltoall",
    "alltoallv": "Alltoallv",
    "scan": "Scan",
    "exscan": "Exscan",
    "barrier": "Barrier",
}
"""The function of MPI behind a primitive, by mpi4py's name."""

UNEVEN = ("scatter", "gather", "allgather", "reduce_scatter", "alltoall")
"""Primitives that call the function of their form with a ``v`` where blocks are uneven."""

OURS: Mapping[str, str] = {
    "basic_linear": "linear",
    "binary": "binary_tree:segments=1",
    "binary_tree": "binary_tree:segments=1",
    "brucks": "bruck",
    "default": "gather_broadcast",
    "in-order_binary": "in_order_binary:segments=1",
    "k_brucks": "k_bruck:radix={radix}",
    "k_dissemination": "k_dissemination:radix={radix}",
    "knomial": "knomial:radix={radix}",
    "linear_nb": "linear",
    "linear_sync": "throttled",
    "modified_bruck": "bruck",
    "neighbor": "neighbor_exchange",
    "non-overlapping": "reduce_then_scatter",
    "nonoverlapping": "reduce_broadcast",
    "pipeline": "chain:segments=1",
    "recursive_multiplying": "recursive_multiplying:radix={radix}",
    "reduce_scatter_allgather": "rabenseifner",
    "reduce_scatter_gather": "rabenseifner",
    "scatter_allgather": "scatter_allgather:allgather=recursive_doubling",
    "scatter_allgather_ring": "scatter_allgather",
    "scatter_recursive_doubling_allgather": "scatter_allgather:allgather=recursive_doubling",
    "scatter_ring_allgather": "scatter_allgather",
    "scattered": "throttled",
}
"""What our catalogue calls an algorithm that a library names differently."""

OURS_BY_FUNCTION: Mapping[tuple[str, str], str] = {
    ("Allgather", "linear"): "gather_broadcast",
    ("Allreduce", "basic_linear"): "reduce_broadcast",
    ("Allreduce", "tree"): "tree:radix={radix}:segments=1",
    ("Alltoall", "linear"): "spread",
    ("Alltoallv", "basic_linear"): "spread",
    ("Barrier", "bruck"): "dissemination",
    ("Bcast", "chain"): "",  # the library's has several chains
    ("Bcast", "tree"): "binary_tree:segments=1",
    ("Bcast", "pipelined_tree"): "binary_tree",
    ("Reduce", "chain"): "",
    ("Reduce_scatter_block", "basic_linear"): "reduce_then_scatter",
}
"""The same where it depends on the function; empty where only the name is the same."""


@dataclass(frozen=True)
class Choice:
    """One algorithm that the library lists for one function of MPI.

    `variable` and `value` select it; `parameters` are the variables of what can be set, by our words (``radix``,
    ``segsize`` in bytes). `locked` says why it cannot be chosen in this process, empty where it can.
    """

    primitive: Primitive = field(repr=False)
    function: str
    name: str
    variable: str
    value: int
    parameters: Mapping[str, str]
    locked: str = ""

    @property
    def is_form(self) -> bool:
        """Whether it is no algorithm but a form that chooses one by itself: non-blocking, or node by node."""
        return self.name in ("nb", "smp")

    @property
    def ours(self) -> str | None:
        """What our catalogue calls the same algorithm, None where it has none; ``{radix}`` stands for a parameter."""
        named = OURS_BY_FUNCTION.get((self.function, self.name), OURS.get(self.name, self.name))
        return named if named.partition(":")[0] in self.primitive.algorithms else None

    def label(self, parameters: Mapping[str, Value]) -> str:
        """Return ``native:knomial:radix=4``."""
        return PREFIX + ":".join([self.name, *(f"{key}={value}" for key, value in parameters.items())])


OTHER_VALUES: Mapping[str, tuple[Parameter, ...]] = {
    "radix": (2, 3),
    "segsize": (1 << 12,),
    "chains": (1,),
    "requests": (1,),
    "first": (1 << 12,),
    "tree": ("knomial_2",),
}
"""Values of parameters that make a difference to some call."""


class Library:
    """What differs from one MPI library to the other: how it lists its algorithms and how it is told to use one."""

    at_creation: ClassVar[bool]
    """Whether variables are read when a communicator is made, not at each call."""

    when: ClassVar[str]
    """The same in words, for people."""

    def __init__(self, tool: ToolInterface) -> None:
        self.tool = tool

    def choices(self, primitive: Primitive) -> list[Choice]:
        """Return the algorithms that the library lists for the function behind `primitive`."""
        function = FUNCTIONS.get(primitive.name)
        return [] if function is None else self._choices(primitive, function)

    def request(self, primitive: Primitive, name: str) -> Request:
        """Return the algorithm `name`, which the library must have, without parameters."""
        return next(Request(one, {}) for one in self.choices(primitive) if one.name == name)

    def settings(self, request: Request) -> dict[str, Value]:
        """Return what variables must be set to so that it is what runs, the layers above out of its way."""
        choice, parameters = request.choice, request.parameters
        for key in parameters:
            if key not in choice.parameters:
                known = ", ".join(choice.parameters) or "none"
                raise UnknownNameError(
                    f"{PREFIX}{choice.name} of {choice.function} has no parameter {key!r} (it has: {known})"
                )
        own = {choice.parameters[key]: self._value(choice.parameters[key], value) for key, value in parameters.items()}
        return {**self._cleared(choice), choice.variable: choice.value, **own, **request.more}

    def layers(self) -> dict[str, Value]:
        """Return the variables that say which components or layers decide, with their values."""
        raise NotImplementedError

    def ours(self, request: Request) -> str | None:
        """Return the specification of the same algorithm in our catalogue, None where it has none."""
        choice = request.choice
        values = {key: request.parameters.get(key, self.tool.read(one)) for key, one in choice.parameters.items()}
        return None if choice.ours is None else choice.ours.format(**values)

    def counterpart(self, request: Request) -> str | None:
        """Return `ours` in its one canonical spelling, None where it lacks a parameter, or the value of one."""
        specification, template = self.ours(request), request.choice.ours or ""
        if specification is None or any(f"{{{key}}}" not in template for key in request.parameters):
            return None
        try:
            return request.choice.primitive.find(specification).label
        except ValueError:
            return None

    def word(self, variable: str, value: Value) -> str:
        """Return what a variable's value is called."""
        return str(value)

    def _value(self, variable: str, value: Parameter) -> Value:
        """Return the value that a variable must have for this value of a parameter."""
        if not isinstance(value, str) and value < 1:
            raise ValueError(f"{variable}={value}: at least 1 is needed")
        return value

    def other_values(self, choice: Choice, key: str) -> list[Value]:
        """Return values of a parameter to try, to see on which algorithms it acts."""
        return list(OTHER_VALUES[key])

    def _choices(self, primitive: Primitive, function: str) -> list[Choice]:
        raise NotImplementedError

    def _cleared(self, choice: Choice) -> dict[str, Value]:
        raise NotImplementedError

    def _parameters(self, table: Mapping[str, Mapping[str, str]], stem: str, name: str) -> dict[str, str]:
        offered = table.get(name, {})
        return {key: stem + suffix for key, suffix in offered.items() if stem + suffix in self.tool.variables}


class OpenMpi(Library):
    """Open MPI's component ``tuned``. It reads its variables when a communicator is made."""

    at_creation = True
    when = "an algorithm is chosen when a communicator is made: each gets one of its own"

    _SEGSIZE: ClassVar[Mapping[str, str]] = {"segsize": "_segmentsize"}
    _PARAMETERS: ClassVar[Mapping[str, Mapping[str, Mapping[str, str]]]] = {
        "allreduce": {"segmented_ring": _SEGSIZE},
        "bcast": {
            **dict.fromkeys(("pipeline", "split_binary_tree", "binary_tree", "binomial"), _SEGSIZE),
            "chain": {**_SEGSIZE, "chains": "_chain_fanout"},
            "knomial": {**_SEGSIZE, "radix": "_knomial_radix"},
        },
        "reduce": {
            **dict.fromkeys(("pipeline", "binary", "binomial", "in-order_binary"), _SEGSIZE),
            "chain": {**_SEGSIZE, "chains": "_chain_fanout"},
        },
        "alltoall": {"linear_sync": {"requests": "_max_requests"}},
        "gather": {"linear_sync": {"first": "_segmentsize"}},
        "scatter": {"linear_nb": {"requests": "_max_requests"}},
    }

    def _choices(self, primitive: Primitive, function: str) -> list[Choice]:
        collective = function.lower()
        try:
            variable = self.tool.variable(f"coll_tuned_{collective}_algorithm")
        except NoVariable:
            return []
        now = self.tool.read(variable)
        locked = f"{variable.name} is {variable.scope} here: set OMPI_MCA_{variable.name} when the job is launched"
        table = self._PARAMETERS.get(collective, {})
        return [
            Choice(
                *(primitive, function, name, variable.name, value),
                self._parameters(table, variable.name, name),
                "" if variable.writable or now == value else locked,
            )
            for name, value in variable.items.items()
            if name != "ignore"
        ]

    def _cleared(self, choice: Choice) -> dict[str, Value]:
        tuned = int(self.tool.read("coll_tuned_priority"))
        above = {
            name: 0
            for name, priority in self.layers().items()
            if self.tool.variables[name].writable and int(priority) > tuned
        }
        return {**above, "coll_tuned_use_dynamic_rules": True}

    def layers(self) -> dict[str, Value]:
        names = [name for name in self.tool.variables if re.fullmatch(r"coll_[a-z0-9]+_priority", name)]
        return {name: self.tool.read(name) for name in names}


class Mpich(Library):
    """MPICH's algorithms below its device layer. It reads its variables at each call."""

    at_creation = False
    when = "an algorithm is chosen at each call, below the device collectives, which are put out of its way"

    _PARAMETERS: ClassVar[Mapping[str, Mapping[str, Mapping[str, str]]]] = {
        "barrier": {"k_dissemination": {"radix": "DISSEM_KVAL"}, "recexch": {"radix": "RECEXCH_KVAL"}},
        "bcast": {
            "tree": {"tree": "TREE_TYPE", "radix": "TREE_KVAL"},
            "pipelined_tree": {"tree": "TREE_TYPE", "radix": "TREE_KVAL", "segsize": "TREE_PIPELINE_CHUNK_SIZE"},
        },
        "allgather": {
            "k_brucks": {"radix": "BRUCKS_KVAL"},
            "recexch_doubling": {"radix": "RECEXCH_KVAL"},
            "recexch_halving": {"radix": "RECEXCH_KVAL"},
        },
        "allgatherv": {"ring": {"segsize": "PIPELINE_MSG_SIZE"}},
        "alltoall": {"k_brucks": {"radix": "BRUCKS_KVAL"}, "scattered": {"requests": "THROTTLE"}},
        "allreduce": {
            "recursive_multiplying": {"radix": "RECURSIVE_MULTIPLYING_KVAL"},
            "tree": {"tree": "TREE_TYPE", "radix": "TREE_KVAL", "segsize": "TREE_PIPELINE_CHUNK_SIZE"},
            "recexch": {"radix": "RECEXCH_KVAL"},
            "k_reduce_scatter_allgather": {"radix": "RECEXCH_KVAL"},
        },
    }

    def _choices(self, primitive: Primitive, function: str) -> list[Choice]:
        stem = f"MPIR_CVAR_{function.upper()}_"
        try:
            variable = self.tool.variable(f"{stem}INTRA_ALGORITHM")
        except NoVariable:
            return []
        table = {**self._PARAMETERS.get(function.lower(), {}), "nb": {"algorithm": "INTRA_ALGORITHM"}}
        stems = {"nb": f"MPIR_CVAR_I{function.upper()}_"}
        return [
            Choice(
                primitive, function, name, variable.name, value, self._parameters(table, stems.get(name, stem), name)
            )
            for name, value in described_items(variable.description).items()
            if name != "auto"
        ]

    def _value(self, variable: str, value: Parameter) -> Value:
        items = self._items(variable)
        if not items:
            return super()._value(variable, value)
        if value not in items:  # a number that stands for no name ends the process
            raise UnknownNameError(f"{variable} has no value {value!r} (it has: {', '.join(items)})")
        return items[str(value)]

    def word(self, variable: str, value: Value) -> str:
        known = self.tool.variable(variable)
        items = {} if known.kind == "char" else described_items(known.description)
        return next((name for name, one in items.items() if one == value), str(value))

    def other_values(self, choice: Choice, key: str) -> list[Value]:
        items = self._items(choice.parameters[key])
        return list(items.values()) or super().other_values(choice, key)

    def _items(self, variable: str) -> dict[str, int]:
        """Return the names that stand for an algorithm; the library leaves the choice to itself with the others."""
        known = self.tool.variable(variable)
        items = {} if known.kind == "char" else described_items(known.description)
        return {name: value for name, value in items.items() if not name.endswith("auto")}

    def _cleared(self, choice: Choice) -> dict[str, Value]:
        # smp calls the same function inside each node, where it does not apply to itself: some ranks would fail.
        fallback = "silent" if choice.name == "smp" else "error"
        names = ("MPIR_CVAR_DEVICE_COLLECTIVES", "none"), ("MPIR_CVAR_COLLECTIVE_FALLBACK", fallback)
        return {name: described_items(self.tool.variable(name).description)[word] for name, word in names}

    def layers(self) -> dict[str, Value]:
        pattern = r"MPIR_CVAR_(DEVICE_COLLECTIVES|COLLECTIVE_FALLBACK|[A-Z]+_COMPOSITION|[A-Z]+_POSIX_INTRA_ALGORITHM)"
        names = [name for name in self.tool.variables if re.fullmatch(pattern, name)]
        return {name: self.tool.read(name) for name in names}


def described_items(description: str) -> dict[str, int]:
    """Return the names that a description of MPICH lists, one a line as ``ring - Force ring``, with their values.

    The library numbers them in the order in which it lists them.
    """
    names = re.findall(r"^\s*(\w+)\s+- ", description, re.MULTILINE)
    return {name: value for value, name in enumerate(names)}


def library(tool: ToolInterface) -> Library:
    """Return the library behind `tool`."""
    return OpenMpi(tool) if tool.flavour == "openmpi" else Mpich(tool)


# ---------------------------------------------------------------------------------------------------------------
# What was asked for


@dataclass(frozen=True)
class Request:
    """A choice of the library with its parameters, found by its specification; `more` are further variables to set."""

    choice: Choice
    parameters: Mapping[str, Parameter]
    more: Mapping[str, Value] = field(default_factory=dict)

    @property
    def label(self) -> str:
        """The specification in its one canonical spelling."""
        return self.choice.label({**self.parameters, **self.more})

    def also_setting(self, variable: str, value: Value) -> Request:
        """Return the same request with a further variable set, be it of this algorithm or of another."""
        return replace(self, more={**self.more, variable: value})


def find(chosen: Library, primitive: Primitive, specification: str, even: bool = True) -> Request:
    """Return what ``native:NAME:parameter=value`` names, for even blocks or not; 64K is 65536.

    Raises:
        UnknownNameError: the library has no such algorithm or parameter; the message lists those it has.

    """
    name, *words = specification.removeprefix(PREFIX).split(":")
    if not even and primitive.name in UNEVEN:
        primitive = find_primitive(f"{primitive.name}v")
    choices = chosen.choices(primitive)
    if not choices:
        raise UnknownNameError(f"this MPI library has no choice for {primitive.name}; it has its default, native, only")
    for one in choices:
        if one.name == name:
            return Request(one, dict(map(_parameter, words)))
    known = ", ".join(PREFIX + one.name for one in choices)
    raise UnknownNameError(f"this MPI library has no {PREFIX}{name} for {primitive.name} (it has: {known})")


def _parameter(word: str) -> tuple[str, Parameter]:
    key, text = assigned(word, "radix=4")
    number = re.fullmatch(r"(\d+)([KMG]?)", text)
    return key, text if number is None else int(number[1]) << 10 * " KMG".index(number[2] or " ")


def is_forced(algorithm: object) -> bool:
    """Whether `algorithm` names one of the library's own: ``native:ring``."""
    return isinstance(algorithm, str) and algorithm.startswith(PREFIX)


def names(primitive: Primitive) -> list[str]:
    """Return a specification for each algorithm that the loaded library lists for `primitive`, empty if it has none."""
    try:
        with ToolInterface() as tool:
            return [one.label({}) for one in library(tool).choices(primitive)]
    except ToolError:
        return []
