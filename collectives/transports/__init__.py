"""Ways to carry a layout's transfers between ranks."""

STAGED, DIRECT = "staged", "direct"
TRANSPORTS = (STAGED, DIRECT)
"""How messages between GPUs can go: through pinned memory of the host, or from GPU memory that MPI is handed."""

NCCL = ("nccl", "nccl:ring", "nccl:tree")
"""NCCL as it chooses by itself, and as it is told to."""
