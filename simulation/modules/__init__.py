"""Scaling below the instance as in CoCoServe (methods.md B).

It covers the size of a layer's parts, the speed-up by copies, both algorithms and the cost of
acting.
"""
