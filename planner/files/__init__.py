"""Read and write files safely: atomic writes, damaged files, untrusted documents."""
