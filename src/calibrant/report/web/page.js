"use strict";
const all = (selector, within = document) => [...within.querySelectorAll(selector)];

// Light and dark: as the system has it until the button is used.
const root = document.documentElement;
const remembered = (value) => {
  try {
    return value === undefined ? localStorage.getItem("theme") : localStorage.setItem("theme", value);
  } catch {
    return null;
  }
};
const isDark = () =>
  root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
const showTheme = (button) => {
  button.textContent = isDark() ? "Light" : "Dark";
  button.setAttribute("aria-label", `Use ${isDark() ? "light" : "dark"} colours`);
};
if (["light", "dark"].includes(remembered())) root.dataset.theme = remembered();

// Sorting: up, down, and back to the order of the study. Rows without a value stay last.
function sortBy(table, head) {
  const before = head.getAttribute("aria-sort");
  const first = head.dataset.better === "higher" ? "descending" : "ascending";
  const second = first === "ascending" ? "descending" : "ascending";
  const now = before === "none" ? first : before === first ? second : "none";
  for (const each of all("thead th[aria-sort]", table)) each.setAttribute("aria-sort", "none");
  head.setAttribute("aria-sort", now);
  const place = head.cellIndex;
  const sign = now === "descending" ? -1 : 1;
  const key = (row) => row.cells[place].dataset.value;
  const rows = all("tbody tr", table).sort((a, b) => Number(a.dataset.place) - Number(b.dataset.place));
  if (now !== "none") {
    rows.sort((a, b) => {
      const [x, y] = [key(a), key(b)];
      if (x === "" || y === "") return (x === "") - (y === "");
      const numbers = head.classList.contains("number");
      return sign * (numbers ? Number(x) - Number(y) : x.localeCompare(y));
    });
  }
  table.tBodies[0].append(...rows);
}

function filterRows(group) {
  const words = group.querySelector("[data-filter]").value.toLowerCase().split(/\s+/).filter(Boolean);
  const calibrator = group.querySelector("[data-calibrator]").value;
  const rows = all("table.compare tbody tr", group);
  for (const row of rows) {
    const text = row.dataset.words.toLowerCase();
    const kept = words.every((word) => text.includes(word));
    row.hidden = !(kept && (calibrator === "" || row.cells[1].dataset.value === calibrator));
  }
  const shown = rows.filter((row) => !row.hidden).length;
  group.querySelector("output").textContent = shown === rows.length ? "" : `${shown} of ${rows.length} rows`;
}

// What is shown: a line for each row, fields that spreadsheets tell apart, identifiers of calibrators.
function shownText(table) {
  const text = (cell) => {
    const parts = all(".mean, .ends", cell).map((part) => part.textContent);
    return parts.length ? parts.join(" ") : (cell.dataset.value ?? cell.innerText.trim());
  };
  const rows = all("tr", table).filter((row) => !row.hidden);
  return rows.map((row) => [...row.cells].map(text).join("\t")).join("\n");
}

// Downloads are in the page already.
function download(template) {
  const text = template.content.textContent;
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([text], { type: "text/plain;charset=utf-8" }));
  link.download = template.dataset.file;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}

async function copy(button, text) {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    const area = document.createElement("textarea");
    area.value = text;
    document.body.append(area);
    area.select();
    document.execCommand("copy");
    area.remove();
  }
  button.textContent = "Copied";
  setTimeout(() => (button.textContent = "Copy"), 1500);
}

