"""The page of a study in a real browser: it loads alone, sorts, filters, and nothing in it runs."""

import re
import shutil
import subprocess

import pytest
from saved_studies import read_lines, small_study, write_lines

from calibrant import audit
from calibrant.data import SYNTHETIC
from calibrant.report.findings import findings
from calibrant.report.saved import read_saved
from calibrant.report.study_page import DOWNLOADS, study_page

pytestmark = pytest.mark.slow

# Columns that a full study has beside those of the small one.
MORE = ("mce", "rmsce", "ks")
ROWS = "[...document.querySelector('table.compare').tBodies[0].rows]"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = small_study(tmp_path_factory.mktemp("study"))
    rows = read_lines(made / "rows.jsonl")
    wider = [{**row, "metric": name} for name in MORE for row in rows if row["metric"] == "ece"]
    write_lines(made / "rows.jsonl", rows + wider)
    return made


@pytest.fixture(scope="module")
def address(folder):
    return study_page(folder).as_uri()


@pytest.fixture
def opened(browser, address):
    browser.look()
    browser.resize(1280, 900)
    browser.open(address)
    return browser


def test_the_page_makes_no_request_and_logs_no_error(opened):
    assert len(opened.requests) == 1
    assert opened.run("document.title") == 'small <i>study</i> & "friends"'
    assert opened.complaints == []


def test_names_are_text_and_no_script_runs_but_ours(opened):
    # An alert would block the page: it could not answer.
    assert opened.run("document.scripts.length") == 1
    assert opened.run("document.querySelectorAll('h1 i, th b, td script, main script').length") == 0
    assert "<script>alert(" in opened.run("document.querySelector('main').innerText")
    blocked = opened.run(
        "new Promise((done) => {"
        " addEventListener('securitypolicyviolation', () => done(true));"
        " const other = document.createElement('script');"
        " other.textContent = 'window.ran = true'; document.body.append(other);"
        " setTimeout(() => done(window.ran === true ? false : null), 500) })"
    )
    assert blocked is True
    assert opened.run("window.ran === undefined")


def test_the_table_equals_the_rows(opened, folder):
    (found,) = findings(read_saved(folder))
    code = ROWS + ".map((row) => [...row.cells].map((cell) => cell.dataset.value))"
    shown = {tuple(row[:2]): row[2:] for row in opened.run(code)}
    assert len(shown) == len(found.comparison.combinations)
    rows = read_lines(folder / "rows.jsonl")
    for line in found.comparison.combinations:
        for text, metric in zip(
            shown[line.name, line.calibrator], found.comparison.metrics, strict=True
        ):
            own = [
                row["value"]
                for row in rows
                if (row["method"], row["calibrator"]) == (line.name, line.calibrator)
                and (row["split"], row["metric"]) == ("test", metric)
            ]
            assert float(text) == pytest.approx(sum(own) / len(own))


def test_columns_sort_up_down_and_back(opened):
    heads = opened.run("[...document.querySelectorAll('.compare thead th')].map(h => h.innerText)")
    for place, name in enumerate(heads[2:], 2):
        head = f"document.querySelectorAll('.compare thead th')[{place}]"
        values = f"{ROWS}.map((row) => Number(row.cells[{place}].dataset.value))"
        study = opened.run(f"{ROWS}.map((row) => Number(row.dataset.place)).sort((a, b) => a - b)")
        seen = {}
        for _ in range(3):
            opened.run(f"{head}.querySelector('button').click()")
            seen[opened.run(f"{head}.getAttribute('aria-sort')")] = opened.run(values)
        assert seen["ascending"] == sorted(seen["ascending"]), name
        assert seen["descending"] == sorted(seen["descending"], reverse=True), name
        click = f"{head}.querySelector('button').click()"
        opened.run(f"while ({head}.getAttribute('aria-sort') !== 'none') {click}")
        assert opened.run(f"{ROWS}.map((row) => Number(row.dataset.place))") == study


def enter(opened, selector, value):
    """Type into a field, or choose from a list."""
    box = f"const box = document.querySelector('{selector}'); box.value = '{value}';"
    opened.run("{" + box + "box.dispatchEvent(new Event('input', {bubbles: true}))}")


def test_words_and_calibrators_filter_the_rows(opened):
    shown = f"{ROWS}.filter((row) => !row.hidden).map((row) => row.dataset.words)"
    whole = opened.run(shown)
    enter(opened, "[data-filter]", "focal temp")
    assert opened.run(shown) == ["focal 3 temperature scaling temperature"]
    assert "1 of " in opened.run("document.querySelector('output').textContent")
    enter(opened, "[data-filter]", "")
    enter(opened, "[data-calibrator]", "none")
    found = opened.run(shown)
    assert found == [words for words in whole if words.endswith(" none")]
    assert found


