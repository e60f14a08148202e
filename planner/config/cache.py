"""Cache in files, and continue if they cannot be written."""

from typing import Any

from django.core.cache.backends.filebased import FileBasedCache
from django.core.cache.backends.locmem import LocMemCache

_ABSENT = object()


class DiskCache(FileBasedCache):
    """A cache in files that keeps in memory, for this process, what cannot be written.

    Limits of requests are counted in it, so a full disk must not make every request fail.
    """

    def __init__(self, folder: str, params: dict[str, Any]) -> None:
        super().__init__(folder, params)
        self._memory = LocMemCache("beside-the-disk", params)

    def get(self, key: Any, default: Any = None, version: int | None = None) -> Any:
        """Return a value from memory, else from its file, else ``default``."""
        # Memory first: a value there is newer than the file that could not be replaced.
        value = self._memory.get(key, _ABSENT, version)
        if value is not _ABSENT:
            return value
        return super().get(key, default, version)

    def set(self, key: Any, value: Any, *args: Any, **kwargs: Any) -> None:
        """Write a value to its file, or keep it in memory if that fails."""
        try:
            super().set(key, value, *args, **kwargs)
        except OSError:
            self._memory.set(key, value, *args, **kwargs)
        else:
            self._memory.delete(key, kwargs.get("version"))
