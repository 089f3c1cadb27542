"""Block world: scenes drawn by our own code, with captions, questions and measures that need no model.

Scenes and words are plain Python; drawing and measuring need numpy. The trial, the checks and the benchmarks use it.
"""
