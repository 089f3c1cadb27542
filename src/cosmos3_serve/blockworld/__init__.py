"""Block world: scenes drawn by our own code, with captions, questions and measures that need no model.

Importing this room needs numpy; nothing else of the package imports it but the trial and the checks.
"""
