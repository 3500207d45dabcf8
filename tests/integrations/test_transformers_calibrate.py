"""Folding into Hugging Face models: saved, loaded, in pipelines and in ONNX, without our code."""

import json

import numpy as np
import pytest
import torch
from datasets import Dataset, DatasetDict
from PIL import Image
from tiny_transformers import (
    TOKENIZER,
    VAL,
    bert,
    encoded,
    labels_of,
    logits_of,
    run,
    texts,
    trainer,
    vit,
)
from torch import nn
from torch.utils.data import DataLoader
from transformers import (
    AutoModelForSequenceClassification,
    BertForMaskedLM,
    BertForTokenClassification,
    DataCollatorForTokenClassification,
    DeiTConfig,
    DeiTForImageClassificationWithTeacher,
    GPT2Config,
    GPT2ForSequenceClassification,
    RobertaConfig,
    RobertaForSequenceClassification,
    ViTImageProcessorPil,
    pipeline,
)

from calibrant import Predictions, metrics
from calibrant.integrations.transformers import calibrate

KINDS = ["temperature", "vector", "matrix"]
SMALL = {"num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
SMALL |= {"hidden_size": 16, "num_labels": 3}
HELD_OUT = encoded(texts(120, 3))


def overconfident(model, factor=6.0):
    """The same model with larger logits."""
    head = getattr(model, "score", None) or model.classifier
    with torch.no_grad():
        for each in (head if isinstance(head, nn.Linear) else head.out_proj).parameters():
            each.mul_(factor)
    return model


def roberta():
    torch.manual_seed(0)
    sizes = {"vocab_size": 41, "max_position_embeddings": 32, "pad_token_id": 0}
    return RobertaForSequenceClassification(RobertaConfig(**sizes, **SMALL)).eval()


def gpt2():
    torch.manual_seed(0)
    sizes = {"vocab_size": 41, "n_embd": 16, "n_layer": 1, "n_head": 2, "num_labels": 3}
    tokens = {"pad_token_id": 0, "bos_token_id": 2, "eos_token_id": 3}
    return GPT2ForSequenceClassification(GPT2Config(**sizes, **tokens)).eval()


def pictures(n):
    """Grey pictures whose brightness says the class, as a pipeline takes them."""
    rng = np.random.default_rng(0)
    labels = rng.integers(3, size=n)
    values = (40 + 80 * labels + rng.normal(0, 40, n)).clip(0, 255).astype(np.uint8)
    return [Image.new("RGB", (20, 20), (int(v),) * 3) for v in values], labels


PROCESSOR = ViTImageProcessorPil(size={"height": 16, "width": 16})


@pytest.mark.parametrize("make", [bert, roberta, gpt2])
@pytest.mark.parametrize("kind", KINDS)
def test_the_folded_model_gives_the_probabilities_of_the_calibrator(make, kind, tmp_path):
    model = overconfident(make())
    before = logits_of(model, VAL)
    if make is gpt2 and kind != "temperature":
        with pytest.raises(ValueError, match=r"no bias, so .* use temperature"):
            calibrate(model, HELD_OUT, calibrator=kind, processing_class=TOKENIZER)
        torch.testing.assert_close(logits_of(model, VAL), before)
        return
    fitted = calibrate(model, HELD_OUT, calibrator=kind, processing_class=TOKENIZER)
    expected = fitted(before.double())
    torch.testing.assert_close(
        logits_of(model, VAL).log_softmax(1).double(), expected, atol=1e-5, rtol=0
    )
    assert (expected - before.double().log_softmax(1)).abs().max() > 0.05
    model.save_pretrained(tmp_path)
    record = json.loads((tmp_path / "config.json").read_text())["calibrant"]
    digest = record.pop("head_sha256")
    assert record == {"calibrator": kind, "examples": 120, "sha256": fitted.origin.sha256}
    assert len(digest) == 64
    loaded = AutoModelForSequenceClassification.from_pretrained(tmp_path)
    torch.testing.assert_close(logits_of(loaded, VAL), logits_of(model, VAL))
    with pytest.raises(ValueError, match=r"calibrated already .*delete model.config.calibrant"):
        calibrate(loaded, HELD_OUT, processing_class=TOKENIZER)
    del loaded.config.calibrant
    again = calibrate(loaded, HELD_OUT, processing_class=TOKENIZER)
    assert again.temperature == pytest.approx(1, abs=0.1)


def test_a_text_pipeline_gives_calibrated_probabilities(tmp_path):
    trained = run(trainer(tmp_path, bert(), num_train_epochs=20, eval_strategy="no"))
    model, test = trained.model, encoded(texts(300, 4))
    before = logits_of(model, test)
    fitted = calibrate(model, HELD_OUT, processing_class=TOKENIZER)
    assert fitted.temperature > 1.5
    model.save_pretrained(tmp_path / "model")
    TOKENIZER.save_pretrained(tmp_path / "model")
    classify = pipeline("text-classification", str(tmp_path / "model"), top_k=None, device="cpu")
    said = classify([row["text"] for row in test], batch_size=32)
    scores = [{each["label"]: each["score"] for each in row} for row in said]
    probs = torch.tensor([[row[f"LABEL_{k}"] for k in range(3)] for row in scores])
    torch.testing.assert_close(probs.double(), fitted(before.double()).exp(), atol=1e-5, rtol=0)
    labels = labels_of(test)
    raw, calibrated = Predictions(before, labels), Predictions.from_probs(probs, labels)
    assert metrics.ece(calibrated) < 0.5 * metrics.ece(raw)


def test_an_image_pipeline_gives_calibrated_probabilities(tmp_path):
    images, labels = pictures(90)
    pixels = PROCESSOR(images, return_tensors="pt")["pixel_values"]
    rows = [{"pixel_values": x, "labels": int(y)} for x, y in zip(pixels, labels, strict=True)]
    model = overconfident(vit())
    with torch.no_grad():
        before = model(pixels).logits
    fitted = calibrate(model, rows, calibrator="vector", processing_class=PROCESSOR)
    model.save_pretrained(tmp_path)
    PROCESSOR.save_pretrained(tmp_path)
    classify = pipeline(
        "image-classification",
        str(tmp_path),
        image_processor=ViTImageProcessorPil.from_pretrained(tmp_path),
        device="cpu",
    )
    said = [{each["label"]: each["score"] for each in row} for row in classify(images, top_k=3)]
    probs = torch.tensor([[row[f"LABEL_{k}"] for k in range(3)] for row in said])
    torch.testing.assert_close(probs.double(), fitted(before.double()).exp(), atol=1e-5, rtol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_new_head_may_be_calibrated_again_and_the_folded_one_may_not(dtype, tmp_path):
    model = overconfident(bert()).to(dtype)
    calibrate(model, HELD_OUT, processing_class=TOKENIZER)
    model.save_pretrained(tmp_path)
    load = AutoModelForSequenceClassification.from_pretrained
    loaded = load(tmp_path)
    assert loaded.dtype == dtype
    for folded in (loaded, load(tmp_path, dtype=torch.float32)):
        with pytest.raises(ValueError, match="calibrated already"):
            calibrate(folded, HELD_OUT, processing_class=TOKENIZER)
    fresh = load(tmp_path, num_labels=4, ignore_mismatched_sizes=True)
    trained = load(tmp_path)
    with torch.no_grad():
        trained.classifier.bias += 0.1
    rows = [{**row, "label": i % 4} for i, row in enumerate(HELD_OUT)]
    for changed, data in ((fresh, rows), (trained, HELD_OUT)):
        old = changed.config.calibrant
        fitted = calibrate(changed, data, processing_class=TOKENIZER)
        assert changed.config.calibrant["sha256"] == fitted.origin.sha256
        assert changed.config.calibrant["head_sha256"] != old["head_sha256"]


@pytest.mark.parametrize("record", [{"calibrator": "temperature"}, "yes"])
def test_a_record_without_a_digest_is_refused(record):
    model = bert()
    model.config.calibrant = record
    with pytest.raises(ValueError, match="calibrated already"):
        calibrate(model, HELD_OUT, processing_class=TOKENIZER)


def test_an_image_model_that_is_saved_and_loaded_has_the_same_parameters(tmp_path):
    model = vit()
    model.save_pretrained(tmp_path)
    loaded = type(model).from_pretrained(tmp_path).state_dict()
    assert list(loaded) == list(model.state_dict())
    assert all(torch.equal(each, loaded[name]) for name, each in model.state_dict().items())


@pytest.mark.parametrize("name", ["label", "labels"])
def test_tokens_are_calibrated_without_padding(name):
    model = overconfident(bert(kind=BertForTokenClassification))
    rows = [{k: v for k, v in row.items() if k not in ("text", "label")} for row in HELD_OUT]
    rng = np.random.default_rng(0)
    for row in rows:
        row[name] = [-100, *rng.integers(3, size=len(row["input_ids"]) - 2).tolist(), -100]
    before = logits_of(model, VAL)
    pad = DataCollatorForTokenClassification(TOKENIZER)
    fitted = calibrate(model, rows, calibrator="matrix", data_collator=pad)
    assert fitted.origin.examples == sum(len(row[name]) - 2 for row in rows)
    expected = fitted(before.reshape(-1, 3).double())
    after = logits_of(model, VAL).log_softmax(-1).reshape(-1, 3).double()
    torch.testing.assert_close(after, expected, atol=1e-5, rtol=0)
    other = overconfident(bert(kind=BertForTokenClassification))
    alone = calibrate(other, rows, calibrator="matrix", processing_class=TOKENIZER)
    assert alone.origin.sha256 == fitted.origin.sha256


class Rows(torch.utils.data.Dataset):
    def __len__(self):
        return len(HELD_OUT)

    def __getitem__(self, index):
        return HELD_OUT[index]


def test_every_kind_of_dataset_gives_the_same_calibrator():
    found = [
        calibrate(overconfident(bert()), data, processing_class=TOKENIZER, batch_size=size)
        for data in (HELD_OUT, Rows(), Dataset.from_list(HELD_OUT))
        for size in (120, 7)
    ]
    temperatures = [each.temperature for each in found]
    assert temperatures == pytest.approx([temperatures[0]] * 6, rel=1e-4)
    assert temperatures[0] > 1.5


def test_nothing_but_the_classifier_changes():
    model = overconfident(bert(hidden_dropout_prob=0.5)).train()
    model.bert.encoder.eval()
    modes = [module.training for module in model.modules()]
    weights = {name: each.clone() for name, each in model.state_dict().items()}
    head, state = model.classifier.weight, torch.random.get_rng_state()
    calibrate(model, HELD_OUT, processing_class=TOKENIZER)
    assert [module.training for module in model.modules()] == modes
    assert model.classifier.weight is head
    assert head.requires_grad
    assert torch.equal(torch.random.get_rng_state(), state)
    changed = [n for n, each in model.state_dict().items() if not torch.equal(each, weights[n])]
    # The bias was zero, and is.
    assert changed == ["classifier.weight"]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_costs_a_rounding_of_the_classifier(dtype):
    model = overconfident(bert()).to(dtype)
    before = logits_of(model, VAL)
    fitted = calibrate(model, HELD_OUT, processing_class=TOKENIZER)
    assert model.classifier.weight.dtype == dtype
    probs = logits_of(model, VAL).double().softmax(1)
    expected = fitted(before.double()).exp()
    assert (probs - expected).abs().max() < 0.5 * torch.finfo(dtype).eps
    assert (probs - before.double().softmax(1)).abs().max() > 0.05


@pytest.mark.filterwarnings("ignore:T hit", "ignore:.*classes never occur")
def test_a_model_whose_last_layer_is_not_the_end_is_left_as_it_was():
    torch.manual_seed(0)
    config = DeiTConfig(image_size=16, patch_size=8, **SMALL)
    two_heads = DeiTForImageClassificationWithTeacher(config)
    tied = bert(kind=BertForMaskedLM)
    pixels = [{"pixel_values": torch.randn(3, 16, 16), "labels": i % 3} for i in range(40)]
    rows = [{"input_ids": row["input_ids"], "labels": row["input_ids"]} for row in HELD_OUT]
    pad = DataCollatorForTokenClassification(TOKENIZER)
    for model, data, collate in ((two_heads, pixels, None), (tied, rows, pad)):
        weights = {name: each.clone() for name, each in model.state_dict().items()}
        with pytest.raises(ValueError, match="not the output of its last linear layer"):
            calibrate(model, data, data_collator=collate)
        assert all(torch.equal(each, weights[n]) for n, each in model.state_dict().items())
        assert not hasattr(model.config, "calibrant")


@pytest.mark.usefixtures("as_a_user_runs_it")
def test_what_cannot_be_calibrated_is_refused_in_one_line(tmp_path):
    splits = DatasetDict(train=Dataset.from_list(HELD_OUT), test=Dataset.from_list(VAL))
    regression, several = bert(num_labels=1), bert(problem_type="multi_label_classification")
    unlabelled = [{"input_ids": row["input_ids"]} for row in HELD_OUT]
    named = [{**row, "label": "cat"} for row in HELD_OUT]
    no_third = [row for row in HELD_OUT if row["label"] < 2]
    for model, data, settings, message in (
        (regression, HELD_OUT, {}, "one label of at least 2"),
        (several, HELD_OUT, {}, "one label of at least 2"),
        (bert(), unlabelled, {}, "needs a label, got input_ids"),
        (bert(), [], {}, "got none"),
        (bert(), HELD_OUT, {"calibrator": "vectr"}, "did you mean vector"),
        (bert(), HELD_OUT, {"calibrator": "isotonic"}, "expected one of"),
        (bert(), HELD_OUT, {"calibrator": "prior_shift"}, "one of temperature, vector, matrix$"),
        (bert(), HELD_OUT, {"calibrator": "identity"}, "one of temperature, vector, matrix$"),
        (bert(), HELD_OUT[:8], {"calibrator": "matrix"}, "12 examples, got 8; use temperature$"),
        (bert(), no_third, {"calibrator": "vector"}, "1 of 3 classes never .*; use temperature$"),
        (bert(), named, {}, "labels must be integers, got names; model.config.label2id"),
        (vit(), [{"pixel_values": [1.0], "labels": "cat"}], {}, "must be integers, got names"),
        (bert(), [{"input_ids": [5, 6], "labels": ["O", "B"]}], {}, "must be integers, got names"),
    ):
        with pytest.raises(ValueError, match=message) as caught:
            calibrate(model, data, processing_class=TOKENIZER, **settings)
        assert "\n" not in str(caught.value)
    for model, data, message in (
        (nn.Linear(2, 2), HELD_OUT, "expected a PreTrainedModel, got Linear; merge an adapter"),
        (trainer(tmp_path, bert()), HELD_OUT, "got Trainer; pass its model, as in trainer.model"),
        (bert(), DataLoader(HELD_OUT), "got DataLoader; pass its dataset"),
        (bert(), splits, "got DatasetDict with train, test; pass one split"),
    ):
        with pytest.raises(TypeError, match=message) as caught:
            calibrate(model, data, processing_class=TOKENIZER)
        assert "\n" not in str(caught.value)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
def test_an_onnx_graph_gives_calibrated_probabilities(tmp_path):
    import onnxruntime

    model = overconfident(bert())
    before = logits_of(model, VAL)
    fitted = calibrate(model, HELD_OUT, calibrator="vector", processing_class=TOKENIZER)
    rows = [{"input_ids": row["input_ids"]} for row in VAL]
    batch = dict(TOKENIZER.pad(rows, padding="max_length", max_length=8, return_tensors="pt"))
    path = tmp_path / "model.onnx"
    model.config.return_dict = False
    torch.onnx.export(model, (), str(path), kwargs=batch, dynamo=True, verbose=False)
    session = onnxruntime.InferenceSession(path)
    (logits,) = session.run(None, {name: each.numpy() for name, each in batch.items()})
    probs = torch.from_numpy(logits).double().softmax(1)
    torch.testing.assert_close(probs, fitted(before.double()).exp(), atol=1e-5, rtol=0)
