"""The plain files of a tar, looked at with suspicion: nothing in it may reach out of its folder."""

from __future__ import annotations

import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from facetrain_datasets.errors import DatasetError

_COMPRESSED = {b"\x1f\x8b": "gzip", b"BZh": "bzip2", b"\xfd7zXZ": "xz", b"\x28\xb5\x2f\xfd": "zstd"}
_MAX_PADDING_BYTES = 1 << 20
_MAX_NAME_BYTES = 1 << 20  # of a header that holds a long name, or more about the next member
_OF_NEXT_MEMBER = frozenset(
    {
        tarfile.GNUTYPE_LONGNAME,
        tarfile.GNUTYPE_LONGLINK,
        tarfile.XHDTYPE,
        tarfile.XGLTYPE,
        tarfile.SOLARIS_XHDTYPE,
    }
)


class _Header(tarfile.TarInfo):
    """Reads of an ordinary file's header what is needed here, in a third of the time."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> _Header:
        is_ordinary = len(buf) == tarfile.BLOCKSIZE and buf[156:157] == tarfile.REGTYPE
        if not is_ordinary or buf[345] or buf[124] & 0x80:  # a longer name, a size in binary
            full = super().frombuf(buf, encoding, errors)
            if full.type in _OF_NEXT_MEMBER and full.size > _MAX_NAME_BYTES:
                raise tarfile.HeaderError(f"a name of {full.size:,} bytes")
            return full
        if int(buf[148:156].strip(b" \0"), 8) != sum(buf[:148]) + 8 * ord(" ") + sum(buf[156:]):
            raise tarfile.HeaderError("bad checksum")
        header = cls(buf[:100].partition(b"\0")[0].decode(encoding, errors))
        header.size = int(buf[124:136].strip(b" \0") or b"0", 8)
        return header


def plain_members(shard: Path, file: BinaryIO) -> Iterator[tarfile.TarInfo]:
    """The plain files of a tar, in its order.

    `TarFile.next` takes a damaged header for the end of the archive, so headers are read here.

    Args:
        shard: the tar.
        file: the same, open; whoever takes the members may move in it.

    Raises:
        DatasetError: compressed, cut or damaged, or with a member that cannot be trusted.
    """
    size = shard.stat().st_size
    _refuse_compressed(shard, file.read(8))
    archive: tarfile.TarFile | None = None
    position = 0
    while True:
        file.seek(position)
        try:
            if archive is None:
                archive = tarfile.TarFile(fileobj=file, tarinfo=_Header)
                file.seek(0)
            member = _Header.fromtarfile(archive)
        except tarfile.EOFHeaderError:  # type: ignore[attr-defined]
            return _check_end(shard, file)
        except (tarfile.TarError, ValueError, ArithmeticError, RecursionError) as error:
            raise _damaged(shard, position, str(error)) from None
        end = archive.offset
        if member.size < 0 or not position < end <= size:
            raise _damaged(shard, position, f"a member of {member.size} bytes")
        position = end
        if _is_plain(shard, member):
            yield member


def _check_end(shard: Path, file: BinaryIO) -> None:
    if file.read(_MAX_PADDING_BYTES).strip(b"\0"):
        raise DatasetError(
            f"{shard}: goes on after its end: archives put one behind the other; "
            f"give them one by one, or join them with tar --concatenate"
        )


def _damaged(shard: Path, position: int, reason: str) -> DatasetError:
    return DatasetError(
        f"{shard}: cut, damaged or no tar: {reason} at byte {position}; restore the file"
    )


def _refuse_compressed(shard: Path, head: bytes) -> None:
    kind = next((kind for magic, kind in _COMPRESSED.items() if head.startswith(magic)), None)
    if kind is not None:
        raise DatasetError(
            f"{shard}: compressed with {kind}; images are read in place, so uncompress it first "
            f"(compression gains nothing on JPEG)"
        )


def _is_plain(shard: Path, member: tarfile.TarInfo) -> bool:
    """Whether a member is a file to look at; those that could do harm elsewhere are refused."""
    name = member.name
    if name.startswith(("/", "\\")) or ".." in name.replace("\\", "/").split("/"):
        raise DatasetError(
            f"{shard}: member {name!r} leads out of the folder; the shard is not to be trusted"
        )
    if member.isdir():
        return False
    if not member.isreg() or member.issparse():
        raise DatasetError(
            f"{shard}: member {name!r} is a link, a device or a sparse file; "
            f"write the shard anew with plain files (tar --dereference --hard-dereference)"
        )
    return not name.rpartition("/")[2].startswith(".")
