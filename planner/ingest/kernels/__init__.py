"""Import of measured operators (kernels) from files into tables of ``simulation.performance``."""

from planner.ingest.kernels.own import Sharing
from planner.ingest.kernels.reader import (
    FORMATS,
    KernelFile,
    kernel_format,
    read_frame,
    read_kernels,
)

__all__ = ["FORMATS", "KernelFile", "Sharing", "kernel_format", "read_frame", "read_kernels"]
