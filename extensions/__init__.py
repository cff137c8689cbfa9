"""Bundled extensions: the ops of training frameworks, on the public API of ``tracelens`` alone.

In the wheel this folder is the package ``tracelens_extensions``. Each module switches itself on when a trace holds one
of its op names.
"""
