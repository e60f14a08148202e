"""Characterise an uploaded trace, as section 3 of SageServe does for its own.

Read in this order: ``figures`` (the results), ``grid`` (amounts per series and bin),
``periodicity`` and ``volumes`` (one kind of figure each), ``statistics`` (all of them, with days
and lengths), ``cache`` (stores them with the trace).
"""
