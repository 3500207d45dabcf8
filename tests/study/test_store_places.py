"""Folders and files in which a store cannot be trusted are refused, in one line."""

import os
import sqlite3
from pathlib import Path

import numpy as np
import pytest

from calibrant.study import store_place
from calibrant.study.store import Store

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
        monkeypatch.setattr(store_place, "MOUNTS", table)
        return folder

    return pretend


def refusal(folder: Path, kind: type[Exception] = ValueError, **options) -> str:
    with pytest.raises(kind) as refused:
        Store.open(folder, **options).close()
    assert "\n" not in str(refused.value)
    return str(refused.value)


def saved(folder: Path, n: int = 200) -> Path:
    with Store.open(folder) as store:
        store.add([{"seed": seed, "text": "x" * 50} for seed in range(n)])
    return folder / "store.sqlite"


@pytest.mark.parametrize(
    ("kind", "source"),
    [
        ("nfs", "server:/export"),
        ("nfs4", "server:/export"),
        ("cifs", "//server/share"),
        ("smb3", "//server/share"),
        ("lustre", "10.0.0.1@tcp:/scratch"),
        ("beegfs", "beegfs_nodev"),
        ("gpfs", "gpfs0"),
        ("fuse.sshfs", "me@server:"),
        ("fuse.s3fs", "s3fs"),
        ("fuse.unheard-of", "server:/export"),
        ("fuse", "//server/share"),
    ],
)
def test_network_file_systems_are_refused_with_what_to_do(mounts, kind, source):
    folder = mounts(f"30 27 0:50 / %s rw - {kind} {source} rw")
    said = refusal(folder)
    assert f"({kind} at " in said
    assert "--dask ADDRESS" in said
    assert not list(folder.iterdir())
    # Folders that are not there yet lie on the same file system.
    assert "network" in refusal(folder / "deep" / "er")


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
def test_local_file_systems_beside_below_or_above_a_network_are_fine(mounts, lines):
    folder = mounts(*lines)
    with Store.open(folder) as store:
        assert store.add([{"seed": 0}])


def test_the_innermost_mount_decides(mounts, tmp_path):
    outer = os.path.realpath(tmp_path)
    folder = mounts(
        "31 30 0:51 / %s rw - ext4 /dev/vdb rw",
        f"30 27 0:50 / {outer} rw - nfs4 server:/export rw",
    )
    Store.open(folder).close()
    assert f"nfs4 at {outer}" in refusal(tmp_path / "other")


def test_a_link_to_a_network_is_a_network(mounts, tmp_path):
    folder = mounts("30 27 0:50 / %s rw - nfs4 server:/export rw")
    (tmp_path / "link").symlink_to(folder)
    assert "nfs4" in refusal(tmp_path / "link" / "study")


def test_systems_without_a_table_of_mounts_are_fine(tmp_path, monkeypatch):
    monkeypatch.setattr(store_place, "MOUNTS", tmp_path / "none")
    Store.open(tmp_path).close()


def test_a_file_in_place_of_the_folder_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    for folder in (tmp_path / "file", tmp_path / "file" / "study"):
        assert "is a file, but a study needs a folder" in refusal(folder, NotADirectoryError)


def test_a_folder_in_place_of_the_file_is_refused(tmp_path):
    (tmp_path / "store.sqlite").mkdir()
    assert "store.sqlite" in refusal(tmp_path, OSError)


def test_without_create_nothing_is_made(tmp_path):
    for folder in (tmp_path, tmp_path / "new"):
        assert "no study in" in refusal(folder, FileNotFoundError, create=False)
    assert not list(tmp_path.iterdir())


def test_a_newer_version_is_refused_with_both_versions_and_left_alone(tmp_path):
    path = saved(tmp_path)
    with sqlite3.connect(path) as handle:
        handle.execute("PRAGMA user_version = 7")
    handle.close()
    before = path.read_bytes()
    said = refusal(tmp_path)
    assert "has version 7, but this calibrant reads version 1: update calibrant" in said
    assert path.read_bytes() == before


def test_a_database_of_another_program_is_refused_and_left_alone(tmp_path):
    handle = sqlite3.connect(tmp_path / "store.sqlite")
    handle.execute("CREATE TABLE photos (name)")
    handle.close()
    before = (tmp_path / "store.sqlite").read_bytes()
    assert "is no store of a study" in refusal(tmp_path)
    assert (tmp_path / "store.sqlite").read_bytes() == before


