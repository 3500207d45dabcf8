"""Every wrong study is refused with one line that says where and what."""

import re

import pytest

from calibrant.study.spec import parse, read
from calibrant.study.spec_text import MAX_BYTES

HEAD = 'name = "small"\n'
DATASET, MODEL = '[[dataset]]\nname = "blobs"\n', '[[model]]\nname = "mlp"\n'
METHOD = '[[method]]\nname = "focal"\ngamma = 2\n'
TABLES = DATASET + MODEL + METHOD
OPTIMIZER = '[[optimizer]]\nname = "sgd"\n'
NAME = "name: expected a string like ^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$, got "

# What follows the name of the study, and what is said of it.
WRONG = [
    # Keys that do not exist, or are missing.
    ("nmae = 'x'\n" + TABLES, "nmae: unknown; did you mean name?"),
    (TABLES + "gama = 3", "method[0].gama: unknown; did you mean gamma?"),
    (TABLES + "[recipe]\nepoch = 3", "recipe.epoch: unknown; did you mean epochs?"),
    (TABLES + "recipe = {clipp = 1}", "method[0].recipe.clipp: unknown; did you mean clip?"),
    (TABLES + "[probe]\nevry = 3", "probe.evry: unknown; did you mean every?"),
    (
        TABLES + OPTIMIZER + "zzz = 1",
        "optimizer[0].zzz: unknown; expected one of name, lr, momentum, nesterov, weight_decay, "
        "sam, epochs, batch, label",
    ),
    (
        TABLES + '[recipe]\noptimizer = "sgd"',
        "recipe.optimizer: unknown; optimizers have tables of their own, [[optimizer]]",
    ),
    (TABLES + "[[method]]\nlabel = 'x'", 'method[1].name: missing; write name = "..."'),
    # Names that do not exist.
    (METHOD + '[[method]]\nname = "focl"', "method[1].name: no method 'focl'; did you mean focal?"),
    (
        TABLES + '[[optimizer]]\nname = "lion"',
        "optimizer[0].name: no optimizer 'lion'; expected one of sgd, adamw, muon, gd",
    ),
    (
        'calibrators = ["temprature"]\n' + TABLES,
        "calibrators: no calibrator 'temprature'; did you mean temperature?",
    ),
    ('metrics = ["ece", "smce"]\n' + TABLES, "metrics: no metric 'smce'; did you mean smece?"),
    ("shifts = ['blurr 3']\n" + TABLES, "shifts: no shift 'blurr 3'; did you mean blur 3?"),
    (
        TABLES + '[recipe]\nschedule = "cosin"',
        "recipe.schedule: expected 'constant', 'cosine', 'one_cycle', 'multi_step' or 'linear', "
        "got 'cosin'",
    ),
    (TABLES.replace("blobs", "hf"), "dataset[0].name: expected a string like ^hf:., got 'hf'"),
    # Types.
    (TABLES + "[recipe]\nlr = '1e-3'", "recipe.lr: expected a number, got '1e-3'"),
    (TABLES + "[recipe]\nlr = true", "recipe.lr: expected a number, got true"),
    (TABLES + "[recipe]\nlr = nan", "recipe.lr: expected a finite number, got nan"),
    (TABLES + "[recipe]\nepochs = 3.0", "recipe.epochs: expected an integer, got 3.0"),
    (TABLES + "[recipe]\nflip = 1", "recipe.flip: expected true or false, got 1"),
    (
        TABLES + "[recipe]\nmilestones = [0.5, '0.7']",
        "recipe.milestones[1]: expected a number, got '0.7'",
    ),
    (
        TABLES.replace("= 2", "= 2024-01-01"),
        "method[0].gamma: expected a number, got the date or time 2024-01-01",
    ),
    (
        TABLES.replace("= 2", f"= 0x{'f' * 5000}"),
        "method[0].gamma: expected at most 64 bits, got an integer of 20000 bits",
    ),
    (
        f"seeds = [0, {2**63}]\n" + TABLES,
        "seeds[1]: expected at most 64 bits, got an integer of 64 bits",
    ),
    (
        TABLES + "[recipe]\nepochs = 10_000_000_000",
        "recipe.epochs: must be at most 1000000000, got 10000000000",
    ),
    (
        '[[dataset]]\nname = "digits"\nsize = 8.5\n',
        "dataset[0].size: expected an integer or a list, got 8.5",
    ),
    (
        '[[dataset]]\nname = "cifar10"\nlabel_noise = "wrose"\n',
        "dataset[0].label_noise: expected a number or 'worse', 'aggregate', 'random1', 'random2' "
        "or 'random3', got 'wrose'",
    ),
    ('seeds = [0, "1"]\n' + TABLES, "seeds[1]: expected an integer, got '1'"),
    ("seeds = 3\n" + TABLES, "seeds: expected a list, got 3"),
    (TABLES.replace('"mlp"', "7"), "model[0].name: expected a string, got 7"),
    (
        "[method]\nname = 'focal'",
        "method: expected a list of tables, got one: write [[method]], not [method]",
    ),
    ("method = [3]", "method[0]: expected a table, got 3"),
    ("recipe = 3\n" + TABLES, "recipe: expected a table, got 3"),
    # Values.
    ("seeds = [-1]\n" + TABLES, "seeds[0]: expected at least 0, got -1"),
    ("resamples = 0\n" + TABLES, "resamples: expected at least 1, got 0"),
    ("metrics = []\n" + TABLES, "metrics: expected at least 1 of them, got []"),
    (TABLES.replace("= 2", "= -2"), "method[0].gamma: must be at least 0, got -2"),
    (TABLES + '[[method]]\nname = "mmce"\nbase = "dca"', "method[1].base: must be one of "),
    (DATASET + "limit = 0\n", "dataset[0].limit: must be at least 1, got 0"),
    (TABLES + "[probe]\nevery = 0", "probe.every: must be at least 1, got 0"),
    (TABLES + "[recipe]\nepochs = 0", "recipe.epochs: must be at least 1, got 0"),
    (
        TABLES + "recipe = {warmup = 9}\n[recipe]\nepochs = 3",
        "method[0].recipe.warmup: must be at most the 3 epochs, got 9.0",
    ),
    (
        TABLES + OPTIMIZER + OPTIMIZER + "momentum = 1",
        "optimizer[1].momentum: must lie in [0, 1), got 1.0",
    ),
    (TABLES + "[probe]\nmeasures = ['sharp']", "probe.measures: must be one of "),
    # Labels.
    (
        TABLES + r'label = "a\nb"',
        r"method[0].label: expected one line of 1 to 80 characters, got 'a\nb'",
    ),
    (
        TABLES + METHOD + "recipe = {clip = 1}",
        "method[1].label: 'focal gamma=2' again, as method[0]; give one of them another label",
    ),
    ("seeds = [4, 1, 4]\n" + TABLES, "seeds: 4 is given twice"),
    ('metrics = ["ece", "ece"]\n' + TABLES, "metrics: ece is given twice"),
    # The grid.
    (
        TABLES + METHOD.replace("2", "2.0") + "label = 'the same'",
        "method[0] and method[1] mean the same run: blobs, mlp, sgd, focal gamma=2",
    ),
    ("seeds = []\n" + TABLES, "seeds: the grid is empty; write at least one seed"),
    ("", "dataset: the grid is empty; write at least one [[dataset]]"),
    (
        f"seeds = {list(range(10_001))}\n" + TABLES,
        "the grid has 10,001 runs, more than 10,000; reduce it, or confirm with --yes",
    ),
    (
        TABLES + OPTIMIZER + "lr = 1\n[recipe]\nlr = 2",
        "recipe.lr: optimizer[0] sets it, too; keep one of the two",
    ),
    (
        TABLES.replace("mlp", "text_cnn"),
        "model[0].name: text_cnn is for text, and dataset[0] blobs has vectors; put them in two "
        "studies",
    ),
    (
        "shifts = ['blur 3']\n" + TABLES,
        "shifts: they change images, and dataset[0] blobs has vectors",
    ),
    (
        TABLES + "[recipe]\nflip = true",
        "dataset[0]: flip is not for vectors; set it in the recipes of other datasets, or to 0 in "
        "that of blobs",
    ),
    (
        TABLES.replace("mlp", "os:system"),
        "model[0].name: 'os:system' is code, and a file alone may not run any; name it outside of "
        "the file as well (--allow-code os:system)",
    ),
]


