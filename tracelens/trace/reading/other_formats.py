"""Files of other profilers and packers, told by how they begin: named at once instead of being searched for events."""

from __future__ import annotations

_RECORD = "record with torch.profiler instead"
# Other contents people hand over, by their first bytes.
_SIGNATURES = (
    (b"PK\x03\x04", "a zip archive: unpack it first"),
    (b"\x28\xb5\x2f\xfd", "zstd data: unpack it first (zstd -d)"),
    (b"BZh", "bzip2 data: unpack it first (bunzip2)"),
    (b"\xfd7zXZ\x00", "xz data: unpack it first (unxz)"),
    (b"SQLite format 3\x00", "a SQLite database, but not of Nsight Systems or rocprof: export the report again"),
    (b"\xff\xfe", "UTF-16 text: save it as UTF-8"),
    (b"\xfe\xff", "UTF-16 text: save it as UTF-8"),
    (b"<", "HTML or XML: hand over the profiler's JSON instead"),
)
_PACKET = 0x0A
# A TracePacket of Perfetto is small: so many, each starting where the one before says that it ends, are no chance.
_PACKETS = 3


def named(text: bytes, *, whole: bool) -> str | None:
    """What a file is that begins with ``text``, and what to do with it; None for what may be a trace.

    ``whole``: the file ends with it.
    """
    for start, what in _SIGNATURES:
        if text.startswith(start):
            return what
    if _is_perfetto(text, whole=whole):
        return f"a Perfetto binary trace: {_RECORD}, or export it as JSON where it was made from one"
    return None


def _is_perfetto(text: bytes, *, whole: bool) -> bool:
    """Whether packets follow one another: each is the field 1 of Trace, with its length, in protobuf's encoding."""
    position = 0
    for number in range(_PACKETS):
        if position == len(text):
            return whole and number > 0
        if text[position] != _PACKET:
            return False
        length, position = _varint(text, position + 1)
        position += length
        if position > len(text):
            return False
    return True


def _varint(text: bytes, position: int) -> tuple[int, int]:
    """(the number at ``position``, where it ends); a number that does not end is as large as can be."""
    value = 0
    for shift in range(0, 70, 7):
        if position >= len(text):
            break
        byte = text[position]
        value |= (byte & 0x7F) << shift
        position += 1
        if byte < 0x80:
            return value, position
    return len(text) + 1, position
