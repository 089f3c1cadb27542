"""DOUBLE of the pinned framework, for tests of the wiring: its names and signatures, none of its code or its model."""
