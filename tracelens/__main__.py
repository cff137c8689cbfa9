"""``python -m tracelens``: the command, where its script is not on the path."""

from __future__ import annotations

import sys

from tracelens.cli import main

if __name__ == "__main__":
    sys.exit(main())