@pytest.mark.parametrize(("text", "message"), WRONG, ids=[each[1][:50] for each in WRONG])
def test_a_wrong_study_is_refused_in_one_line(tmp_path, text, message):
    path = tmp_path / "small.toml"
    path.write_text(HEAD + text)
    with pytest.raises(ValueError, match="^" + re.escape(f"{path}: {message}")) as caught:
        read(path)
    said = str(caught.value).removeprefix(f"{path}: ")
    assert said == message or message.endswith("one of ")
    assert "\n" not in said
    assert len(said) < 400


def test_a_study_needs_a_name_that_can_be_a_folder():
    for name, said in {
        "../../x": NAME + "'../../x'",
        "": NAME + "''",
        "a\x00": NAME + r"'a\x00'",
        "a" * 300: NAME + f"'{'a' * 76}...",
    }.items():
        with pytest.raises(ValueError, match="^" + re.escape(said) + "$"):
            parse({"name": name})
    with pytest.raises(ValueError, match=r'^name: missing; write name = "..."$'):
        parse({})


BROKEN = [
    (b'name = "a"\nname = "b"\n', "Cannot overwrite a value (at line 2, column 11)"),
    (b"seeds = [1,\n", "Invalid value (at end of document)"),
    (b'name = "a"\nabout = "\xff"\n', "byte 0xff in line 2 is not UTF-8; save the file as UTF-8"),
    (b"x = 1\ny = " + b"9" * 5000, "the integer in line 2 has more than 64 bits"),
    (b"x = " + b"[" * 5000, "lists or tables are nested too deeply"),
    (b"x = " + b"[" * 40 + b"]" * 40, "lists or tables are nested too deeply"),
    (b'name = "a"\n#' + b"x" * MAX_BYTES, "a study must have at most 1 MB, got 1.0 MB"),
]


