"""The generator's HTTP endpoints, one module a group."""
