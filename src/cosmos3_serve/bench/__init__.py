"""Benchmarks of any OpenAI-compatible reasoner: workload, load, validity, figures. No figure leaves an invalid run."""
