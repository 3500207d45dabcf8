import struct

import matplotlib
import pytest

from calibrant.data import SYNTHETIC
from calibrant.report import reliability_diagram, save


@pytest.fixture(scope="module")
def predictions():
    return SYNTHETIC["overconfident"].sample(300, seed=0).predictions


def png_size(path):
    data = path.read_bytes()
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    return struct.unpack(">II", data[16:24])


def test_png_has_160_dots_per_inch(predictions, tmp_path):
    figure = reliability_diagram(predictions)
    path = save(figure, tmp_path / "a.png")
    width, height = figure.get_size_inches() * 160
    assert png_size(path) == (round(width), round(height))
    assert path.stat().st_size > 10_000


@pytest.mark.parametrize(
    ("ending", "magic"), [("svg", b"<?xml"), ("pdf", b"%PDF"), ("PNG", b"\x89P")]
)
def test_the_same_figure_gives_the_same_bytes(predictions, tmp_path, ending, magic):
    files = [save(reliability_diagram(predictions), tmp_path / f"{i}.{ending}") for i in range(2)]
    one, two = (path.read_bytes() for path in files)
    assert one == two
    assert one.startswith(magic)
    assert len(one) > 3000


def test_the_folder_is_made_but_not_the_one_above(predictions, tmp_path):
    figure = reliability_diagram(predictions)
    assert save(figure, tmp_path / "new" / "a.svg").is_file()
    with pytest.raises(FileNotFoundError, match="no folder"):
        save(figure, tmp_path / "x" / "y" / "a.svg")
    assert not (tmp_path / "x").exists()


def test_another_ending_is_refused(predictions, tmp_path):
    with pytest.raises(ValueError, match=r"must end in .png, .svg, .pdf; got .*a.jpg"):
        save(reliability_diagram(predictions), tmp_path / "a.jpg")


def test_a_failure_leaves_the_old_file_and_no_draft(predictions, tmp_path, monkeypatch):
    path = tmp_path / "a.png"
    path.write_bytes(b"old")
    figure = reliability_diagram(predictions)

    def break_down(handle, **_):
        handle.write(b"half")
        raise OSError("disk full")

    monkeypatch.setattr(figure, "savefig", break_down)
    with pytest.raises(OSError, match="disk full"):
        save(figure, path)
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_saving_leaves_matplotlib_settings_alone(predictions, tmp_path):
    before = matplotlib.rcParams["svg.hashsalt"]
    save(reliability_diagram(predictions), tmp_path / "a.svg")
    assert matplotlib.rcParams["svg.hashsalt"] == before