// Exact values: under the pointer, and with arrow keys within a chart or a table, then said as well.
const tip = document.getElementById("tip");
const fore = (series, within) => {
  for (const each of all(`.spare[data-series="${series}"]`, within)) each.classList.add("fore");
};
function showTip(mark) {
  const series = mark.closest("[data-series]");
  if (series) fore(series.dataset.series, series.closest(".panel"));
  const box = mark.getBoundingClientRect();
  tip.textContent = mark.dataset.tip;
  tip.hidden = false;
  const left = Math.min(Math.max(8, box.left + box.width / 2 - tip.offsetWidth / 2), innerWidth - tip.offsetWidth - 8);
  const above = box.top - tip.offsetHeight - 8;
  tip.style.left = `${left}px`;
  tip.style.top = `${above > 8 ? above : Math.min(box.bottom + 8, innerHeight - tip.offsetHeight - 8)}px`;
}
const hideTip = () => {
  tip.hidden = true;
  for (const each of all(".here, .fore")) each.classList.remove("here", "fore");
};
const say = (mark) => (document.getElementById("said").textContent = mark.dataset.tip);
function walk(chart, step) {
  const marks = all("[data-tip]", chart);
  if (!marks.length) return;
  const before = marks.findIndex((mark) => mark.classList.contains("here"));
  hideTip();
  const next = before < 0 ? (step > 0 ? 0 : marks.length - 1) : (before + step + marks.length) % marks.length;
  marks[next].classList.add("here");
  showTip(marks[next]);
  say(marks[next]);
}
// One cell of a table takes the focus; arrow keys move on to its neighbours.
const STEPS = { ArrowRight: [0, 1], ArrowLeft: [0, -1], ArrowDown: [1, 0], ArrowUp: [-1, 0] };
function step(cell, [down, right]) {
  const rows = all("tbody tr", cell.closest("table")).filter((row) => !row.hidden);
  const next = rows[rows.indexOf(cell.parentElement) + down]?.cells[cell.cellIndex + right];
  if (!next?.dataset.tip) return;
  cell.tabIndex = -1;
  next.tabIndex = 0;
  next.focus();
}

document.addEventListener("mouseover", (event) => {
  const mark = event.target.closest("[data-tip]");
  if (mark) showTip(mark);
  const entry = event.target.closest(".legend [data-series]");
  if (entry) bringForward(entry);
});
document.addEventListener("mouseout", (event) => {
  if (event.target.closest("[data-tip]")) hideTip();
  const entry = event.target.closest(".legend [data-series]");
  if (!entry) return;
  for (const each of all(".dimmed, .fore", entry.closest(".panel"))) each.classList.remove("dimmed", "fore");
});
function bringForward(entry) {
  for (const each of all("svg.chart [data-series]", entry.closest(".panel")))
    each.classList.toggle("dimmed", each.dataset.series !== entry.dataset.series);
  fore(entry.dataset.series, entry.closest(".panel"));
}
document.addEventListener("focusin", (event) => {
  const cell = event.target.closest("td[data-tip]");
  if (!cell) return;
  showTip(cell);
  say(cell);
});
document.addEventListener("focusout", hideTip);
document.addEventListener("scroll", () => (tip.hidden = true), { passive: true });
document.addEventListener("keydown", (event) => {
  const chart = event.target.closest?.("svg.chart");
  const cell = event.target.closest?.("td[data-tip]");
  if (event.key === "Escape") hideTip();
  if (cell && event.key in STEPS) {
    event.preventDefault();
    step(cell, STEPS[event.key]);
  }
  if (!chart || !["ArrowRight", "ArrowLeft"].includes(event.key)) return;
  event.preventDefault();
  walk(chart, event.key === "ArrowRight" ? 1 : -1);
});

document.addEventListener("input", (event) => {
  if (event.target.matches("[data-filter], [data-calibrator]")) filterRows(event.target.closest(".group"));
});
document.addEventListener("click", (event) => {
  const button = event.target.closest("button");
  if (!button) return;
  const group = button.closest(".group");
  if (button.id === "theme") {
    root.dataset.theme = isDark() ? "light" : "dark";
    remembered(root.dataset.theme);
    showTheme(button);
  } else if (button.closest("th")) sortBy(button.closest("table"), button.closest("th"));
  else if (button.dataset.download) download(group.querySelector(`template[data-kind="${button.dataset.download}"]`));
  else if (button.dataset.copy !== undefined) copy(button, shownText(group.querySelector("table.compare")));
});
addEventListener("beforeprint", () => all("details").forEach((each) => (each.open = true)));

// What only a script can do is shown by the script.
const ready = () => {
  for (const each of all(".scripted")) each.hidden = false;
  // Ours take the place of those of the browser.
  for (const each of all("svg.chart .mark > title")) each.remove();
  for (const each of all("th[title]")) {
    each.dataset.tip = each.title;
    each.removeAttribute("title");
  }
  for (const each of all("table.compare")) each.querySelector("td[data-tip]")?.setAttribute("tabindex", "0");
  showTheme(document.getElementById("theme"));
};
ready();
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", ready);
