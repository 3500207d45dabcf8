"""Every wrong study is refused with one line that says where and what."""

import re

import pytest

from calibrant.study.spec import read
from calibrant.study.spec_text import MAX_BYTES

HEAD = 'name = "small"\n'
TABLES = """
[[dataset]]
name = "blobs"
[[model]]
name = "mlp"
[[method]]
name = "focal"
gamma = 2
"""
METHOD = '[[method]]\nname = "focal"\ngamma = 3\n'

WRONG = [
    # Shifts.
    ("shifts = ['blurr 3']", TABLES, "shifts[0]: no shift 'blurr 3'; did you mean blur 3?"),
    (
        "shifts = ['blur 3']",
        TABLES,
        "shifts: they change images, and dataset[0] blobs has vectors",
    ),
    # Unknown keys.
    ("nmae = 'x'", TABLES, "nmae: unknown; did you mean name?"),
    ("", TABLES + METHOD + "gama = 3", "method[1].gama: unknown; did you mean gamma?"),
    ("", TABLES + "[recipe]\nepoch = 3", "recipe.epoch: unknown; did you mean epochs?"),
    (
        "",
        TABLES + "recipe = {clipp = 1}",
        "method[0].recipe.clipp: unknown; did you mean clip?",
    ),
    (
        "",
        TABLES + '[[optimizer]]\nname = "sgd"\nzzz = 1',
        "optimizer[0].zzz: unknown; expected one of lr, momentum, nesterov, weight_decay, sam, "
        "epochs, batch, name, label",
    ),
    (
        "",
        TABLES.replace('"blobs"', '"blobs"\nsize = 3'),
        "dataset[0].size: unknown; expected one of val, limit, long_tail, label_noise, n, test_n, "
        "classes, dimensions, spread, name, label, recipe",
    ),
    (
        "",
        TABLES.replace('"mlp"', '"mlp"\nhiden = [3]'),
        "model[0].hiden: unknown; did you mean hidden?",
    ),
    (
        "",
        TABLES + '[recipe]\noptimizer = "sgd"',
        "recipe.optimizer: optimizers have tables of their own, [[optimizer]]",
    ),
    # Missing names.
    (None, TABLES, 'name: missing; write name = "..."'),
    ("", TABLES + "[[method]]\nlabel = 'x'", 'method[1].name: missing; write name = "..."'),
    # Names that do not exist.
    (
        "",
        TABLES + METHOD + '[[method]]\nname = "focl"',
        "method[2].name: no method 'focl'; did you mean focal?",
    ),
    (
        "",
        TABLES.replace("blobs", "cifar11"),
        "dataset[0].name: no dataset 'cifar11'; did you mean cifar10?",
    ),
    (
        "",
        TABLES.replace("mlp", "resnet9"),
        "model[0].name: no model 'resnet9'; did you mean resnet8?",
    ),
    (
        "",
        TABLES + '[[optimizer]]\nname = "lion"',
        "optimizer[0].name: no optimizer 'lion'; expected one of sgd, adamw, muon, gd",
    ),
    (
        'calibrators = ["temprature"]',
        TABLES,
        "calibrators[0]: no calibrator 'temprature'; did you mean temperature?",
    ),
    (
        'metrics = ["ece", "smce"]',
        TABLES,
        "metrics[1]: no metric 'smce'; did you mean smece?",
    ),
    (
        "",
        TABLES + '[recipe]\nschedule = "cosin"',
        "recipe.schedule: no 'cosin'; did you mean cosine?",
    ),
    (
        "",
        TABLES.replace("blobs", "hf"),
        "dataset[0].name: write the name of the set after hf:, such as hf:ag_news",
    ),
    # Types.
    ("", TABLES + "[recipe]\nlr = '1e-3'", "recipe.lr: expected a number, got '1e-3'"),
    ("", TABLES + "[recipe]\nlr = true", "recipe.lr: expected a number, got true"),
    (
        "",
        TABLES + "[recipe]\nlr = nan",
        "recipe.lr: expected a number, got nan, which is no finite one",
    ),
    (
        "",
        TABLES + "[recipe]\nlr = inf",
        "recipe.lr: expected a number, got inf, which is no finite one",
    ),
    ("", TABLES + "[recipe]\nepochs = 3.0", "recipe.epochs: expected a whole number, got 3.0"),
    ("", TABLES + "[recipe]\nflip = 1", "recipe.flip: expected true or false, got 1"),
    (
        "",
        TABLES + "[recipe]\nmilestones = [0.5, '0.7']",
        "recipe.milestones[1]: expected a number, got '0.7'",
    ),
    (
        "",
        TABLES + '[[optimizer]]\nname = "sgd"\nlr = "0.1"',
        "optimizer[0].lr: expected a number, got '0.1'",
    ),
    ("", TABLES.replace("= 2", "= '2'"), "method[0].gamma: expected a number, got '2'"),
    (
        "",
        TABLES.replace("= 2", "= 2024-01-01"),
        "method[0].gamma: expected a number, got the date or time 2024-01-01",
    ),
    (
        "",
        TABLES.replace("= 2", f"= 0x{'f' * 5000}"),
        "method[0].gamma: expected a number, got a number of 20000 bits",
    ),
    (
        "",
        TABLES.replace('"mlp"', '"mlp"\nhidden = 3'),
        "model[0].hidden: expected a list of whole numbers, got 3",
    ),
    (
        "",
        TABLES.replace("mlp", "resnet8").replace('"blobs"', '"digits"\nsize = 8.5'),
        "dataset[0].size: expected a whole number or a list of whole numbers, got 8.5",
    ),
    (
        "",
        TABLES.replace('"blobs"', '"blobs"\nlabel_noise = "worse"'),
        "dataset[0].label_noise: expected a number, got 'worse'",
    ),
    (
        "",
        TABLES.replace('"blobs"', '"cifar10"\nlabel_noise = "wrose"'),
        "dataset[0].label_noise: expected a number or one of worse, aggregate, random1, random2, "
        "random3, got 'wrose'",
    ),
    (
        "",
        TABLES + '[[method]]\nname = "entropy"\nform = "papr"',
        "method[1].form: no 'papr'; did you mean paper?",
    ),
    ('seeds = [0, "1"]', TABLES, "seeds[1]: expected a whole number, got '1'"),
    ("seeds = 3", TABLES, "seeds: expected a list of whole numbers, got 3"),
    ("resamples = 1e3", TABLES, "resamples: expected a whole number, got 1000.0"),
    ("", TABLES.replace('"mlp"', "7"), "model[0].name: expected a word, got 7"),
    (
        "",
        "[method]\nname = 'focal'",
        "method: expected a list of tables, got one: write [[method]], not [method]",
    ),
    ("method = [3]", "", "method[0]: expected a table, got 3"),
    ("recipe = 3", TABLES, "recipe: expected a table, got 3"),
    # Values.
    ("seeds = [-1]", TABLES, "seeds[0]: must be at least 0 and below 2**63, got -1"),
    ("resamples = 0", TABLES, "resamples: must be from 1 to 100,000, got 0"),
    ("metrics = []", TABLES, "metrics: must name at least one"),
    ("", TABLES.replace("= 2", "= -2"), "method[0].gamma: must be at least 0, got -2"),
    (
        "",
        TABLES + '[[method]]\nname = "mmce"\nbase = "dca"',
        "method[1].base: must be one of ",
    ),
    (
        "",
        TABLES.replace('"blobs"', '"blobs"\nlimit = 0'),
        "dataset[0].limit: must be at least 1, got 0",
    ),
    ("", TABLES + "[recipe]\nepochs = 0", "recipe.epochs: must be at least 1, got 0"),
    (
        "",
        TABLES + "recipe = {epochs = 0}\n[recipe]\nepochs = 3",
        "method[0].recipe.epochs: must be at least 1, got 0",
    ),
    (
        "",
        TABLES + "recipe = {warmup = 9}\n[recipe]\nepochs = 3",
        "method[0].recipe.warmup: must be at most the 3 epochs, got 9.0",
    ),
    (
        "",
        TABLES + '[[optimizer]]\nname = "sgd"\n[[optimizer]]\nname = "sgd"\nmomentum = 1',
        "optimizer[1].momentum: must lie in [0, 1), got 1.0",
    ),
    ("", TABLES + "[recipe]\nlr = -1.0", "recipe.lr: must be at least 0 and finite, got -1.0"),
    # Names and labels.
    (
        None,
        'name = "../../x"' + TABLES,
        "name: expected [A-Za-z0-9][A-Za-z0-9._-]{0,63}, got '../../x'",
    ),
    (None, 'name = ""' + TABLES, "name: expected [A-Za-z0-9][A-Za-z0-9._-]{0,63}, got ''"),
    (
        None,
        r'name = "a\u0000"' + TABLES,
        r"name: expected [A-Za-z0-9][A-Za-z0-9._-]{0,63}, got 'a\x00'",
    ),
    (
        None,
        f'name = "{"a" * 300}"' + TABLES,
        f"name: expected [A-Za-z0-9][A-Za-z0-9._-]{{0,63}}, got '{'a' * 76}...",
    ),
    (None, 'name = "CON"' + TABLES, "name: 'CON' is a device on Windows; choose another"),
    (None, 'name = "com1.old"' + TABLES, "name: 'com1.old' is a device on Windows; choose another"),
    (
        "",
        TABLES + r'label = "a\nb"',
        r"method[0].label: expected one line of 1 to 80 characters, got 'a\nb'",
    ),
    ("", TABLES + 'label = ""', "method[0].label: expected one line of 1 to 80 characters, got ''"),
    (
        "",
        TABLES + "label = 'x'\n" + METHOD + "label = 'x'",
        "method[1].label: 'x' again, as method[0]; give one of them another label",
    ),
    (
        "",
        TABLES + METHOD.replace("3", "2") + "recipe = {clip = 1}",
        "method[1].label: 'focal gamma=2' again, as method[0]; give one of them another label",
    ),
    ("seeds = [4, 1, 4]", TABLES, "seeds[2]: 4 again, as seeds[0]"),
    ('metrics = ["ece", "ece"]', TABLES, "metrics[1]: ece again, as metrics[0]"),
    # The grid.
    (
        "seeds = [5, 6]",
        TABLES + METHOD.replace("3", "2.0") + "label = 'the same'",
        "method[0] and method[1] mean the same training: 2 cells are given twice, the first is "
        "blobs, mlp, sgd, focal gamma=2, seed 5",
    ),
    (
        "",
        TABLES + '[[method]]\nname = "focal"\n' + METHOD,
        "method[1] and method[2] mean the same training: 1 cell is given twice, the first is "
        "blobs, mlp, sgd, focal, seed 0",
    ),
    ("seeds = []", TABLES, "seeds: the grid is empty; write at least one seed"),
    ("", "", "dataset: the grid is empty; write at least one [[dataset]]"),
    ("optimizer = []", TABLES, "optimizer: the grid is empty; write at least one [[optimizer]]"),
    (
        f"seeds = {list(range(10_001))}",
        TABLES,
        "the grid has 10,001 cells, more than 10,000; cut it down, or say that so many are "
        "meant (--yes)",
    ),
    (
        "",
        TABLES + '[[optimizer]]\nname = "sgd"\nlr = 1\n[recipe]\nlr = 2',
        "recipe.lr: optimizer[0] sets it, too; keep one of the two",
    ),
    (
        "",
        TABLES + 'recipe = {sam = 0.1}\n[[optimizer]]\nname = "sgd"\nsam = 1',
        "method[0].recipe.sam: optimizer[0] sets it, too; keep one of the two",
    ),
    (
        "",
        TABLES.replace("mlp", "text_cnn"),
        "model[0].name: text_cnn is for text, and dataset[0] blobs has vectors; "
        "put them in two studies",
    ),
    (
        "",
        TABLES + "[recipe]\nflip = true",
        "dataset[0]: flip is not for vectors; set it in the recipes of other datasets, "
        "or to 0 in that of blobs",
    ),
    (
        "",
        TABLES + "[recipe]\nword_dropout = 0.1",
        "dataset[0]: word_dropout is not for vectors; set it in the recipes of other datasets, "
        "or to 0 in that of blobs",
    ),
    # Code.
    (
        "",
        TABLES.replace("mlp", "os:system"),
        "model[0].name: 'os:system' is code, and a file alone may not run any; "
        "name it outside of the file as well (--allow-code os:system)",
    ),
]


