"""Characterise an uploaded trace, as section 3 of SageServe does for its own.

Read in this order: ``values`` (the results), ``grid`` (amounts per series and bin), ``lengths``,
``rhythm``, ``volumes`` and ``days`` (one kind of figure each), ``characterise`` (all of them),
``kept`` (stores them with the trace).
"""
