"""All datasets by name, and the function that loads them."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from calibrant.data import generated
from calibrant.data.cifar import cifar10, cifar100
from calibrant.data.cutting import cut
from calibrant.data.folders import camvid, image_folder, mask_folder, tiny_imagenet
from calibrant.data.hugging_face import hugging_face
from calibrant.data.idx import fashion_mnist, mnist
from calibrant.data.options import OPTION_NAMES, SHARED, Options, check_names
from calibrant.data.source import Source
from calibrant.data.splits import Kind, Splits
from calibrant.data.text_sets import agnews, newsgroups, sst5, trec
from calibrant.data_folder import data_folder


@dataclass(frozen=True)
class Dataset:
    """A dataset that can be loaded.

    Attributes:
        kind: kind of its inputs.
        meaning: one line for tables.
        load: reads it from the first folder that has it; `cut` makes splits of it.
        where: how to get it and where to put it, for the error message.
    """

    kind: Kind | Literal["images or text"]
    meaning: str
    load: Callable[..., Source]
    where: str

    @property
    def own_options(self) -> tuple[str, ...]:
        """Options of this dataset's reader."""
        parameters = inspect.signature(self.load).parameters.values()
        return tuple(p.name for p in parameters if p.kind is p.KEYWORD_ONLY)

    @property
    def options(self) -> tuple[str, ...]:
        """Every option that `load` takes for it."""
        return tuple(dict.fromkeys((*SHARED[self.kind], *self.own_options)))


EMBEDDED = "embedded: it is generated, or comes with a library"

DATASETS: dict[str, Dataset] = {
    "digits": Dataset(
        "images",
        "1,797 handwritten digits of 8 x 8 pixels, 10 classes",
        generated.digits,
        "comes with scikit-learn: pip install 'calibrant[sklearn]'",
    ),
    "blobs": Dataset(
        "vectors", "Gaussian blobs; the true posterior is known", generated.blobs, EMBEDDED
    ),
    "teacher": Dataset(
        "vectors",
        "labels drawn from a fixed random network; the true posterior is known",
        generated.teacher,
        EMBEDDED,
    ),
    "cifar10": Dataset(
        "images",
        "photographs of 32 x 32 pixels, 10 classes; human labels as options",
        cifar10,
        "put cifar-10-batches-py or cifar-10-python.tar.gz there, from www.cs.toronto.edu/~kriz",
    ),
    "cifar100": Dataset(
        "images",
        "photographs of 32 x 32 pixels, 100 classes",
        cifar100,
        "put cifar-100-python or cifar-100-python.tar.gz there, from www.cs.toronto.edu/~kriz",
    ),
    "mnist": Dataset(
        "images",
        "handwritten digits of 28 x 28 pixels, 10 classes",
        mnist,
        "put its four idx files (.gz or not) there or in a folder mnist",
    ),
    "fashion_mnist": Dataset(
        "images",
        "clothes of 28 x 28 pixels, 10 classes",
        fashion_mnist,
        "put its four idx files (.gz or not) there, or apt install dataset-fashion-mnist",
    ),
    "tiny_imagenet": Dataset(
        "images",
        "photographs of 64 x 64 pixels, 200 classes",
        tiny_imagenet,
        "unpack tiny-imagenet-200.zip there, from cs231n.stanford.edu",
    ),
    "image_folder": Dataset(
        "images",
        "your own images, in folders train/<class>, and perhaps val/ and test/",
        image_folder,
        "pass root=..., a folder that holds train/<class>/*.png or other images",
    ),
    "20news": Dataset(
        "text",
        "messages to 20 newsgroups, split by date",
        newsgroups,
        "unpack 20news-bydate.tar.gz there, from qwone.com/~jason/20Newsgroups",
    ),
    "agnews": Dataset(
        "text",
        "short news articles by topic, 4 classes",
        agnews,
        "put train.csv and test.csv of AG News in a folder ag_news_csv there",
    ),
    "sst5": Dataset(
        "text",
        "sentiment of sentences about films, 5 classes; has a val split of its own",
        sst5,
        "unpack trainDevTestTrees_PTB.zip there, from nlp.stanford.edu/sentiment",
    ),
    "trec": Dataset(
        "text",
        "what a question asks for, 6 classes",
        trec,
        "put train_5500.label and TREC_10.label in a folder trec there",
    ),
    "camvid": Dataset(
        "masks",
        "street scenes, 11 classes of pixels; label 11 is ignored",
        camvid,
        "put CamVid with its folders train, trainannot, ... there",
    ),
    "mask_folder": Dataset(
        "masks",
        "your own images and masks, in train/images and train/masks, perhaps val/ and test/",
        mask_folder,
        "pass root=..., a folder that holds train/images and train/masks",
    ),
    "hf": Dataset(
        "images or text",
        "labelled images or texts of Hugging Face (hf:NAME), or a local dataset folder",
        hugging_face,
        "needs the network, or the path of a folder: hf:./folder",
    ),
}


def load(name: str, seed: int, root: str | Path | None = None, **options: Any) -> Splits:
    """Load a dataset and split it into train, val and test.

    The seed determines which examples of the source become train and val, and what `long_tail` and
    `label_noise` change in train. Test is the same for every seed; its labels and those of val
    are clean.

    Args:
        name: one of `DATASETS`.
        seed: at least 0; the same one gives the same splits, bit for bit.
        root: the folder that holds the data; if not given $CALIBRANT_DATA, or without that
            `~/.cache/calibrant/data` (in $XDG_CACHE_HOME if set).
        options: see `Options`, and the options of the reader in `DATASETS[name].options`.

    Raises:
        ValueError: an unknown name or option (the message lists the known ones), or invalid data.
        FileNotFoundError: the data are missing; the message says which folders were searched.
        ImportError: a library is missing; the message says what to install.

    Examples:
        >>> splits = load("blobs", seed=0, n=1000, classes=3)
        >>> len(splits.train), len(splits.val), splits.classes, splits.shape
        (900, 100, 3, (2,))
    """
    # The only name with an argument.
    key, _, rest = name.partition(":")
    if key == "hf" and rest:
        options["dataset"] = rest
    else:
        key = name
    check_names("dataset", [key], tuple(DATASETS))
    dataset = DATASETS[key]
    check_names(f"option of {name}", options, dataset.options)
    if isinstance(seed, bool) or not isinstance(seed, int) or seed < 0:
        raise ValueError(f"seed must be an integer of at least 0, got {seed!r}")
    shared = Options(**{option: options[option] for option in options if option in OPTION_NAMES})
    own = {option: options[option] for option in options if option in dataset.own_options}
    folder = data_root(root)
    try:
        source = dataset.load([folder], **own)
    except FileNotFoundError as error:
        # Readers say what they looked for; here it becomes what to do about it.
        raise FileNotFoundError(f"{name}: {error}; looked in {folder}; {dataset.where}") from None
    kind = source.kind or dataset.kind
    if kind == "images or text":
        raise ValueError(f"{name}: its reader must set kind to images or text")
    if dataset.kind != kind:
        only = [option for option in dataset.own_options if option not in OPTION_NAMES]
        check_names(f"option of {name}, which is {kind}", options, (*SHARED[kind], *only))
    return cut(name, kind, source, seed, shared)


def data_root(root: str | Path | None) -> Path:
    """Return the folder in which data are looked for."""
    if root is None:
        return data_folder()
    if not Path(root).is_dir():
        raise FileNotFoundError(f"root must be a folder, got {root}")
    return Path(root)
