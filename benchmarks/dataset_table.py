"""Every dataset that is there, read, cut and trained on by a small network; rewrites a page.

`make datasets`. Each training is a run of its own in runs/datasets; re-run the command to resume.
"""

import sys
import time
from dataclasses import dataclass, field
from typing import Any

from benchmarks.pages import machine, table, versions
from benchmarks.real_data import ROOT
from calibrant import data, methods, models
from calibrant.training import Recipe, train
from calibrant.training.recipe import recipe_from

RUNS = ROOT / "runs" / "datasets"
PAGE = ROOT / "docs" / "datasets.md"
SEED = 0


@dataclass(frozen=True)
class Plan:
    """A small network for a dataset, and how it is trained."""

    model: str
    options: dict[str, Any] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)
    recipe: Recipe = field(default_factory=Recipe)


def recipe(**given: Any) -> Recipe:
    """A recipe in short."""
    return recipe_from(given)


WORDS = recipe(epochs=10, optimizer="adamw", lr=0.003, weight_decay=0.01, stop_on="nll")
PLANS = {
    "digits": Plan("small_cnn", recipe=recipe(epochs=20, lr=0.05)),
    "cifar10": Plan("resnet8", {"human": True}, recipe=recipe(epochs=12, crop=4, flip=True)),
    "fashion_mnist": Plan("small_cnn", {"limit": 20_000}, recipe=recipe(epochs=4, lr=0.05)),
    "20news": Plan("bag_of_embeddings", recipe=WORDS),
    "agnews": Plan("bag_of_embeddings", recipe=WORDS),
    "trec": Plan("text_cnn", recipe=WORDS),
    "sst5": Plan("bag_of_embeddings", recipe=WORDS),
    "camvid": Plan(
        "unet", settings={"width": 0.5}, recipe=recipe(epochs=15, batch=8, lr=0.05, flip=True)
    ),
}
HEAD = ("dataset", "inputs", "classes", "train", "val", "test", "model", "epochs")
HEAD += ("accuracy", "NLL", "ECE")
ABOUT = f"""# Datasets

This page shows how to load a dataset, how to change it, and what accuracy and ECE a small network
reaches on it. `calibrant list datasets` shows all datasets. If files are missing, the error message
says where to get them.

```python
from calibrant import data

splits = data.load("digits", seed=0, val=0.2, label_noise=0.1)
print(splits.classes, len(splits.train), len(splits.val), len(splits.test))  # 10 1150 288 359
shifted = data.shifted(splits.test, "blur 3")
```

`data.load(name, seed, root=None, **options)` returns disjoint splits: `train`, `val` and `test`.
`splits.with_meta(0.1, seed=0)` moves 10 % of the training data to a fourth split, `meta`, for
methods that learn on held-out data.

| option | meaning |
|---|---|
| `val` | part of the training data used for validation |
| `limit` | at most this many examples for `train` and `val` together, also for `test` |
| `size` | height and width to which images are resampled |
| `long_tail` | ratio of the largest to the smallest class, with exponential decay |
| `label_noise` | part of the training labels replaced by random ones |
| `length`, `vocabulary` | number of words of a text, and of the vocabulary |

Validation and test data stay clean and balanced whatever you do to the training data.
`data.shifted` adds noise or blur, or changes contrast or brightness, in five strengths (`calibrant
list shifts`). Files are read from `root`, else from the folder in the environment variable
`CALIBRANT_DATA`, else from `~/.cache/calibrant/data` (`$XDG_CACHE_HOME/calibrant/data` if set).

## Accuracy and ECE of small networks

`make datasets` wrote this table: one training run on each dataset, seed {SEED}, cross entropy. Test
accuracy, NLL and ECE (15 bins) are those of the final weights; for masks, of all valid pixels. The
files used are subsets: 25,000 + 5,000 images of CIFAR-10, 10,001 training articles of AG News, and
CamVid at 160 x 120. The validation images of CamVid serve as test data. The values check the
readers; they
are not tuned."""


def main() -> int:
    """Train what is there and was not trained yet, and write the page."""
    rows, human = [], ""
    for name, plan in PLANS.items():
        start = time.perf_counter()
        try:
            splits = data.load(name, SEED, **plan.options)
        except FileNotFoundError as error:
            print(f"{name} is left out: {error}", file=sys.stderr)
            continue
        found = trained(name, plan, splits).record
        print(f"{name}: {time.perf_counter() - start:.0f} s", file=sys.stderr, flush=True)
        test, sizes = found["metrics"]["test"], found["examples"]
        shape = "x".join(map(str, splits.shape))
        rows.append(
            [name, f"{splits.kind} {shape}", str(splits.classes)]
            + [f"{sizes[part]:,}" for part in ("train", "val", "test")]
            + [plan.model, str(found["epochs"])]
            + [f"{test[metric]:.4f}" for metric in ("accuracy", "nll", "ece")]
        )
        if name == "cifar10":
            human = _human(found["metrics"])
    text = "\n\n".join([ABOUT, f"{machine()}.", f"{versions()}.", table(HEAD, rows), human])
    PAGE.write_text(text.rstrip() + "\n")
    print(text)
    print(f"written: {PAGE.relative_to(ROOT)}")
    return 0


def trained(name: str, plan: Plan, splits: data.Splits):
    """Train on one dataset; a finished run is read back."""
    model = models.build(
        plan.model,
        classes=splits.classes,
        shape=splits.shape,
        vocabulary=splits.vocabulary,
        seed=SEED,
        **plan.settings,
    )
    method = methods.build("cross_entropy", classes=splits.classes)
    return train(
        model,
        method,
        splits,
        plan.recipe,
        seed=SEED,
        folder=RUNS / name,
        on_epoch=lambda row: print(
            f"{name} epoch {row['epoch']}: accuracy {row['val_accuracy']:.4f}",
            file=sys.stderr,
            flush=True,
        ),
    )


def _human(metrics: dict[str, dict[str, float]]) -> str:
    label, people = metrics["test"], metrics["test against its posterior"]
    return f"""## Evaluated against soft labels

CIFAR-10H has the answers of about fifty people for each test image (`human=True`). Evaluated
against their distribution, the same network has accuracy {people["accuracy"]:.4f} (with one label:
{label["accuracy"]:.4f}), NLL {people["nll"]:.4f} ({label["nll"]:.4f}) and ECE {people["ece"]:.4f}
({label["ece"]:.4f}). `data.with_soft_labels(predictions, posterior)` does this for any metric."""


if __name__ == "__main__":
    sys.exit(main())
