"""Tiny BERT and ViT from a config, a tokenizer of forty words, and documents of three classes."""

import contextlib
import gc
import io

import numpy as np
import torch
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    BertTokenizerFast,
    Trainer,
    TrainingArguments,
    ViTConfig,
    ViTForImageClassification,
    set_seed,
)
from transformers.utils import logging

# Each training collects garbage; looking through all modules takes most of a short one's time.
gc.freeze()
logging.set_verbosity_error()
logging.disable_progress_bar()

WORDS = [f"w{i}" for i in range(36)]
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
TOKENIZER = BertTokenizerFast(vocab={word: i for i, word in enumerate([*SPECIAL, *WORDS])})
SIZES = {
    "hidden_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 16,
    "num_labels": 3,
    # Wide, so that logits differ before and after a few steps.
    "initializer_range": 0.3,
}


def bert(seed=0, kind=BertForSequenceClassification, **settings):
    set_seed(seed)
    return kind(BertConfig(vocab_size=41, max_position_embeddings=16, **SIZES | settings)).eval()


def vit(seed=0):
    set_seed(seed)
    return ViTForImageClassification(ViTConfig(image_size=16, patch_size=8, **SIZES)).eval()


def texts(n, seed):
    """Documents of two to five words, most of which are of their class; half of the labels lie."""
    rng = np.random.default_rng(seed)
    rows = []
    for _ in range(n):
        label = int(rng.integers(3))
        words = 12 * np.where(rng.random(rng.integers(2, 6)) < 0.7, label, rng.integers(3))
        words += rng.integers(12, size=len(words))
        said = int(rng.integers(3)) if rng.random() < 0.5 else label
        rows.append({"text": " ".join(WORDS[i] for i in words), "label": said})
    return rows


def encoded(rows):
    return [{**row, **TOKENIZER(row["text"])} for row in rows]


TRAIN, VAL = encoded(texts(48, 0)), encoded(texts(60, 1))


def trainer(folder, model, *, train=None, val=None, **given):
    """A Trainer whose settings are those of TrainingArguments, and the others its own."""
    own = ("compute_loss_func", "compute_metrics", "callbacks", "data_collator")
    own = {name: given.pop(name) for name in own if name in given}
    settings = {
        "output_dir": str(folder),
        "per_device_train_batch_size": 16,
        "num_train_epochs": 2,
        "learning_rate": 1e-2,
        "eval_strategy": "epoch",
        "save_strategy": "no",
        "logging_strategy": "no",
        "report_to": [],
        "disable_tqdm": True,
        "use_cpu": True,
        "dataloader_pin_memory": False,
    }
    arguments = TrainingArguments(**settings | given)
    data = {"train_dataset": train or TRAIN, "eval_dataset": val or VAL}
    return Trainer(model, arguments, processing_class=TOKENIZER, **data, **own)


def run(trained, **given):
    """Train without what the Trainer prints."""
    with contextlib.redirect_stdout(io.StringIO()):
        trained.train(**given)
    return trained


def logits_of(model, rows):
    """Logits (n, k) of encoded documents."""
    batch = TOKENIZER.pad(
        [{k: v for k, v in row.items() if k not in ("text", "label")} for row in rows],
        return_tensors="pt",
    )
    with torch.no_grad():
        return model.eval()(**batch).logits


def labels_of(rows):
    return torch.tensor([row["label"] for row in rows])