def test_downloads_hold_the_table(opened, folder):
    code = "document.querySelector('template[data-kind=%s]').content.textContent"
    (found,) = findings(read_saved(folder))
    for kind, write in DOWNLOADS.items():
        assert opened.run(code % kind) == write(found.comparison), kind
    # The button makes a file of it.
    made = opened.run(
        "new Promise((done) => { HTMLAnchorElement.prototype.click = function () {"
        " done([this.download, this.href.slice(0, 5)]) };"
        " document.querySelector('[data-download=csv]').click() })"
    )
    assert made == ["group-1.csv", "blob:"]


def test_visible_rows_are_copied_and_a_selected_row_is_pasted_as_one_line(opened):
    enter(opened, "[data-filter]", "focal")
    copied = opened.run(
        "new Promise((done) => {"
        " Object.defineProperty(navigator, 'clipboard', {value: {writeText: done}});"
        " document.querySelector('[data-copy]').click() })"
    )
    head, *lines = [line.split("\t") for line in copied.splitlines()]
    assert head[:4] == ["method", "calibrator", "accuracy", "NLL"]
    assert sorted(line[:2] for line in lines) == [["focal 3", "none"], ["focal 3", "temperature"]]
    assert re.fullmatch(r"0\.\d+ \[0\.\d+, 0\.\d+\]", lines[0][2])
    row = f"{ROWS}.find((row) => !row.hidden)"
    selected = opened.run(f"getSelection().selectAllChildren({row}), getSelection().toString()")
    assert selected.strip().split("\t") == lines[0]


def test_arrow_keys_move_in_the_table_and_screen_readers_get_the_values(opened):
    assert opened.run("document.getElementById('said').getAttribute('aria-live')") == "polite"
    cells = "document.querySelectorAll('td[tabindex=\"0\"]')"
    assert opened.run(f"{cells}.length") == 1
    opened.run(f"{cells}[0].focus()")
    said = "document.getElementById('said').textContent"
    first = opened.run(said)
    assert "seed 0:" in first
    for key in ("ArrowRight", "ArrowDown"):
        pressed = f"new KeyboardEvent('keydown', {{key: '{key}', bubbles: true}})"
        opened.run(f"document.activeElement.dispatchEvent({pressed})")
    assert opened.run(f"{cells}.length") == 1
    place = "[document.activeElement.parentElement.rowIndex, document.activeElement.cellIndex]"
    assert opened.run(place) == [2, 3]
    assert opened.run(said) != first
    assert opened.run("document.getElementById('tip').hidden") is False


def test_hover_and_arrow_keys_show_exact_values(opened):
    tip = "document.getElementById('tip')"
    assert opened.run(f"{tip}.hidden")
    over = "dispatchEvent(new MouseEvent('mouseover', {bubbles: true}))"
    opened.run(f"document.querySelector('td[data-tip]').{over}")
    assert "seed 0:" in opened.run(f"{tip}.textContent")
    opened.run("document.querySelector('svg.chart').focus()")
    key = "new KeyboardEvent('keydown', {key: 'ArrowRight', bubbles: true})"
    opened.run(f"document.querySelector('svg.chart').dispatchEvent({key})")
    first = opened.run(f"{tip}.textContent")
    opened.run(f"document.querySelector('svg.chart').dispatchEvent({key})")
    second = opened.run(f"{tip}.textContent")
    assert second not in ("", first)
    assert opened.run("document.getElementById('said').textContent") == second
    described = "document.querySelector('svg.chart').getAttribute('aria-describedby')"
    assert "arrow keys" in opened.run(f"document.getElementById({described}).textContent")
    opened.run("document.dispatchEvent(new KeyboardEvent('keydown', {key: 'Escape'}))")


def test_light_dark_and_print_colours_differ_and_the_switch_works(opened, tmp_path):
    ground = "getComputedStyle(document.body).backgroundColor"
    assert opened.run(ground) == "rgb(255, 255, 255)"
    opened.picture(tmp_path / "light.png")
    opened.look(dark=True)
    assert opened.run(ground) == "rgb(20, 23, 29)"
    opened.picture(tmp_path / "dark.png")
    assert (tmp_path / "light.png").read_bytes() != (tmp_path / "dark.png").read_bytes()
    opened.run("document.getElementById('theme').click()")
    assert opened.run(ground) == "rgb(255, 255, 255)"
    opened.run("document.getElementById('theme').click()")
    opened.look(dark=True, media="print")
    assert opened.run(ground) == "rgb(255, 255, 255)"
    opened.run("localStorage.clear()")


