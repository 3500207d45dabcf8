"""The arena on made-up rows, with expected values worked out by hand."""

import math
from typing import ClassVar

import numpy as np
import pytest
from benchmarks import arena_problems, arena_rows, arena_tables
from benchmarks.arena_conditions import shift_section
from benchmarks.arena_page import TWO_SETTINGS, page
from benchmarks.arena_rows import experiments, group_rows, of_methods, write_group
from benchmarks.arena_scores import (
    failed,
    interval,
    nearest,
    paired_rates,
    ran,
    ratios,
    relative,
    source,
    win_rates,
    wins,
)
from benchmarks.arena_verdict import failures, limits, verdict

FAILED = math.inf
RIVAL = "probmetrics sms"


def experiment(**losses):
    """An experiment in which the Brier score is the log loss."""
    return {name: {"nll": value, "brier": value} for name, value in losses.items()}


@pytest.fixture
def results(tmp_path, monkeypatch):
    monkeypatch.setattr(arena_rows, "RESULTS", tmp_path)
    return tmp_path


def made(problem, half, losses, *, group="tables-2", size="all", shift=""):
    """Rows as `make arena` keeps them; a loss of None is a failure."""
    row = {"problem": problem, "group": group, "size": size, "half": half, "shift": shift}
    values = {
        name: {"nll": str(loss), "brier": str(loss), "fit": "0.002", "apply": "0.001"}
        for name, loss in losses.items()
        if loss is not None
    }
    return [row | {"method": name} | values.get(name, {}) for name in losses]


def lines(*rows):
    """Rows as they are read from the files of results."""
    found = [row for some in rows for row in some]
    for group in arena_problems.GROUPS:
        write_group(group, [row for row in found if row["group"] == group])
    return group_rows()


class TestWinRates:
    def test_a_tie_counts_one_half_and_failures_lose_but_tie_with_each_other(self):
        rates = win_rates([experiment(a=0.2, b=0.2, c=0.5, d=FAILED, e=FAILED)], "nll")
        # a: half for b, one each for c, d, e, in four meetings.
        assert rates == {"a": 3.5 / 4, "b": 3.5 / 4, "c": 2 / 4, "d": 0.5 / 4, "e": 0.5 / 4}

    def test_are_means_over_the_experiments_that_a_method_ran(self):
        given = [experiment(a=0.2, b=0.3, c=0.5), experiment(a=0.3, c=0.1)]
        assert win_rates(given, "nll") == {"a": (1 + 0) / 2, "b": 1 / 2, "c": (0 + 1) / 2}

    def test_paired_rates_are_of_the_experiments_that_both_ran(self):
        given = {
            ("t", "all"): experiment(a=0.2, b=0.3, c=0.5),
            ("u", "all"): experiment(a=0.3, c=0.1),
        }
        assert paired_rates(given, "a", "b", "nll") == (1, 1 / 2)
        assert paired_rates(given, "a", "c", "nll") == (1 / 2, 1 / 2)

    def test_the_strongest_method_is_compared_on_common_experiments(self):
        given = {
            ("t", "all"): experiment(a=0.2, b=0.3, c=0.5),
            ("u", "all"): experiment(a=0.3, c=0.1),
        }
        # a leads b by 1/2 where both ran, and c by 0.
        assert nearest(given, "a", ["b", "c"], "nll") == "c"


class TestPairs:
    GIVEN: ClassVar = {
        ("t/forest", "100"): experiment(blend=0.2, other=0.3),
        ("t/forest", "all"): experiment(blend=0.2, other=0.2),
        ("t/mlp", "100"): experiment(blend=0.2, other=FAILED),
        ("t/mlp", "all"): experiment(blend=FAILED, other=FAILED),
        ("u/mlp", "all"): experiment(blend=0.9),
    }

    def test_wins_count_ties_failures_and_two_failures(self):
        # Lower, tie, the other failed, both failed; the fifth experiment ran only one of them.
        assert wins(self.GIVEN, "blend", "other", "nll") == (1 + 0.5 + 1 + 0.5) / 4
        assert wins(self.GIVEN, "other", "blend", "nll") == (0 + 0.5 + 0 + 0.5) / 4

    def test_runs_and_failures_are_counted(self):
        assert (ran(self.GIVEN, "other"), failed(self.GIVEN, "other")) == (4, 2)
        assert (ran(self.GIVEN, "blend"), failed(self.GIVEN, "blend")) == (5, 1)

    def test_ratios_leave_failures_out(self):
        found = ratios(self.GIVEN, "blend", "other", "nll")
        assert found == pytest.approx({("t/forest", "100"): 2 / 3, ("t/forest", "all"): 1})


