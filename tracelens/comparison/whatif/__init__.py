"""How long a recorded step would take if something about it were different."""

from __future__ import annotations
