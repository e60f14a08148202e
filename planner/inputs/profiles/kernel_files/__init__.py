"""Read measured operators (kernels) from files into tables of ``simulation.performance``."""

from planner.inputs.profiles.kernel_files.native_format import Sharing
from planner.inputs.profiles.kernel_files.reader import (
    FORMATS,
    KernelFile,
    kernel_format,
    read_frame,
    read_kernels,
)