def test_an_empty_file_is_no_study_without_cells(tmp_path):
    (tmp_path / "store.sqlite").write_bytes(b"")
    assert "is no store of a study, or damaged" in refusal(tmp_path)


@pytest.mark.parametrize("share", [0.001, 0.1, 0.5, 0.9, 0.999])
def test_a_truncated_file_is_refused_in_one_line(tmp_path, share):
    path = saved(tmp_path)
    data = path.read_bytes()
    path.write_bytes(data[: int(share * len(data))])
    assert "store.sqlite" in refusal(tmp_path)


def test_garbage_is_refused_in_one_line(tmp_path):
    path = saved(tmp_path)
    data = path.read_bytes()
    path.write_bytes(np.random.default_rng(0).bytes(len(data)))
    assert "is damaged (file is not a database)" in refusal(tmp_path)
    # A good head, and nothing good behind it.
    path.write_bytes(data[:4096] + np.random.default_rng(0).bytes(len(data) - 4096))
    assert "is damaged" in refusal(tmp_path)


def read_or_refused(folder: Path) -> list[tuple[str, dict]] | str:
    try:
        with Store.open(folder) as store:
            return [(cell.id, cell.config) for cell in store.cells()]
    except (ValueError, OSError) as error:
        return str(error)


def test_wrong_bytes_anywhere_give_the_same_cells_or_one_line(tmp_path):
    path = saved(tmp_path, n=60)
    data = path.read_bytes()
    expected = read_or_refused(tmp_path)
    draw = np.random.default_rng(0)
    refused = 0
    for _ in range(100):
        place = int(draw.integers(len(data) - 64))
        for beside in tmp_path.glob("store.sqlite-*"):
            beside.unlink()
        path.write_bytes(data[:place] + draw.bytes(64) + data[place + 64 :])
        found = read_or_refused(tmp_path)
        if isinstance(found, str):
            refused += 1
            assert "\n" not in found
            assert "store.sqlite" in found
        else:
            assert found == expected
    assert refused > 20


def test_settings_that_changed_in_the_file_are_not_run(tmp_path):
    path = saved(tmp_path, n=1)
    with sqlite3.connect(path) as handle:
        handle.execute("UPDATE cells SET config = replace(config, '0', '1')")
    handle.close()
    with Store.open(tmp_path) as store:
        with pytest.raises(ValueError, match="have changed"):
            store.claim("w", lease=1.0)
        assert store.counts()["pending"] == 1


def test_a_file_that_has_lost_cells_is_refused(tmp_path):
    path = saved(tmp_path, n=3)
    with sqlite3.connect(path) as handle:
        handle.execute("DELETE FROM cells WHERE position = 1")
    handle.close()
    assert "3 cells were added, 2 are left" in refusal(tmp_path)


def mode(path: Path) -> str:
    handle = sqlite3.connect(path)
    (found,) = handle.execute("PRAGMA journal_mode").fetchone()
    handle.close()
    return found


def test_the_write_ahead_log_is_used_where_it_works(tmp_path):
    assert mode(saved(tmp_path)) == "wal"


def test_without_a_write_ahead_log_the_store_works_as_well(tmp_path, monkeypatch):
    monkeypatch.setattr(store_place, "wal_works", lambda folder: False)
    assert mode(saved(tmp_path)) == "delete"
    with Store.open(tmp_path) as store:
        assert store.finish(store.claim("w", lease=1.0), "done")


def test_the_probe_leaves_nothing_behind(tmp_path):
    assert store_place.wal_works(tmp_path)
    assert not list(tmp_path.iterdir())
    assert not store_place.wal_works(tmp_path / "none")


def test_a_log_that_is_only_promised_is_not_used(tmp_path, monkeypatch):
    class Promising(sqlite3.Connection):
        def execute(self, statement, *values):
            if statement.startswith("CREATE"):
                raise sqlite3.OperationalError("disk I/O error")
            return super().execute(statement, *values)

    connect = sqlite3.connect
    monkeypatch.setattr(
        store_place.sqlite3, "connect", lambda *a, **k: connect(*a, factory=Promising, **k)
    )
    assert not store_place.wal_works(tmp_path)


def test_where_there_are_no_hard_links_a_store_is_made_as_well(tmp_path, monkeypatch):
    def refuse(*paths):
        raise OSError("not supported")

    monkeypatch.setattr(os, "link", refuse)
    path = saved(tmp_path)
    assert [each.name for each in tmp_path.iterdir()] == ["store.sqlite"]
    # Another process was faster: its store stays.
    before = path.read_bytes()
    store_place.create_store(path)
    assert path.read_bytes() == before
