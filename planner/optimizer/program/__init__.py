"""The integer program of one or several periods (methods.md E7, E9).

It is SageServe's program (seed 004, section 5) with rows that join periods.

Reading order: ``variables`` and ``families`` state the program. ``cuts`` adds facets for whole
instances. ``search`` solves it. ``conflict`` explains infeasible programs.
"""
