"""Scaling below the instance as in CoCoServe (methods.md B).

An instance gets more speed or memory when modules (layers, or parts of one) are copied or moved to
other devices. ``parts`` has the sizes of modules and the cost of an action. ``scale_up`` chooses
copies (Algorithm 1), ``reduction`` moves and removes modules (Algorithm 2), and ``layout`` computes
the speed and memory of an instance by the placement of its modules.
"""