def test_the_relative_loss_is_a_geometric_mean_without_failures():
    given = {
        ("t", "100"): experiment(uncalibrated=0.4, a=0.2, b=FAILED),
        ("t", "300"): experiment(uncalibrated=0.4, a=3.2, b=FAILED),
        ("t", "all"): experiment(uncalibrated=0.4, a=FAILED, b=FAILED),
    }
    # The ratios are 1/2 and 8: the square root of 4.
    assert relative(given, "a", "nll") == pytest.approx(2)
    assert math.isnan(relative(given, "b", "nll"))


class TestInterval:
    TABLE: ClassVar = {
        ("t.x/forest", "all"): experiment(a=1, b=2),
        ("t.x/mlp", "all"): experiment(a=4, b=2),
    }

    def test_resamples_tables_and_networks(self):
        # The table has the mean ratio 1, the network 4. A resample of two has 1, 2 or 4.
        given = self.TABLE | {("n cat", "all"): experiment(a=4, b=1)}
        assert interval(given, "a", "b", "nll") == "2.0000 [1.0000, 4.0000]"

    def test_is_absent_for_one_table(self):
        assert interval(self.TABLE, "a", "b", "nll") == "1.0000"

    def test_is_a_dash_if_the_other_method_did_not_run(self):
        assert interval(self.TABLE, "a", "c", "nll") == "-"

    def test_leaves_failures_out(self):
        given = self.TABLE | {("n", "all"): experiment(a=1, b=FAILED)}
        assert interval(given, "a", "b", "nll") == "1.0000"


class TestRows:
    LOSSES: ClassVar = {"uncalibrated": 0.5, "blend": 0.25, "isotonic": None}

    def test_writing_and_reading_gives_the_same_values(self, results):
        read = lines(
            made("t/mlp", "report", self.LOSSES),
            made("t/mlp", "report", {"uncalibrated": 0.5, RIVAL: 0.3}, size="100"),
            made("u/mlp", "choices", {"uncalibrated": 0.7}),
            made("t/mlp", "report", {"blend": 0.9}, shift="noise"),
        )
        score = {"nll": 0.25, "brier": 0.25}
        times = {"fit": 0.002, "apply": 0.001}
        half, third = dict.fromkeys(score, 0.5), dict.fromkeys(score, 0.3)
        assert experiments(read, "tables-2", "report") == {
            ("t/mlp", "all"): {
                "uncalibrated": half | times,
                "blend": score | times,
                "isotonic": dict.fromkeys(score | times, FAILED),
            },
            # Times are kept of fits to all examples; isotonic and blend did not run.
            ("t/mlp", "100"): {"uncalibrated": half, RIVAL: third},
        }
        assert list(experiments(read, "tables-2", "choices")) == [("u/mlp", "all")]
        shifted = [line for line in read if line["shift"]]
        assert [(each["value"], of_methods(each)) for each in shifted] == [
            ("nll", {"blend": 0.9}),
            ("brier", {"blend": 0.9}),
        ]

    def test_a_loss_that_is_no_number_is_a_failure(self):
        assert of_methods({"a": "nan", "b": "inf", "c": "", "d": "-", "e": "0.5"}) == {
            **dict.fromkeys("abc", FAILED),
            "e": 0.5,
        }


