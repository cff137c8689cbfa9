"""Frames by sheet title, each made by its sheet's function."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from tracelens.registry import Registry

if TYPE_CHECKING:
    import pandas as pd


class Frames(Mapping[str, "pd.DataFrame"]):
    """The frames that the sheets of a registry make of a context, when first asked for; a sheet may read another's.

    A sheet whose function returns None is not there.
    """

    def __init__(self, sheets: Registry, context: object) -> None:
        self._sheets, self._context = sheets, context
        self._made: dict[str, pd.DataFrame | None] = {}

    def get(self, title: str, default: Any = None) -> Any:
        """The frame of a sheet; ``default`` where there is none. A KeyError of the sheet's own is not one of ours."""
        if title not in self._sheets:
            return default
        if title not in self._made:
            self._made[title] = self._sheets[title].target(self._context)
        frame = self._made[title]
        return default if frame is None else frame

    def __getitem__(self, title: str) -> pd.DataFrame:
        frame: pd.DataFrame | None = self.get(title)
        if frame is None:
            raise KeyError(title)
        return frame

    def __contains__(self, title: object) -> bool:
        return isinstance(title, str) and self.get(title) is not None

    def __iter__(self) -> Iterator[str]:
        return (title for title in self._sheets if title in self)

    def __len__(self) -> int:
        return sum(1 for _ in self)


def plain_strings() -> AbstractContextManager[None]:
    """Inside, text of new frames is Python's: where pyarrow is installed, Arrow's of short columns were a fifth of a
    report.
    """
    import pandas as pd

    return pd.option_context("mode.string_storage", "python")
