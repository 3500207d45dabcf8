import numpy as np
import pytest

from calibrant import files


@pytest.fixture
def path(tmp_path):
    return tmp_path / "a.csv"


@pytest.mark.parametrize("start", ["", "\ufeff"], ids=["plain", "byte order mark"])
@pytest.mark.parametrize("end", ["\n", "\r\n", "\r", "\n\n"])
@pytest.mark.parametrize("last", [True, False])
def test_reads_what_spreadsheets_write(path, start, end, last):
    lines = ['"logits_0",id, logits_1 ,labels', '1.5,"a, ""b""",-2e3,0', ' 1 ,été,"2",1']
    path.write_bytes((start + end.join(lines) + end * last).encode())
    assert files.names(path) == ["logits", "id", "labels"]
    read = files.read(path, ["labels", "logits"])
    np.testing.assert_array_equal(read["logits"], [[1.5, -2000], [1, 2]])
    np.testing.assert_array_equal(read["labels"], [0, 1])


def test_columns_between_others_are_found(path):
    path.write_text("x,a_1,y,z,a_0,b\nu,1,2,v,3,4\n,5,w,w,6,7\n")
    read = files.read(path, ["a", "b"])
    np.testing.assert_array_equal(read["a"], [[3, 1], [6, 5]])
    np.testing.assert_array_equal(read["b"], [4, 7])


@pytest.mark.parametrize("end", ["", "\n\n"])
def test_a_header_alone_is_no_rows(path, end):
    path.write_text(f"logits_0,logits_1,labels{end}")
    read = files.read(path, ["logits", "labels"])
    assert (read["logits"].shape, read["labels"].shape) == ((0, 2), (0,))


NO_HEADER = "has no header line; expected column names"
NO_NUMBER = r"row 0 .*column 'logits': .* is not a number"
# Texts after the header `logits,labels`; numpy would open an address or a packed file.
NUMBERS = ["1_000", "\u0663", "0x10", "1,5", "None", "1\0", "1 2", "--1", "http://a.invalid/x.gz"]
REFUSED = {
    **dict.fromkeys(["", "\n", " , \n1,2\n", "\ufeff"], NO_HEADER),
    "logits,labels\n1,2\n\n3,four\n": r"row 1 \(line 4\), column 'labels': 'four' is not a number",
    **{f'logits,labels\n"{cell}",2\n': NO_NUMBER for cell in NUMBERS},
    "logits,labels,note\n1,2,\n3,,x\n4, ,y\n": (
        r"column 'labels' has 2 empty cells \(first at row 1\); fill them or drop"
    ),
    "logits,labels,note\n1,2,\n1\n": r"row 1 \(line 3\) has 1 cells, header has 3",
    "logits,labels,note\n1,2,\n1,2,3,4\n": r"row 1 \(line 3\) has 4 cells, header has 3",
    'logits,labels,note\n1,2,\n"1,2,x\n': r"row 1 \(line 3\) has 1 cells, header has 3",
    "logits_0,logits_2,labels\n1,2,3\n": "column 'logits_1' is missing",
    b"lo\xffgits,labels\n1,2\n": "is not UTF-8 text",
    b"logits,labels\n1,2\n1,\xff\n": "is not UTF-8 text",
    '"' + "a\n" * 100_000: "cannot read the header line",
}


@pytest.mark.parametrize(("text", "words"), REFUSED.items(), ids=range(len(REFUSED)))
def test_a_csv_file_that_is_no_table_of_numbers_is_refused(path, refused, text, words):
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    refused(path, words, ["logits", "labels"])


def test_a_duplicate_column_is_refused_only_if_requested(path, refused):
    path.write_text("logits,labels,labels\n1,2,3\n")
    refused(path, "column 'labels' appears 2 times", ["labels"])
    assert files.read(path, ["logits"])["logits"].tolist() == [1]


def test_an_endless_header_is_refused(path, refused, monkeypatch):
    monkeypatch.setattr("calibrant.files.csv_files.MAX_HEADER", 1000)
    path.write_text("a" * 1000)
    refused(path, "header line is longer than 1000 characters")


def test_the_limit_on_bytes_holds(path, refused):
    path.write_text("labels\n" + "1\n" * 1000)
    assert len(files.read(path, ["labels"], max_bytes=2007)["labels"]) == 1000
    refused(path, "the text declares 2.0 kB, more than 2.0 kB", ["labels"], max_bytes=2006)


@pytest.mark.parametrize("delimiter", [";", "\t"])
def test_the_header_line_tells_the_delimiter_which_is_kept(path, delimiter):
    lines = ['"logits_0, raw",note,logits_0,logits_1,labels', '9,"a, ""b""; c",1.5,-2e3,cat']
    lines = [line.replace(",", delimiter).replace(delimiter + " ", ", ") for line in lines]
    path.write_text("\n".join([*lines, ""]))
    assert files.columns(path) == ["logits_0, raw", "note", "logits_0", "logits_1", "labels"]
    read = files.read(path, ["labels", "logits"], text=["labels"])
    np.testing.assert_array_equal(read["logits"], [[1.5, -2000]])
    assert read["labels"].tolist() == ["cat"]
    new = path.with_name("b.csv")
    files.rewrite(new, [path, path], {"logits_0": np.array([3, 4]), "logits_1": None})
    found = new.read_text().splitlines()
    assert files.columns(new) == ["logits_0, raw", "note", "logits_0", "labels"]
    assert len(found[0].split(delimiter)) == 4
    assert [line.split(delimiter)[-2:] for line in found[1:]] == [["3", "cat"], ["4", "cat"]]
    assert [line.split(delimiter)[0] for line in found[1:]] == ["9", "9"]
    read = files.read(new, ["logits"])
    np.testing.assert_array_equal(read["logits"], [[3], [4]])


def test_tsv_files_are_written_and_read_with_tabs(path):
    path = path.with_suffix(".tsv")
    files.write(path, {"logits": np.eye(2), "labels": np.array(["a, b", "c"])})
    assert path.read_text().startswith("logits_0\tlogits_1\tlabels\n1.0\t0.0\ta, b\n")
    assert files.read(path, ["logits", "labels"], text=["labels"])["labels"][0] == "a, b"
    path.write_text("logits,raw\tlabels\n1\t2\n")
    assert files.columns(path) == ["logits,raw", "labels"]


def test_a_decimal_comma_is_refused(path, refused):
    path.write_text("logits;labels\n-1,5e-3;2\n")
    words = "'-1,5e-3' is not a number; write decimals with a point, not with a comma"
    refused(path, rf"row 0 \(line 2\), column 'logits': {words}", ["logits", "labels"])