@pytest.mark.parametrize(("head", "tables", "message"), WRONG, ids=[each[2][:50] for each in WRONG])
def test_a_wrong_study_is_refused_in_one_line(tmp_path, as_a_user_runs_it, head, tables, message):
    path = tmp_path / "small.toml"
    path.write_text(tables if head is None else f"{HEAD}{head}\n{tables}")
    with pytest.raises(ValueError, match=re.escape(message)) as caught:
        read(path)
    said = str(caught.value).removeprefix(f"{path}: ")
    assert said == message or message.endswith("one of ")
    assert "\n" not in said
    assert len(said) < 400


BROKEN = [
    (b'name = "a"\nname = "b"\n', "2:11: this key is given twice"),
    (b"name = \n", "1:8: Invalid value"),
    (b"seeds = [1,\n", "2:1: Invalid value"),
    (b"[recipe]\nlr = 1\n[recipe]\n", "3:8: Cannot declare ('recipe',) twice"),
    (b'name = "a"\nabout = "\xff"\n', "2:10: byte 0xff is not UTF-8; save the file as UTF-8"),
    (b"x = " + b"[" * 5000, "1:1: lists or tables lie too deep in each other"),
]


@pytest.mark.parametrize(("content", "message"), BROKEN)
def test_a_broken_file_is_refused_with_line_and_column(tmp_path, content, message):
    path = tmp_path / "broken.toml"
    path.write_bytes(content)
    with pytest.raises(ValueError, match="^" + re.escape(f"{path}:{message}") + "$"):
        read(path)


