"""Functions of arrays of the stand-in: kernels in the queue, as NumPy computes them once somebody waits.

What a result will be, its shape and dtype, must be known when the kernel is put in: NumPy is asked by way of arrays
of the same shapes that have nothing in them.
"""

import numpy as np

from ._array import _put as put
from ._array import ndarray


def _replaced(value, array):
    """Return nested arguments with arrays of the stand-in replaced."""
    if isinstance(value, ndarray):
        return array(value)
    return type(value)(_replaced(one, array) for one in value) if isinstance(value, (tuple, list)) else value


def _arrays(value):
    if isinstance(value, ndarray):
        yield value
    elif isinstance(value, (tuple, list)):
        for one in value:
            yield from _arrays(one)
    elif isinstance(value, (np.ndarray, np.generic)) and not isinstance(value, (float, complex)):
        raise TypeError(f"Unsupported type {type(value)}")


def _blank(array):
    """Return an array of zeros of this shape, that takes no memory."""
    return np.broadcast_to(np.zeros((), array.dtype), array.shape)


def computed(function, *arguments, out=None, **more):
    """Put a kernel into the queue and return what it will have computed."""
    arrays = list(_arrays(arguments))
    with np.errstate(all="ignore"):
        tried = function(*(_replaced(one, _blank) for one in arguments), **more)
    if out is None:
        out = ndarray(tried.shape, tried.dtype)
    elif not isinstance(out, ndarray):
        raise TypeError(f"Unsupported type {type(out)}")

    def work():
        with np.errstate(all="ignore"):  # a GPU warns of nothing
            values = function(*(_replaced(one, lambda each: each._twin) for one in arguments), **more)
        np.copyto(out._twin, values, casting="same_kind")

    put("kernels", work, *arrays, out)
    return out


class ufunc:  # noqa: N801 -- CuPy's name
    """An element-wise function of arrays and Python's numbers, at least one of them an array."""

    nout = 1

    def __init__(self, function):
        self._function, self.__name__, self.nin = function, function.__name__, function.nin

    def __call__(self, *operands, out=None, **more):
        if more:
            raise TypeError(f"the stand-in's {self.__name__} takes no {', '.join(more)}")
        if len(operands) == self.nin + 1:
            *operands, out = operands
        if len(operands) != self.nin or not any(isinstance(one, ndarray) for one in operands):
            raise TypeError(f"{self.__name__} takes {self.nin} arrays of the device, or numbers beside one")
        for one in operands:
            if not isinstance(one, (ndarray, bool, int, float, complex)):
                raise TypeError(f"Unsupported type {type(one)}")
        return computed(self._function, *operands, out=out)


class add_ufunc(ufunc):  # noqa: N801
    """The one of which `at` is used too."""

    def at(self, target, places, values):
        for one in (target, places, values):
            if not isinstance(one, ndarray):
                raise TypeError(f"Unsupported type {type(one)}")

        def work():
            np.add.at(target._twin, places._twin, values._twin)

        put("kernels", work, target, places, values)


def function_of(function):
    """Return the stand-in's form of a function of NumPy, which takes arrays, also in lists."""

    def call(*arguments, **more):
        if not any(True for _ in _arrays(arguments)):
            raise TypeError(f"{function.__name__} takes arrays of the device")
        return computed(function, *arguments, **more)

    call.__name__ = function.__name__
    return call


def split(array, sections, axis=0):
    """Cut into views."""
    if not isinstance(array, ndarray):
        raise TypeError(f"Unsupported type {type(array)}")
    return [array._like(one) for one in np.split(array._twin, sections, axis=axis)]


def full(shape, value, dtype=float):
    result = ndarray(shape, dtype)
    result.fill(value)
    return result


def full_like(array, value):
    return full(array.shape, value, array.dtype)


def zeros_like(array):
    return full(array.shape, 0, array.dtype)


def arange(*limits):
    values = np.arange(*limits)
    result = ndarray(values.shape, values.dtype)
    put("kernels", lambda: np.copyto(result._twin, values), result)
    return result


def gathered(array, key):
    """Return elements at places that an array of the device names."""
    return computed(lambda one, *places: one[_inside(key, places)], array, *_places(key))


def scattered(array, key, value):
    """Set elements at such places."""
    if not isinstance(value, (ndarray, int, float)):
        raise TypeError(f"Unsupported type {type(value)}")
    places = _places(key)

    def work():
        array._twin[_inside(key, [one._twin for one in places])] = value._twin if isinstance(value, ndarray) else value

    put("kernels", work, array, *places, *([value] if isinstance(value, ndarray) else []))


def names_places(key):
    """Whether a key has an array of the device in it."""
    return any(isinstance(one, ndarray) for one in (key if isinstance(key, tuple) else (key,)))


def _places(key):
    places = [one for one in (key if isinstance(key, tuple) else (key,)) if isinstance(one, ndarray)]
    if any(one.dtype.kind not in "iu" for one in places):
        raise NotImplementedError("how many elements a mask chooses is known only when the device has been waited for")
    return places


def _inside(key, places):
    """Return the key with these arrays in place of the device's."""
    left = iter(places)
    parts = tuple(
        next(left) if isinstance(one, ndarray) else one for one in (key if isinstance(key, tuple) else (key,))
    )
    return parts if isinstance(key, tuple) else parts[0]


REDUCTIONS = {"sum": np.sum, "max": np.max, "min": np.min, "mean": np.mean}
OPERATORS = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "truediv": np.true_divide,
    "floordiv": np.floor_divide,
    "mod": np.remainder,
    "pow": np.power,
    "matmul": np.matmul,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
}
COMPARISONS = {
    "eq": np.equal,
    "ne": np.not_equal,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
}
UNARY = {"neg": np.negative, "invert": np.invert, "abs": np.absolute}


def _give_operators():
    """Give arrays their operators and reductions."""

    def both(function):
        operate = ufunc(function)
        return (
            lambda self, other: operate(self, other),
            lambda self, other: operate(other, self),
            lambda self, other: operate(self, other, out=self),
        )

    def alone(function):
        operate = ufunc(function)
        return lambda self: operate(self)

    def reduction(function):
        return lambda self, axis=None, keepdims=False: computed(function, self, axis=axis, keepdims=keepdims)

    for name, function in OPERATORS.items():
        for prefix, method in zip(("", "r", "i"), both(function), strict=True):
            setattr(ndarray, f"__{prefix}{name}__", method)
    for name, function in COMPARISONS.items():
        setattr(ndarray, f"__{name}__", both(function)[0])
    for name, function in UNARY.items():
        setattr(ndarray, f"__{name}__", alone(function))
    for name, function in REDUCTIONS.items():
        setattr(ndarray, name, reduction(function))


_give_operators()
