"""Where a study may be: in a writable folder on a local disk, where locks hold."""

import os
import re
from pathlib import Path, PurePosixPath

from calibrant.files.locks import check_locks

MOUNTS = Path("/proc/self/mountinfo")

# File systems that other machines may write at the same time.
NETWORK = {"nfs", "nfs4", "cifs", "smb2", "smb3", "smbfs", "ncpfs", "afs", "coda", "davfs"}
NETWORK |= {"lustre", "gpfs", "beegfs", "ceph", "glusterfs", "pvfs2", "orangefs", "panfs"}
NETWORK |= {"wekafs", "ocfs2", "gfs2", "acfs"}
# The same, by programs of users (FUSE): the part of the type after `fuse.`.
NETWORK_PROGRAMS = {"sshfs", "s3fs", "rclone", "gcsfuse", "goofys", "juicefs", "mfs", "moosefs"}
NETWORK_PROGRAMS |= {"glusterfs", "ceph", "davfs2", "curlftpfs", "smbnetfs", "blobfuse", "nfs"}
NETWORK_PROGRAMS |= {"blobfuse2", "mount-s3", "mountpoint-s3", "hdfs", "fuse_dfs", "seaweedfs"}


def check_place(folder: Path, *, create: bool = False) -> None:
    """Refuse a folder in which a study would fail, or train a run twice."""
    check_locks()
    for each in (folder, *folder.parents):
        if each.exists() and not each.is_dir():
            raise NotADirectoryError(
                f"{each} is a file, but a study needs a folder: choose another"
            )
    kind = network_file_system(folder)
    if kind is not None:
        raise ValueError(
            f"{folder} is on a network file system ({kind}), where locks do not hold: choose a "
            "folder on a local disk; for several machines give --dask ADDRESS"
        )
    if create:
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise OSError(
                error.errno, f"cannot make the folder of the study ({error.strerror})", str(folder)
            ) from error
    if folder.is_dir() and not os.access(folder, os.W_OK | os.X_OK):
        raise PermissionError(f"{folder} is not writable: change its permissions or choose another")


def network_file_system(folder: Path) -> str | None:
    """Type and mount point of the network file system that the folder is on; None if local."""
    if not MOUNTS.exists():
        return None
    real = PurePosixPath(os.path.realpath(folder))
    found, depth = None, 0
    for line in MOUNTS.read_text(errors="surrogateescape").splitlines():
        before, _, after = line.partition(" - ")
        if not after:
            continue
        kind, source = after.split(" ")[:2]
        # Spaces and tabs are written in octal.
        point = PurePosixPath(re.sub(r"\\([0-7]{3})", _character, before.split(" ")[4]))
        # Of two mounts at one point, the later one covers the earlier.
        if real.is_relative_to(point) and len(point.parts) >= depth:
            depth = len(point.parts)
            found = f"{kind} at {point}" if _over_a_network(kind, source) else None
    return found


def _character(octal: re.Match[str]) -> str:
    return chr(int(octal[1], 8))


def _over_a_network(kind: str, source: str) -> bool:
    if kind in NETWORK:
        return True
    fuse, _, program = kind.partition(".")
    remote = source.startswith("//") or ":" in source
    return fuse == "fuse" and (program in NETWORK_PROGRAMS or remote)
