"""Text datasets, from the files of their authors or from npz files; and their token ids."""

import csv
import io
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from calibrant.data.source import Part, Source, first, first_with, labelled_texts, read_bytes
from calibrant.files.checks import one_line

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

# Letters and digits of any alphabet, with an apostrophe inside: don't, o'clock.
_WORD = re.compile(r"[^\W_]+(?:'[^\W_]+)*")

PAD, UNKNOWN = 0, 1

Documents = Iterator[tuple[str, int]]
Words = list[str]


def newsgroups(folders: list[Path]) -> Source:
    """20 Newsgroups by date, with headers, in `20news-bydate-train/<group>/<number>` files."""
    trained = first_with(folders, [".", "20news-bydate", "20news"], "20news-bydate-train")
    if trained is None:
        return _from_npz(folders, ["20news_bydate.npz"], NEWS_NAMES, 400)
    parts = [trained / f"20news-bydate-{split}" for split in ("train", "test")]
    train, test = (_in_memory(folder, _read_groups(folder)) for folder in parts)
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
    content = read_bytes(path, MAX_BYTES)
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError:
        # TREC is latin-1, which can decode any bytes.
        text = content.decode("latin-1")
    return _in_memory(path, parse(path, text))


def _in_memory(path: Path, documents: Iterable[tuple[str, int]]) -> Part:
    pairs = list(documents)
    if not pairs:
        raise ValueError(f"{path} has no examples")
    texts, labels = zip(*pairs, strict=True)
    return Part(torch.tensor(labels), lambda index: [texts[i] for i in index])


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


def _read_groups(folder: Path) -> Documents:
    """One folder per group, one file per message."""
    if not folder.is_dir():
        raise FileNotFoundError(f"no such folder: {folder}")
    for label, name in enumerate(NEWS_NAMES):
        if not (folder / name).is_dir():
            raise ValueError(f"{folder} has no folder {name}")
        for path in sorted((folder / name).iterdir()):
            yield read_bytes(path, MAX_MESSAGE).decode("latin-1"), label


def _wrong(path: Path, line: str, expected: str) -> ValueError:
    return ValueError(f"{path}: a line must be {expected}, got {one_line(line, 60)!r}")


def words_of(document: str, length: int) -> Words:
    """The first words of a document, in lower case.

    >>> words_of("Don't PANIC: it's 42!", 3)
    ["don't", 'panic', "it's"]
    """
    return _WORD.findall(document.lower())[:length]


def vocabulary_of(documents: Sequence[Words], size: int) -> dict[str, int]:
    """Ids of the most frequent words, ties in alphabetical order; 0 pads and 1 is unknown."""
    counts = Counter(chain.from_iterable(documents))
    # Two sorts are faster than one with a (count, word) key.
    ordered = sorted(sorted(counts), key=counts.__getitem__, reverse=True)
    return {word: number for number, word in enumerate(ordered[: size - 2], start=2)}


def encoded(documents: Sequence[Words], numbers: dict[str, int], length: int) -> Tensor:
    """Token ids, (n, length), int64, padded with 0 at the end."""
    sizes = np.fromiter(map(len, documents), dtype=np.int64, count=len(documents))
    flat = np.fromiter(
        (numbers.get(word, UNKNOWN) for word in chain.from_iterable(documents)),
        dtype=np.int64,
        count=int(sizes.sum()),
    )
    tokens = np.zeros((len(documents), length), dtype=np.int64)
    tokens[np.arange(length) < sizes[:, None]] = flat
    return torch.from_numpy(tokens)