def test_a_file_above_one_megabyte_is_refused(tmp_path):
    path = tmp_path / "large.toml"
    start = b'name = "a"\n#'
    path.write_bytes(start + b"x" * (MAX_BYTES + 1 - len(start)))
    with pytest.raises(
        ValueError, match=r"large.toml: a study must have at most 1 MB, got 1.0 MB$"
    ):
        read(path)
    path.write_bytes(start + b"x" * (MAX_BYTES - len(start)))
    with pytest.raises(ValueError, match=r"large.toml: dataset: the grid is empty"):
        read(path)


def test_a_study_that_is_no_file_is_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"none.toml: no such file$"):
        read(tmp_path / "none.toml")
    with pytest.raises(ValueError, match=r"a study must be a file, and this is none$"):
        read(tmp_path)


@pytest.mark.parametrize("parts", [40, 20_000, 400_000])
def test_keys_of_very_many_parts_are_refused_at_once(tmp_path, parts):
    path = tmp_path / "deep.toml"
    for text in (".".join(["a"] * parts), "[" + ".".join(["a"] * parts) + "]\nb"):
        path.write_text(f"x = 1\n{text} = 1\n")
        with pytest.raises(ValueError, match=r"deep.toml:[0-9]:1: .*(parts|too deep)"):
            read(path)
    path.write_text('name = "a"\n')
    with pytest.raises(ValueError, match="more than 32 parts"):
        read(path, overrides=[f"{'.'.join(['a'] * parts)}=1"])


