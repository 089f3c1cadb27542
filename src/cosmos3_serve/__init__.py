"""cosmos3-serve: NVIDIA Cosmos3-Nano in production, as a generator service, a batch client and a reasoner fleet."""

__version__ = "0.1.0"
