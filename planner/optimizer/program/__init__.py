"""The integer program of one period or several (SageServe's, seed 004 section 5, and what joins
periods; methods.md E7, E9).

Read ``variables`` and ``families`` for what it says, ``cuts`` for what whole instances imply,
``search`` for how it is solved and ``conflict`` for what cannot hold together.
"""
