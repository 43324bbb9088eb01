"""Ways to carry a layout's transfers between ranks."""

AUTO, STAGED, DIRECT = "auto", "staged", "direct"
TRANSPORTS = (AUTO, STAGED, DIRECT)
"""How data can go between GPUs: through memory of the host, or as messages from GPU memory that MPI is handed, or as
it works anywhere: messages through the host, shared memory on GPUs where these can open one another's."""