@pytest.mark.parametrize(("content", "message"), BROKEN, ids=[each[1] for each in BROKEN])
def test_a_broken_file_is_refused_with_its_line(tmp_path, content, message):
    path = tmp_path / "broken.toml"
    path.write_bytes(content)
    with pytest.raises(ValueError, match="^" + re.escape(f"{path}: {message}") + "$"):
        read(path)


def test_a_study_is_a_file_of_at_most_one_megabyte(tmp_path):
    path = tmp_path / "large.toml"
    path.write_bytes(b'name = "a"\n#'.ljust(MAX_BYTES, b"x"))
    with pytest.raises(ValueError, match=r"large.toml: dataset: the grid is empty"):
        read(path)
    with pytest.raises(FileNotFoundError, match=r"none.toml: no such file$"):
        read(tmp_path / "none.toml")
    with pytest.raises(ValueError, match=r"is a folder: pass the TOML file, or use"):
        read(tmp_path)


@pytest.mark.parametrize("parts", [40, 400_000])
def test_keys_of_very_many_parts_are_refused_at_once(tmp_path, parts):
    path = tmp_path / "deep.toml"
    for text in (".".join(["a"] * parts), "[" + ".".join(["a"] * parts) + "]\nb"):
        path.write_text(f"x = 1\n{text} = 1\n")
        with pytest.raises(ValueError, match=r"deep.toml: the key in line 2 has more than 32 part"):
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
    (["epochs"], PLACE + "'epochs'"),
    (["a..b=3"], PLACE + "'a..b=3'"),
    (["dataset[0]limit=3"], PLACE + "'dataset[0]limit=3'"),
    (["dataset[1].limit=5"], "override dataset[1].limit: there is no entry [1], only 1"),
    (["name.x=5"], "override name.x: x is not in a table"),
    (["recipe.epoch=5"], "recipe.epoch: unknown; did you mean epochs?"),
    (["seeds=[0"], "seeds: expected a list, got '[0'"),
    (["recipe.epochs=1", "recipe.epochs=2"], "override recipe.epochs: given twice"),
]


@pytest.mark.parametrize(("overrides", "message"), OVERRIDES, ids=[e[1][:40] for e in OVERRIDES])
def test_a_wrong_override_is_refused(tmp_path, overrides, message):
    path = tmp_path / "small.toml"
    path.write_text(HEAD + TABLES)
    with pytest.raises(ValueError, match="^" + re.escape(message) + "$"):
        read(path, overrides=overrides)
