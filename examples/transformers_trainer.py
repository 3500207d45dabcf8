"""Calibrate a Hugging Face classifier, so that its pipeline says what it means: lines marked (*).

The data and the model are small and made here: documents of six words of three topics, of which a
third are filed under a wrong topic, and a BERT of one layer.
"""

import tempfile

import numpy as np
import transformers
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    BertTokenizerFast,
    Trainer,
    TrainingArguments,
    pipeline,
)
from transformers.trainer_callback import PrinterCallback

from calibrant import Predictions, metrics
from calibrant.integrations.transformers import calibrate  # (*)

transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()
transformers.set_seed(0)

WORDS = [f"{topic}{i}" for topic in ("sport", "trade", "world") for i in range(20)]
vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS]
tokenizer = BertTokenizerFast(vocab={word: i for i, word in enumerate(vocabulary)})


def documents(n: int, seed: int) -> list[dict]:
    """Half of the words are of the topic; a third of the labels are drawn at random."""
    draw = np.random.default_rng(seed)
    topics = draw.integers(3, size=n)
    own = draw.random((n, 6)) < 0.5
    words = 20 * np.where(own, topics[:, None], draw.integers(3, size=(n, 6)))
    texts = [" ".join(WORDS[i] for i in row) for row in words + draw.integers(20, size=(n, 6))]
    labels = np.where(draw.random(n) < 1 / 3, draw.integers(3, size=n), topics)
    return [
        {"text": text, "label": int(label), **tokenizer(text)}
        for text, label in zip(texts, labels, strict=True)
    ]


train, validation, test = (documents(n, seed) for seed, n in enumerate((600, 600, 3000)))
sizes = {"hidden_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2}
config = BertConfig(vocab_size=len(vocabulary), num_labels=3, intermediate_size=128, **sizes)
model = BertForSequenceClassification(config)


def show(name: str, folder: str) -> None:
    """Measure the pipeline of a saved model: it runs no code of calibrant."""
    classify = pipeline("text-classification", folder, top_k=None, device="cpu")
    said = classify([row["text"] for row in test], batch_size=100)
    probs = [[score["score"] for score in sorted(row, key=lambda s: s["label"])] for row in said]
    found = Predictions.from_probs(np.array(probs), [row["label"] for row in test])
    print(f"{name:10} accuracy {metrics.accuracy(found):.3f}  ECE {metrics.ece(found):.3f}")


with tempfile.TemporaryDirectory() as folder:
    arguments = TrainingArguments(
        output_dir=folder,
        num_train_epochs=40,
        learning_rate=2e-3,
        per_device_train_batch_size=32,
        save_strategy="no",
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
        logging_strategy="no",
    )
    trainer = Trainer(model, arguments, train_dataset=train, processing_class=tokenizer)
    trainer.remove_callback(PrinterCallback)
    trainer.train()
    trainer.save_model(f"{folder}/model")
    show("trained", f"{folder}/model")

    calibrator = calibrate(trainer.model, validation, processing_class=tokenizer)  # (*)
    print(calibrator)
    trainer.save_model(f"{folder}/model")
    show("calibrated", f"{folder}/model")
