"""Parts as another process would hand them over: one after the other, written and read back."""

from collections.abc import Sequence
from typing import Any, TypeVar

from planner.domain.encoding import decode, encode
from planner.domain.progress import Progress
from planner.domain.run_parts import Part, Parts

T = TypeVar("T")


class OneByOne(Parts):
    def map(
        self,
        parts: Sequence[Part[T]],
        progress: Progress,
        *,
        shared: Sequence[Any] = (),
        at_once: int = 1,
    ) -> list[T]:
        return [decode(encode(part.compute(progress), shared), shared) for part in parts]
