"""What is taken out of a trace to hand on: fewer events, no names, one op as a script."""

from __future__ import annotations
