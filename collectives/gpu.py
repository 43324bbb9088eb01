"""The GPU of a rank, put in use before anything is allocated there; or why there is none. Loads CuPy when asked."""

from __future__ import annotations

from dataclasses import dataclass

REMEDIES = {
    "cudaErrorInsufficientDriver": "there is no NVIDIA driver, or one older than CuPy's CUDA: update it, or install "
    "the CuPy of its CUDA (make venv CUDA=12)",
    "cudaErrorNoDevice": "no GPU is visible: see nvidia-smi and CUDA_VISIBLE_DEVICES",
}


class Unusable(Exception):
    """Why there is no GPU to use, and what helps."""


@dataclass(frozen=True)
class Gpu:
    """A rank's GPU. `ranks` use it, this one among them; `free_nbytes` is what nobody used before any of them did.

    `ordinal` is its number among those that this process sees, `identity` its UUID, which is the same for all.
    """

    ordinal: int
    identity: str
    name: str
    nbytes: int
    free_nbytes: int
    ranks: int = 1


def find(local_rank: int) -> Gpu:
    """Return the GPU of the rank with this number on its host, after using it once.

    Raises:
        Unusable: there is none, or CuPy cannot use it.

    """
    try:
        import cupy
    except ImportError as error:
        if error.name == "cupy":
            raise Unusable("CuPy is not installed: make venv CUDA=12, or CUDA=13, as your driver has it") from error
        raise Unusable(f"CuPy cannot be loaded, {error}: install the CuPy of your CUDA (make venv CUDA=12)") from error
    runtime = cupy.cuda.runtime
    try:
        ordinal = local_rank % runtime.getDeviceCount()
        cupy.cuda.Device(ordinal).use()
        free_nbytes, nbytes = runtime.memGetInfo()
        one = cupy.zeros(1, "float32")
        cupy.add(one, one, one)  # compiled here, so that a CuPy of another CUDA shows itself
        cupy.cuda.get_current_stream().synchronize()
    except Exception as error:  # CuPy has many of its own
        known = next((remedy for name, remedy in REMEDIES.items() if name in str(error)), None)
        unknown = f"CuPy {cupy.__version__} cannot use it ({_line(error)}): install the CuPy of your driver's CUDA"
        raise Unusable(known or unknown) from error
    properties = runtime.getDeviceProperties(ordinal)
    uuid = properties.get("uuid")
    identity = uuid.hex() if isinstance(uuid, bytes) else runtime.deviceGetPCIBusId(ordinal)
    name = properties["name"]
    return Gpu(ordinal, identity, name.decode() if isinstance(name, bytes) else str(name), nbytes, free_nbytes)


def _line(error: Exception) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())[:200]
