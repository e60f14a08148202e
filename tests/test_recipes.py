"""The recipes of CONTRIBUTING are exact: each is carried out on a toy, in a copy of the tree."""

from __future__ import annotations

from pathlib import Path

from tests.recipes import copy_of_the_tree


def test_a_copy_of_the_tree_stands_by_itself(tmp_path: Path) -> None:
    tree = copy_of_the_tree(tmp_path)
    tree.write("planner/toy.py", "NAME = 'toy'\n")
    tree.patch("planner/toy.py", "'toy'", "'a toy'")
    assert tree.run("import planner.toy; print(planner.toy.NAME, planner.toy.__file__)") == (
        f"a toy {tree.root / 'planner' / 'toy.py'}\n"
    )
    assert tree.touched == {"planner/toy.py"}
