import sys

import numpy as np
import pytest

from calibrant import files
from calibrant.extras import need


def test_an_installed_module_is_returned():
    assert need("json.decoder", extra="audit", what="this").__name__ == "json.decoder"


def test_a_missing_module_says_how_to_install_it():
    words = r"^reading x files needs no_such_module: pip install 'calibrant\[audit\]'$"
    with pytest.raises(ImportError, match=words):
        need("no_such_module.part", extra="audit", what="reading x files")


@pytest.mark.parametrize("line", ["import no_such_module", "raise ImportError('wrong\\nbuild')"])
def test_a_broken_module_says_why(tmp_path, monkeypatch, line):
    (tmp_path / "broken_module.py").write_text(line)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(
        ImportError, match=r"^this needs broken_module, which fails to import: "
    ) as e:
        need("broken_module", extra="audit", what="this")
    assert "\n" not in str(e.value)


@pytest.mark.parametrize(
    ("suffix", "package"), [(".parquet", "pyarrow"), (".safetensors", "safetensors")]
)
def test_files_of_a_missing_extra_say_how_to_install_it(tmp_path, monkeypatch, suffix, package):
    path = tmp_path / f"a{suffix}"
    arrays = {"labels": np.arange(3)}
    files.write(path, arrays)
    for name in list(sys.modules):
        if name.partition(".")[0] == package:
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, package, None)
    install = rf"{suffix[1:]} files needs {package}: pip install 'calibrant\[audit\]'$"
    for use in (lambda: files.names(path), lambda: files.read(path, ["labels"])):
        with pytest.raises(ImportError, match=f"^reading {install}"):
            use()
    with pytest.raises(ImportError, match=f"^writing {install}"):
        files.write(path, arrays)
    assert [entry.name for entry in tmp_path.iterdir()] == [path.name]
