import numpy as np
import pytest

from calibrant import files


@pytest.fixture
def path(tmp_path):
    return tmp_path / "a.csv"


def refused(path, text, words, requested=("logits", "labels")):
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(ValueError, match=words) as caught:
        files.read(path, list(requested))
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


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


def test_a_header_alone_is_no_rows(path):
    for text in ("logits_0,logits_1,labels", "logits_0,logits_1,labels\n\n"):
        path.write_text(text)
        read = files.read(path, ["logits", "labels"])
        assert read["logits"].shape == (0, 2)
        assert read["labels"].shape == (0,)


@pytest.mark.parametrize("text", ["", "\n", " , \n1,2\n", "\ufeff"])
def test_a_file_without_a_header_is_refused(path, text):
    refused(path, text, "has no header line; expected column names")


def test_a_cell_that_is_not_a_number_is_named(path):
    text = "logits,labels\n1,2\n\n3,four\n"
    refused(path, text, r"row 1 \(line 4\), column 'labels': 'four' is not a number")


@pytest.mark.parametrize("cell", ["1_000", "\u0663", "0x10", "1,5", "None", "1\0", "1 2", "--1"])
def test_only_plain_decimal_numbers_are_accepted(path, cell):
    quoted = f'"{cell}"'
    refused(path, f"logits,labels\n{quoted},2\n", r"row 0 .*column 'logits': .* is not a number")


def test_empty_cells_are_counted(path):
    text = "logits,labels,note\n1,2,\n3,,x\n4, ,y\n"
    refused(path, text, r"column 'labels' has 2 empty cells \(first at row 1\); fill them or drop")


@pytest.mark.parametrize(("row", "count"), [("1", 1), ("1,2,3,4", 4), ('"1,2,x', 1)])
def test_rows_of_another_length_are_named(path, row, count):
    text = f"logits,labels,note\n1,2,\n{row}\n"
    refused(path, text, rf"row 1 \(line 3\) has {count} cells, header has 3")


def test_a_missing_name_lists_what_is_there(path):
    refused(path, "logits,y\n1,2\n", r"has no 'labels'; it holds \['logits', 'y'\]")


def test_a_gap_in_the_numbers_names_the_missing_column(path):
    refused(path, "logits_0,logits_2,labels\n1,2,3\n", "column 'logits_1' is missing")


def test_a_duplicate_column_is_refused_only_if_requested(path):
    refused(path, "logits,labels,labels\n1,2,3\n", "column 'labels' appears 2 times")
    assert files.read(path, ["logits"])["logits"].tolist() == [1]


@pytest.mark.parametrize("text", [b"lo\xffgits,labels\n1,2\n", b"logits,labels\n1,2\n1,\xff\n"])
def test_text_that_is_not_utf8_is_refused(path, text):
    refused(path, text, "is not UTF-8 text")


def test_an_endless_header_is_refused(path, monkeypatch):
    refused(path, '"' + "a\n" * 100_000, "cannot read the header line")
    monkeypatch.setattr("calibrant.files.csv_files.MAX_HEADER", 1000)
    refused(path, "a" * 1000, "header line is longer than 1000 characters")


def test_the_limit_on_bytes_holds(path):
    path.write_text("labels\n" + "1\n" * 1000)
    assert len(files.read(path, ["labels"], max_bytes=2007)["labels"]) == 1000
    with pytest.raises(ValueError, match=r"the text declares 2.0 kB, more than 2.0 kB"):
        files.read(path, ["labels"], max_bytes=2006)


def test_urls_and_compressed_files_are_not_opened(path):
    # numpy would take the text for an address or a packed file if it were given the name.
    path.write_text("labels\nhttp://example.invalid/x.gz\n")
    with pytest.raises(ValueError, match="is not a number"):
        files.read(path, ["labels"])
