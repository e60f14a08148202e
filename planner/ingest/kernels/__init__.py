"""Import of measured operators (kernels) from files into tables of ``simulation.performance``."""
