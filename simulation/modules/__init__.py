"""Scaling below the instance as CoCoServe has it (methods.md B): what a layer's parts take, how
much faster copies make an instance, both algorithms, and what acting costs."""
