"""Sessions: their keys, which replica each lives on, and which replica answers a request."""