# Pixels between the margins of A4 and of Letter.
@pytest.mark.parametrize("width", [703, 725])
def test_a_printed_page_has_the_whole_table_and_no_buttons(opened, width):
    opened.resize(width, 900)
    opened.look(media="print")
    display = "getComputedStyle(document.querySelector('%s')).display"
    for gone in (".tools", "nav", "#theme"):
        assert opened.run(display % gone) == "none", gone
    assert opened.run(display % ".compare thead") == "table-header-group"
    # Browsers leave out buttons from heads that are repeated on the next sheet.
    assert opened.run(display % ".compare th button") == "contents"
    edge = "Math.max(...[...document.querySelectorAll('.compare, .numbers, figure')]"
    assert opened.run(edge + ".map((each) => each.getBoundingClientRect().right))") <= width + 1


@pytest.mark.skipif(shutil.which("pdftotext") is None, reason="needs apt-get install poppler-utils")
@pytest.mark.parametrize("kind", ["study", "audit"])
def test_the_title_of_every_panel_is_printed(browser, address, tmp_path, kind):
    if kind == "audit":
        p = SYNTHETIC["overconfident"].sample(900, seed=0)
        audit(p.predictions, resamples=20).save(tmp_path / "audit.html")
        address = (tmp_path / "audit.html").as_uri()
    # Neither screen nor print is emulated.
    browser.look(media="")
    browser.open(address)
    titles = browser.run("[...document.querySelectorAll('.panel h3')].map((e) => e.textContent)")
    command = ["pdftotext", "-layout", "-", "-"]
    printed = subprocess.run(command, input=browser.printed(), capture_output=True, check=True)
    text = " ".join(printed.stdout.decode().split())
    assert len(titles) > 3
    assert [title for title in titles if " ".join(title.split()) not in text] == []


@pytest.mark.parametrize("width", [360, 800, 1280])
def test_nothing_is_wider_than_the_window(opened, width):
    opened.resize(width, 900)
    assert opened.run("document.documentElement.scrollWidth") <= width
    box = "document.querySelector('.scroll:has(.compare)')"
    fits = opened.run(f"{box}.scrollWidth <= {box}.clientWidth")
    assert fits or width < 1280
    if not fits:
        # Names stay where they are while the numbers move, and a narrow page says that they do.
        opened.run(f"{box}.scrollLeft = 10000")
        left = f"{box}.getBoundingClientRect().left"
        assert opened.run(f"{ROWS}[0].cells[0].getBoundingClientRect().left - {left}") == 0
    hint = opened.run("getComputedStyle(document.querySelector('.more')).display")
    assert (hint == "block") == (width == 360)


def test_every_panel_has_a_link_to_it(opened):
    code = "[...document.querySelectorAll('nav a')].map((a) => a.getAttribute('href'))"
    linked = opened.run(code)
    panels = opened.run("[...document.querySelectorAll('.panel')].map((each) => '#' + each.id)")
    assert sorted(linked) == sorted(panels)


def test_screen_readers_find_a_name_for_every_element(opened):
    assert opened.run(
        "[...document.querySelectorAll('svg.chart')].every(s => s.querySelector('title'))"
    )
    named = "[...document.querySelectorAll('button, input, select')].every("
    named += "e => e.innerText || e.getAttribute('aria-label') || e.closest('label'))"
    assert opened.run(named)
    ids = opened.run("[...document.querySelectorAll('[id]')].map(e => e.id)")
    assert len(ids) == len(set(ids))
    assert opened.run("[...document.querySelectorAll('table')].every(t => t.caption)")


def test_without_scripts_content_is_shown_and_controls_are_hidden(browser, address):
    browser.call("Emulation.setScriptExecutionDisabled", value=True)
    try:
        browser.open(address)
        for domain in ("DOM", "CSS"):
            browser.call(f"{domain}.enable")
        root = browser.call("DOM.getDocument")["root"]["nodeId"]

        def display(selector):
            node = browser.call("DOM.querySelector", nodeId=root, selector=selector)["nodeId"]
            style = browser.call("CSS.getComputedStyleForNode", nodeId=node)["computedStyle"]
            return next(each["value"] for each in style if each["name"] == "display")

        assert display("table.compare") == "table"
        assert display("svg.chart") == "block"
        assert [display(each) for each in (".tools", "#theme", "#tip")] == ["none"] * 3
    finally:
        for domain in ("CSS", "DOM"):
            browser.call(f"{domain}.disable")
        browser.call("Emulation.setScriptExecutionDisabled", value=False)
