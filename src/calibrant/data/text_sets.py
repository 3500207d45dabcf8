"""Text classification datasets, from the files of their authors or from npz files."""

import csv
import io
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from calibrant.data.finding import first, first_with, labelled_texts
from calibrant.data.source import Part, Source, texts_in_memory
from calibrant.files.checks import human, one_line

MAX_BYTES = 2 * 2**30
MAX_MESSAGE = 2 * 2**20
AGNEWS_NAMES = ("World", "Sports", "Business", "Sci/Tech")
SST5_NAMES = ("very negative", "negative", "neutral", "positive", "very positive")
TREC_NAMES = ("ABBR", "DESC", "ENTY", "HUM", "LOC", "NUM")
NEWS_NAMES: tuple[str, ...] = ("alt.atheism", "comp.graphics", "comp.os.ms-windows.misc")
NEWS_NAMES += ("comp.sys.ibm.pc.hardware", "comp.sys.mac.hardware", "comp.windows.x")
NEWS_NAMES += ("misc.forsale", "rec.autos", "rec.motorcycles", "rec.sport.baseball")
NEWS_NAMES += ("rec.sport.hockey", "sci.crypt", "sci.electronics", "sci.med", "sci.space")
NEWS_NAMES += ("soc.religion.christian", "talk.politics.guns", "talk.politics.mideast")
NEWS_NAMES += ("talk.politics.misc", "talk.religion.misc")

# A tree's own label, and the words at its leaves: (3 (2 The) (4 Rock)).
_ROOT = re.compile(r"\s*\((\d) ")
_LEAF = re.compile(r"\(\d ([^()\s]+)\)")

Documents = Iterator[tuple[str, int]]


def newsgroups(folders: list[Path]) -> Source:
    """20 Newsgroups by date, with headers, in `20news-bydate-train/<group>/<number>` files."""
    trained = first_with(folders, [".", "20news-bydate", "20news"], "20news-bydate-train")
    if trained is None:
        return _from_npz(folders, ["20news_bydate.npz"], NEWS_NAMES, 400)
    train, test = (_groups(trained / f"20news-bydate-{split}") for split in ("train", "test"))
    return Source(train, test, class_names=NEWS_NAMES, length=400)


def agnews(folders: list[Path]) -> Source:
    """AG News: topic of a title and a description, in `train.csv` and `test.csv`."""
    folder = first_with(folders, ["ag_news_csv", "ag_news", "agnews", "."], "train.csv")
    if folder is None:
        return _from_npz(folders, ["agnews_10k.npz", "agnews.npz"], AGNEWS_NAMES, 64)
    train, test = (_part(folder / f"{split}.csv", _parse_csv) for split in ("train", "test"))
    return Source(train, test, class_names=AGNEWS_NAMES, length=64)


def sst5(folders: list[Path]) -> Source:
    """Stanford sentiment treebank: whole sentences, five classes; its dev split is val."""
    folder = first_with(folders, ["trees", "sst5", "sst", "."], "dev.txt")
    if folder is None:
        return _from_npz(folders, ["sst5.npz"], SST5_NAMES, 50, val="dev")
    train, val, test = (_part(folder / f"{s}.txt", _parse_trees) for s in ("train", "dev", "test"))
    return Source(train, test, val, class_names=SST5_NAMES, length=50)


def trec(folders: list[Path]) -> Source:
    """TREC: what a question asks for, six coarse classes."""
    folder = first_with(folders, ["trec", "TREC", "."], "train_5500.label")
    if folder is None:
        return _from_npz(folders, ["trec.npz"], TREC_NAMES, 24)
    names = ("train_5500.label", "TREC_10.label")
    train, test = (_part(folder / name, _parse_questions) for name in names)
    return Source(train, test, class_names=TREC_NAMES, length=24)


def _from_npz(
    folders: Sequence[Path],
    names: Sequence[str],
    classes: tuple[str, ...],
    length: int,
    val: str | None = None,
) -> Source:
    path = first(folders, names)
    if path is None:
        raise FileNotFoundError(f"neither the original files nor {names[0]}")
    train, test = (labelled_texts(path, split, len(classes)) for split in ("train", "test"))
    own = None if val is None else labelled_texts(path, val, len(classes))
    return Source(train, test, own, class_names=classes, length=length)


def _part(path: Path, parse: Callable[[Path, str], Documents]) -> Part:
    if not path.is_file():
        raise FileNotFoundError(f"no such file: {path}")
    size = path.stat().st_size
    if size > MAX_BYTES:
        raise ValueError(f"{path} has {human(size)}, more than {human(MAX_BYTES)}")
    content = path.read_bytes()
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError:
        # TREC is latin-1, which can decode any bytes.
        text = content.decode("latin-1")
    texts, labels = [], []
    for document, label in parse(path, text):
        texts.append(document)
        labels.append(label)
    if not texts:
        raise ValueError(f"{path} has no examples")
    return texts_in_memory(texts, labels)


def _parse_csv(path: Path, text: str) -> Documents:
    """Each line has a class from 1 to 4 and texts, which are joined."""
    try:
        for row in csv.reader(io.StringIO(text, newline=""), strict=True):
            if len(row) < 2 or row[0] not in ("1", "2", "3", "4"):
                raise _wrong(path, ",".join(row), "a class from 1 to 4 and a text")
            yield " ".join(row[1:]), int(row[0]) - 1
    except csv.Error as error:
        raise ValueError(f"{path} is not a csv file: {one_line(error)}") from None


def _parse_trees(path: Path, text: str) -> Documents:
    for line in text.split("\n"):
        if not line.strip():
            continue
        root, words = _ROOT.match(line), _LEAF.findall(line)
        if root is None or not words or root[1] not in "01234":
            raise _wrong(path, line, "a tree such as (3 (2 The) (4 Rock)), labels 0 to 4")
        yield " ".join(words), int(root[1])


def _parse_questions(path: Path, text: str) -> Documents:
    number = {name: i for i, name in enumerate(TREC_NAMES)}
    # Not splitlines: in latin-1 the byte 0x85 would end a line.
    for line in text.split("\n"):
        if not line.strip():
            continue
        kind, _, question = line.rstrip("\r").partition(" ")
        coarse = kind.partition(":")[0]
        if coarse not in number or not question:
            raise _wrong(path, line, f"a class ({', '.join(number)}) and a question")
        yield question, number[coarse]


def _groups(folder: Path) -> Part:
    """One folder per group, one file per message."""
    if not folder.is_dir():
        raise FileNotFoundError(f"no such folder: {folder}")
    texts, labels = [], []
    for label, name in enumerate(NEWS_NAMES):
        if not (folder / name).is_dir():
            raise ValueError(f"{folder} has no folder {name}")
        for path in sorted((folder / name).iterdir()):
            if not path.is_file() or path.stat().st_size > MAX_MESSAGE:
                raise ValueError(f"{path} must be a file of at most {human(MAX_MESSAGE)}")
            texts.append(path.read_bytes().decode("latin-1"))
            labels.append(label)
    return texts_in_memory(texts, labels)


def _wrong(path: Path, line: str, expected: str) -> ValueError:
    return ValueError(f"{path}: a line must be {expected}, got {one_line(line, 60)!r}")
