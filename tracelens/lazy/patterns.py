"""A regular expression that is compiled when first used. A report uses a third of those that it imports."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from re import compile as lazy_pattern
else:

    class lazy_pattern:  # noqa: N801 - stands for a function
        """Has every attribute of the compiled expression, from its first use on without a detour."""

        def __init__(self, text, flags=0):
            self._given = text, flags

        def __getattr__(self, name):
            if name.startswith("__"):
                raise AttributeError(name)
            compiled = re.compile(*self._given)
            vars(self).update({each: getattr(compiled, each) for each in dir(compiled) if each[0] != "_"})
            return getattr(compiled, name)


__all__ = ["lazy_pattern"]
