"""The compilation cache must notice an edit in any file that an entry point calls into."""

import importlib.util

from simulation.compiled import source_stamp


def load(path):
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_stamp_follows_every_source(tmp_path):
    first, second = tmp_path / "first.py", tmp_path / "second.py"
    first.write_text("x = 1\n")
    second.write_text("y = 1\n")
    before = source_stamp(load(first), load(second))
    assert before == source_stamp(load(first), load(second))
    second.write_text("y = 2  # edited\n")
    assert before != source_stamp(load(first), load(second))
