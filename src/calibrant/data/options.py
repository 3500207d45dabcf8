"""Options that all datasets of a kind share."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from typing import Literal

from calibrant.data.splits import Kind
from calibrant.losses.settings import at_least
from calibrant.setting_errors import SettingError, did_you_mean

Size = int | Sequence[int] | None
# Which of the options below apply to which kind of input.
SHARED: dict[Kind | Literal["images or text"], tuple[str, ...]] = {
    "images": ("val", "limit", "size", "long_tail", "label_noise"),
    "masks": ("val", "limit", "size"),
    "text": ("val", "limit", "long_tail", "label_noise", "vocabulary", "length"),
    "vectors": ("val", "limit", "long_tail", "label_noise"),
}
SHARED["images or text"] = tuple(dict.fromkeys((*SHARED["images"], *SHARED["text"])))


@dataclass(frozen=True, kw_only=True)
class Options:
    """How a dataset is split and modified; `long_tail` and `label_noise` affect train only.

    Attributes:
        val: fraction of train that becomes val, stratified by class; default 0.1. Not for a source
            with its own val split.
        limit: most examples of each split of the source, stratified by class (train and the val
            taken from it count as one). Smaller limits give subsets.
        size: side of the images, or (height, width); others are resized, masks by nearest pixel.
        long_tail: ratio of the largest class of train to the smallest, at least 1.
        label_noise: fraction of train labels replaced by a uniformly random other class; for some
            datasets the name of real noisy labels. Val and test stay clean.
        vocabulary: text: most token ids: 0 pads, 1 is unknown, then the most frequent words.
        length: text: tokens of each document.
    """

    val: float | None = None
    limit: int | None = None
    size: Size = None
    long_tail: float = 1.0
    label_noise: float | str = 0.0
    vocabulary: int = 20_000
    length: int | None = None

    def __post_init__(self) -> None:
        if self.val is not None and not 0 < self.val < 1:
            raise SettingError("val", f"must lie strictly between 0 and 1, got {self.val}")
        for name, low in {"limit": 1, "long_tail": 1, "vocabulary": 3, "length": 1}.items():
            if getattr(self, name) is not None:
                at_least(name, low, getattr(self, name))
        if not isinstance(self.label_noise, str) and not 0 <= self.label_noise < 1:
            raise SettingError("label_noise", f"must lie in [0, 1), got {self.label_noise}")
        height_and_width(self.size)


def height_and_width(size: Size) -> tuple[int, int] | None:
    """Size as (height, width); a single number is a square."""
    if size is None:
        return None
    pair = (size, size) if isinstance(size, int) else tuple(size)
    if len(pair) != 2 or not all(isinstance(s, int) and 1 <= s <= 4096 for s in pair):
        raise SettingError("size", f"must be a number or (height, width) in [1, 4096], got {size}")
    return pair[0], pair[1]


OPTION_NAMES = tuple(field.name for field in fields(Options))


def check_names(what: str, given: Iterable[str], known: Sequence[str]) -> None:
    """Refuse a name that is not known."""
    for name in given:
        if name not in known:
            raise ValueError(f"no {what} {name!r}; {did_you_mean(name, known)}")
