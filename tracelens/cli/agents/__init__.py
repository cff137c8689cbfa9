"""What agents ask: the verbs as tools that read below some folders only, and answer in pages of a few tokens."""

from __future__ import annotations
