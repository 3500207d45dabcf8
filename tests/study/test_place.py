"""Folders in which locks would not hold are refused, in one line."""

import os
from pathlib import Path

import pytest

from calibrant.study import place
from calibrant.study.place import check_place

LOCAL = "27 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw"


@pytest.fixture
def mounts(tmp_path, monkeypatch):
    """Pretend that these are mounted, too; %s is the study's folder, %t all but its last letter."""

    def pretend(*lines: str) -> Path:
        folder = tmp_path / "a study"
        folder.mkdir()
        table = tmp_path / "mountinfo"
        escaped = os.path.realpath(folder).replace(" ", "\\040")
        table.write_text(
            "\n".join([LOCAL, *lines]).replace("%s", escaped).replace("%t", escaped[:-1])
        )
        monkeypatch.setattr(place, "MOUNTS", table)
        return folder

    return pretend


def refusal(folder: Path, kind: type[Exception] = ValueError, **options) -> str:
    with pytest.raises(kind) as refused:
        check_place(folder, **options)
    assert "\n" not in str(refused.value)
    return str(refused.value)


REMOTE = [
    *("nfs server:/export", "nfs4 server:/export", "cifs //server/share", "smb3 //server/share"),
    *("lustre 10.0.0.1@tcp:/scratch", "beegfs beegfs_nodev", "gpfs gpfs0", "fuse.s3fs s3fs"),
    *("fuse.sshfs me@server:", "fuse.unheard-of server:/export", "fuse //server/share"),
]


@pytest.mark.parametrize("mounted", REMOTE)
def test_network_file_systems_are_refused_with_what_to_do(mounts, mounted):
    folder = mounts(f"30 27 0:50 / %s rw - {mounted} rw")
    said = refusal(folder)
    assert f"({mounted.split()[0]} at " in said
    assert "--dask ADDRESS" in said
    assert not list(folder.iterdir())
    # Folders that are not there yet lie on the same file system, links on that of their target.
    assert "network" in refusal(folder / "deep" / "er")
    folder.with_name("link").symlink_to(folder)
    assert "network" in refusal(folder.with_name("link") / "study")


@pytest.mark.parametrize(
    "lines",
    [
        ("30 27 0:50 / /elsewhere rw - nfs4 server:/export rw",),
        ("30 27 0:50 / %s-2 rw - nfs4 server:/export rw",),
        ("30 27 0:50 / %t rw - nfs4 server:/export rw",),
        ("30 27 0:50 / %s/cells rw - nfs4 server:/export rw",),
        ("30 27 0:50 / %s rw - nfs4 server:/export rw", "31 30 0:51 / %s rw - tmpfs tmpfs rw"),
        ("30 27 0:51 / %s rw - fuse.fuse-overlayfs fuse-overlayfs rw",),
        ("30 27 0:51 / %s rw - fuseblk /dev/sdb1 rw",),
        ("30 27 0:51 / %s rw shared:2 master:1 - tmpfs server:/looks/so rw", "", "nonsense"),
    ],
)
def test_local_file_systems_next_to_below_or_above_a_network_are_fine(mounts, lines):
    check_place(mounts(*lines))


def test_the_innermost_mount_decides(mounts, tmp_path):
    outer = os.path.realpath(tmp_path)
    folder = mounts(
        "31 30 0:51 / %s rw - ext4 /dev/vdb rw",
        f"30 27 0:50 / {outer} rw - nfs4 server:/export rw",
    )
    check_place(folder)
    assert f"nfs4 at {outer}" in refusal(tmp_path / "other")


def test_systems_without_a_table_of_mounts_are_fine(tmp_path, monkeypatch):
    monkeypatch.setattr(place, "MOUNTS", tmp_path / "none")
    check_place(tmp_path)


def test_a_file_in_place_of_the_folder_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    for folder in (tmp_path / "file", tmp_path / "file" / "study"):
        assert "is a file, but a study needs a folder" in refusal(folder, NotADirectoryError)
