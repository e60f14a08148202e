"""What an uploaded trace is like, as section 3 of SageServe characterises its own.

Read in this order: ``values`` (what is said), ``grid`` (amounts per series and bin), ``lengths``,
``rhythm``, ``volumes`` and ``days`` (a kind of figure each), ``characterise`` (all of it), ``kept``
(beside the trace, so that it is computed once).
"""
