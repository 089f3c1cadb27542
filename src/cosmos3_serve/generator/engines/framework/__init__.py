"""The framework engine: upstream's own deployment, unmodified, behind our ingress.

`interpreter` finds the Python that has it, `revision` proves that it is the pinned source, `setup` says how it is
started, `deployment` binds it; `port` speaks to it as the coordinator wants, with `overrides` on the way in, `turns`
and `answers` around the call, `faults` on the way out; `supervisor` watches the workers that upstream does not.
Nothing here imports upstream before the interpreter was checked.
"""
