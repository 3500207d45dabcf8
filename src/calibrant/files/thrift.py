"""Just enough of Thrift's compact encoding to pick numbers out of a record.

References:
    Apache Thrift, doc/specs/thrift-compact-protocol.md
"""

from collections.abc import Mapping
from typing import Any

MAX_DEPTH = 32

_TRUE, _FALSE, _BYTE, _DOUBLE, _BINARY, _LIST, _SET, _MAP, _STRUCT = 1, 2, 3, 7, 8, 9, 10, 11, 12
_INTEGER_BITS = {4: 16, 5: 32, 6: 64}


def decode(data: bytes, keep: Mapping[int, Any]) -> tuple[dict[int, Any], int]:
    """Read one struct from the start of `data`.

    Args:
        data: the record, and perhaps more after it.
        keep: the fields to return, by number, each with the same for the structs inside it; all
            others are skipped, so that they cost no memory.

    Returns:
        the fields that are there, and the length of the record.

    Raises:
        ValueError: this is no such record.
        IndexError: the record goes on after the end of `data`.
    """
    reader = _Reader(data)
    return reader.struct(keep, 0), reader.at


class _Reader:
    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0

    def byte(self) -> int:
        value = self.data[self.at]
        self.at += 1
        return value

    def varint(self) -> int:
        value = 0
        for shift in range(0, 70, 7):
            byte = self.byte()
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
        raise ValueError("integer of more than 64 bits")

    def integer(self, bits: int) -> int:
        # Other readers cut the surplus bits off and so see another number.
        value = self.varint()
        if value >> bits:
            raise ValueError(f"integer of more than {bits} bits")
        return (value >> 1) ^ -(value & 1)

    def take(self, length: int) -> bytes:
        if length > len(self.data) - self.at:
            raise IndexError("record is cut off")
        self.at += length
        return self.data[self.at - length : self.at]

    def struct(self, keep: Mapping[int, Any] | None, depth: int) -> dict[int, Any]:
        if depth > MAX_DEPTH:
            raise ValueError("record is nested too deeply")
        found: dict[int, Any] = {}
        field = 0
        while head := self.byte():
            step, kind = head >> 4, head & 0x0F
            field = field + step if step else self.integer(16)
            inner = keep.get(field) if keep is not None else None
            # Alone among all places, a truth value of a struct sits in the type.
            value = kind == _TRUE if kind in (_TRUE, _FALSE) else self.value(kind, inner, depth)
            if inner is not None:
                # Other readers disagree about which of the two counts.
                if field in found:
                    raise ValueError(f"field {field} appears twice")
                found[field] = value
        return found

    def value(self, kind: int, keep: Mapping[int, Any] | None, depth: int) -> Any:
        if kind in _INTEGER_BITS:
            return self.integer(_INTEGER_BITS[kind])
        if kind in (_TRUE, _FALSE, _BYTE):
            return self.byte()
        if kind == _DOUBLE:
            return self.take(8)
        if kind == _BINARY:
            return self.take(self.varint())
        if kind == _STRUCT:
            return self.struct(keep, depth + 1)
        if kind in (_LIST, _SET):
            head = self.byte()
            size = head >> 4 if head >> 4 < 15 else self.varint()
            return self.items(size, (head & 0x0F,), keep, depth)
        if kind == _MAP:
            size = self.varint()
            both = self.byte() if size else 0
            return self.items(size, (both >> 4, both & 0x0F), None, depth)
        raise ValueError(f"unknown type {kind}")

    def items(
        self, size: int, kinds: tuple[int, ...], keep: Mapping[int, Any] | None, depth: int
    ) -> list[Any]:
        if depth > MAX_DEPTH:
            raise ValueError("record is nested too deeply")
        found = []
        # Every item takes a byte at least, so the end of the data bounds a lying size.
        for _ in range(size):
            for kind in kinds:
                value = self.value(kind, keep, depth + 1)
                if keep is not None:
                    found.append(value)
        return found