class TestHalves:
    @pytest.fixture
    def problems(self, tmp_path, monkeypatch):
        """Problems of tiny files, by the functions that cut the real ones."""
        monkeypatch.setattr(arena_problems, "DATA", tmp_path)
        monkeypatch.setattr(arena_tables, "KEPT", tmp_path)
        labels = np.arange(20) % 10
        for name in ("c_net", "a_net", "b_net"):
            np.savez(
                tmp_path / f"logits_{name}.npz", logits_test=np.eye(10)[labels], labels_test=labels
            )
        two = {f"{part}_labels": labels % 2 for part in ("val", "test")}
        probs = {f"mlp/{part}": np.full((20, 2), 0.5) for part in ("val", "test")}
        for each in (*arena_tables.FOR_CHOICES, *arena_tables.FOR_REPORT):
            np.savez(tmp_path / f"{each.package} {each.name}.npz", **two, **probs)
        kept = {}
        for table in (*arena_problems.CHOSEN_ON, "kept_aside"):
            for part in ("val", "test"):
                kept[f"{table}.y/mlp/{part}_probs"] = np.full((20, 2), 0.5, np.float32)
                kept[f"{table}.y/{part}_labels"] = (labels % 2).astype(np.int16)
        np.savez(tmp_path / "tabular_A.npz", **kept)
        makers = (arena_problems.tables, arena_problems.own_tables, arena_problems.files)
        return [problem for make in makers for problem in make()]

    def test_no_table_or_network_is_in_both(self, problems):
        halves = [{source(p.name) for p in problems if p.half == h} for h in ("choices", "report")]
        assert all(halves)
        assert not halves[0] & halves[1]

    def test_tables_are_split_as_listed(self, problems):
        found = {source(p.name).split(".")[0]: p.half for p in problems if p.group == "tables-2"}
        first = (*arena_problems.CHOSEN_ON, *(each.name for each in arena_tables.FOR_CHOICES))
        second = ("kept_aside", *(each.name for each in arena_tables.FOR_REPORT))
        assert found == dict.fromkeys(first, "choices") | dict.fromkeys(second, "report")

    def test_files_alternate_and_their_classes_stay_with_them(self, problems):
        found = {p.name: p.half for p in problems if p.group.startswith("images")}
        classes = arena_problems.ONE
        assert found == {
            name: half
            for file, half in (("a_net", "choices"), ("b_net", "report"), ("c_net", "choices"))
            for name in (file, *(f"{file} {one}" for one in classes))
        }

    def test_no_committed_row_is_in_both(self):
        halves = {}
        for line in group_rows():
            halves.setdefault(source(line["problem"]), set()).add(line["half"])
        assert all(len(found) == 1 for found in halves.values())


def losses(blend=0.1, rival=0.2, **more):
    """One experiment's losses: with these defaults blend is best, then the rival."""
    given = {"uncalibrated": 0.5, "temperature": 0.4, "select": 0.3, "blend": blend}
    return given | ({RIVAL: rival} if rival else {}) | more


def first_lines(rows):
    """The verdict on reported rows."""
    groups = {group: experiments(rows, group, "report") for group in arena_problems.GROUPS}
    return verdict({group: found for group, found in groups.items() if found})


class TestVerdict:
    def test_changes_with_the_rows(self, results):
        text = first_lines(lines(made("t/mlp", "report", losses(rival=0.35))))
        assert "highest win rate in 2 of 2 comparisons" in text
        assert "in 2 of 2 pairings with 1 method of other" in text
        assert "Ahead of it" not in text
        text = first_lines(lines(made("t/mlp", "report", losses(blend=0.25))))
        assert "highest win rate in 0 of 2 comparisons" in text
        assert "in 0 of 2 pairings" in text
        own = next(line for line in text.splitlines() if "default of" in line)
        assert "Ahead of it: probmetrics sms (binary tables, log loss)" in own

    def test_select_is_compared_with_other_libraries_only(self, results):
        text = first_lines(lines(made("t/mlp", "report", losses(rival=0.35, temperature=0.2))))
        assert "method of another library in 2 of 2." in text

    def test_compares_on_the_experiments_that_both_ran(self, results):
        rows = lines(
            made("t/mlp", "report", losses(rival=0.11)),
            made("u/mlp", "report", losses(blend=0.6, rival=None)),
        )
        text = first_lines(rows)
        # Where both ran, blend beats all of four and the rival three; elsewhere blend is last.
        assert "0.750 (probmetrics sms; blend 1.000 on the same 1 of 2 experiments)" in text
        own = next(line for line in text.splitlines() if "default of" in line)
        assert RIVAL not in own

    def test_counts_experiments_that_became_worse(self, results):
        rows = lines(
            made("t/mlp", "report", losses(blend=0.51), size="100"),
            made("t/mlp", "report", losses(blend=0.501)),
        )
        assert "in 1 of 2 experiments. 1 of these have 100 examples" in first_lines(rows)