def test_long_words_and_many_quotes_cost_no_time(tmp_path):
    path = tmp_path / "long.toml"
    for word in ("a" * 900_000, '"' * 900_000, "a." * 20 + "a" * 900_000, "'a'." * 30):
        path.write_text(f"x = {word}\n")
        with pytest.raises(ValueError, match=r"long\.toml"):
            read(path)


PLACE = "an override must be place=value, such as recipe.epochs=5 or dataset[0].limit=500; got "
OVERRIDES = [
    (
        "epochs",
        PLACE + "'epochs'",
    ),
    (
        "a..b=3",
        PLACE + "'a..b=3'",
    ),
    (
        "dataset[0]limit=3",
        PLACE + "'dataset[0]limit=3'",
    ),
    (
        "dataset[1].limit=5",
        "override dataset[1].limit: the study has no dataset[1]; dataset has 1",
    ),
    ("name.x=5", "override name.x: name is no table"),
    ("dataset.limit=5", "override dataset.limit: dataset is no table"),
    ("recipe.epoch=5", "recipe.epoch: unknown; did you mean epochs?"),
    ("recipe.epochs=five", "recipe.epochs: expected a whole number, got 'five'"),
    ("seeds=[0", "seeds: expected a list of whole numbers, got '[0'"),
]


@pytest.mark.parametrize(("override", "message"), OVERRIDES)
def test_a_wrong_override_is_refused(tmp_path, override, message):
    path = tmp_path / "small.toml"
    path.write_text(HEAD + TABLES)
    with pytest.raises(ValueError, match="^" + re.escape(message) + "$"):
        read(path, overrides=[override])


def test_the_same_override_twice_is_refused(tmp_path):
    path = tmp_path / "small.toml"
    path.write_text(HEAD + TABLES)
    with pytest.raises(ValueError, match=r"^override recipe.epochs: given twice$"):
        read(path, overrides=["recipe.epochs=1", "recipe.epochs=2"])
