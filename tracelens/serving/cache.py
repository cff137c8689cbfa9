"""A paged key-value cache: blocks, and prompts' beginnings that later requests find again."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from tracelens.errors import UsageError


class BlockPool:
    """``total`` blocks of ``block_tokens`` tokens; ``peak`` is the most that were in use at once.

    Shared beginnings are kept under the hash of each piece of ``piece_tokens`` tokens, as whole blocks. While nobody
    uses a piece it counts as available, and the least recently used one gives way first: to
    ``lower_pieces`` pieces of host memory, of which again the least recently used one is forgotten.
    """

    __slots__ = (
        "_below",
        "_idle",
        "_least",
        "_pieces",
        "available",
        "block_tokens",
        "lower_pieces",
        "piece_blocks",
        "piece_tokens",
        "total",
    )

    def __init__(self, total: int, block_tokens: int, piece_tokens: int = 0, lower_pieces: int = 0) -> None:
        self.total = total
        #: Blocks that can be taken: free ones, and cached pieces that nobody uses.
        self.available = self._least = total
        self.block_tokens = block_tokens
        self.piece_blocks = piece_tokens // block_tokens
        #: Of a piece, those that whole blocks hold.
        self.piece_tokens = self.piece_blocks * block_tokens
        self._pieces: dict[int, int] = {}
        self._idle: OrderedDict[int, None] = OrderedDict()
        self.lower_pieces = lower_pieces
        self._below: OrderedDict[int, None] = OrderedDict()

    @property
    def in_use(self) -> int:
        return self.total - self.available

    @property
    def peak(self) -> int:
        return self.total - self._least

    def blocks(self, tokens: int) -> int:
        """Blocks that hold ``tokens`` tokens."""
        return -(-tokens // self.block_tokens)

    def take(self, blocks: int) -> None:
        """UsageError when there are not as many."""
        left = self.available - blocks
        if left < 0:
            raise UsageError(f"{blocks} blocks requested, but {self.available} of {self.total} are free")
        self.available = left
        if left < self._least:
            self._least = left
        while self._idle and left < len(self._idle) * self.piece_blocks:
            piece, _ = self._idle.popitem(last=False)
            del self._pieces[piece]
            self._keep_below(piece)

    def give(self, blocks: int) -> None:
        """Returns blocks. UsageError when more come back than were taken."""
        self.available += blocks
        if self.available > self.total:
            raise UsageError(f"{self.available} free blocks of {self.total}: more were freed than allocated")

    def cached(self, pieces: Sequence[int]) -> int:
        """How many leading pieces are there."""
        count = 0
        for piece in pieces:
            if piece not in self._pieces:
                break
            count += 1
        return count

    def below(self, pieces: Sequence[int]) -> int:
        """How many of the leading pieces host memory has, which counts as using them."""
        count = 0
        for piece in pieces:
            if piece not in self._below:
                break
            self._below.move_to_end(piece)
            count += 1
        return count

    def _keep_below(self, piece: int) -> None:
        if self.lower_pieces:
            self._below[piece] = None
            self._below.move_to_end(piece)
            if len(self._below) > self.lower_pieces:
                self._below.popitem(last=False)

    def idle_among(self, pieces: Sequence[int]) -> int:
        """Blocks of those pieces that count as available now, and will not once they are held."""
        return sum(piece in self._idle for piece in pieces) * self.piece_blocks

    def hold(self, pieces: Sequence[int]) -> int:
        """A request uses these pieces; those that are missing take blocks. Returns how many were there already."""
        found = self.cached(pieces)
        for piece in pieces:
            if piece in self._pieces:
                self._pieces[piece] += 1
                if piece in self._idle:
                    del self._idle[piece]
                    self.available -= self.piece_blocks
            else:
                self.take(self.piece_blocks)
                self._pieces[piece] = 1
        self._least = min(self._least, self.available)
        return found

    def drop(self, pieces: Sequence[int]) -> None:
        """A request no longer uses these pieces; the last piece of a prompt becomes the first to give way."""
        for piece in reversed(pieces):
            self._pieces[piece] -= 1
            if not self._pieces[piece]:
                self._idle[piece] = None
                self.available += self.piece_blocks