class TestLimits:
    @pytest.fixture
    def text(self, results):
        images = {"group": "images-2"}
        rows = lines(
            made("a_net cat", "choices", losses(), **images),
            made("imdb", "choices", losses(), **images),
            made("b_net cat", "report", losses(), **images),
            made("b_net dog", "report", losses(), **images, size="100"),
            made("b_net dog", "report", losses(), **images),
            made("c_net cat", "report", losses(), **images),
            made("d_net", "report", losses(), group="images-100"),
        )
        groups = {group: experiments(rows, group, "report") for group in ("images-2", "images-100")}
        return limits(rows, groups)

    def test_count_networks_problems_and_experiments(self, text):
        cells = [part.strip() for part in text.splitlines()[2].split("|")[2:-1]]
        assert cells == ["2", "3", "4", "2", "2"]

    def test_name_a_group_with_one_network(self, text):
        assert "Images of 100 classes: one network (d_net), so there is no interval" in text
        assert text.count("so there is no interval") == 1

    def test_say_how_problems_of_two_classes_are_made(self, text):
        assert "all 3 problems tell one class of CIFAR-10 from the rest, with 2 networks" in text
        assert "(imdb) are only in the half for choices" in text
        assert "CIFAR-10 has 1 network in the half for choices and 2 in the reported" in text


class TestFailures:
    def test_name_the_sets_on_which_scikit_learn_fails(self, results):
        fails = {"scikit-learn isotonic": None, "isotonic": None, "beta": 0.3, "venn-abers": None}
        rows = lines(
            made("d_net", "report", losses(**fails), group="images-100", size="100"),
            made("d_net", "report", losses(**fails), group="images-100", size="300"),
            made("d_net", "report", losses(isotonic=0.3), group="images-100"),
        )
        text = failures({"images-100": experiments(rows, "images-100")})
        assert "lacks a class: 2 experiments (images of 100 classes, 100 and 300 examples)" in text
        assert "The same holds for 1 method of calibrant and venn-abers." in text

    def test_are_not_mentioned_if_there_are_none(self, results):
        rows = lines(made("t/mlp", "report", losses()))
        assert failures({"tables-2": experiments(rows, "tables-2")}) == ""


@pytest.mark.parametrize(
    ("halves", "said"),
    [
        (("choices", "choices"), "All of these files are in the half for choices: a_net, b_net."),
        (("report", "report"), "All of these files are in the reported half: a_net, b_net."),
        (("choices", "report"), "in the half for choices: a_net; in the reported half: b_net."),
    ],
)
def test_shifted_files_name_their_half(results, halves, said):
    rows = lines(
        *(
            made(name, half, losses(), group="images-10", shift="noise")
            for name, half in zip(("a_net", "b_net"), halves, strict=True)
        )
    )
    text = shift_section(rows)
    assert said in text
    assert "no shifted file was used" in text


class TestPage:
    @pytest.fixture
    def rows(self, results):
        fails = losses(isotonic=None, **{"betacal abm": 0.3, "betacal am": 0.3})
        return lines(
            made("t.x/mlp", "report", losses(isotonic=0.3)),
            made("u.x/mlp", "report", fails),
            made("c.x/mlp", "choices", losses()),
            made("a_net", "choices", losses(), group="images-10"),
            made("b_net", "report", losses(), group="images-10"),
            made("a_net", "choices", losses(), group="images-10", shift="noise"),
        )

    def test_shows_how_often_each_method_ran_and_failed(self, rows):
        text = page(rows, [])
        section = text.split("## Binary tables\n")[1].split("\n## ")[0]
        counts = {
            cells[1].strip(" *"): [cell.strip() for cell in cells[-3:-1]]
            for cells in (line.split("|") for line in section.splitlines() if "|" in line)
        }
        assert counts["isotonic"] == ["2", "1"]
        assert counts["betacal am"] == ["1", "0"]
        assert counts["blend"] == ["2", "0"]

    def test_lists_what_choices_were_made_on(self, rows):
        text = page(rows, [])
        assert "half of the problems: the tables c, and the networks a_net. All tables" in text

    def test_names_the_methods_with_two_settings(self, rows):
        text = page(rows, [])
        assert "3 methods of 2 libraries. 1 method runs with two settings: betacal" in text
        assert "settings: betacal abm (default) and betacal am. All others" in text

    def test_has_the_half_of_shifted_files_and_no_empty_sections(self, rows):
        text = page(rows, [])
        assert "All of these files are in the half for choices: a_net." in text
        assert "## Few examples" not in text
        assert "{" not in text
        assert "nan" not in text


def test_methods_with_two_settings_are_in_the_arena():
    for library in ("betacal", "calibre", "mcgrad", "ml_insights", "netcal", "venn_abers"):
        pytest.importorskip(library)
    from benchmarks.arena_rivals import ARENA

    assert {*TWO_SETTINGS, *TWO_SETTINGS.values()} <= set(ARENA)
