
// A served page is replaced by a new one when its study has changed.
const back = document.createElement("p");
back.innerHTML = '<a href="/">All studies</a>';
document.querySelector("header div").prepend(back);
const asked = async (address) => {
  const answer = await fetch(address);
  const text = await answer.text();
  if (!answer.ok) throw new Error(text);
  return text;
};
const versionOf = () => asked(`${location.pathname.replace(/\/$/, "")}/version`);
// What somebody has done to a group: its filter, its order, what is unfolded.
const stateOf = (group) => ({
  words: group.querySelector("[data-filter]")?.value ?? "",
  calibrator: group.querySelector("[data-calibrator]")?.value ?? "",
  order: all("th[aria-sort]", group).map((head) => head.getAttribute("aria-sort")),
  open: all("details", group).map((each) => each.open),
});
function restore(group, state) {
  all("details", group).forEach((each, place) => (each.open = state.open[place] ?? each.open));
  const table = group.querySelector("table:has(th[aria-sort])");
  const place = state.order.findIndex((order) => order !== "none");
  const head = table && all("th[aria-sort]", table)[place];
  for (let tries = 0; head && tries < 3; tries += 1) {
    if (head.getAttribute("aria-sort") === state.order[place]) break;
    sortBy(table, head);
  }
  if (!group.querySelector("[data-filter]")) return;
  group.querySelector("[data-filter]").value = state.words;
  group.querySelector("[data-calibrator]").value = state.calibrator;
  filterRows(group);
}
async function renew() {
  const fresh = new DOMParser().parseFromString(await asked(location.pathname), "text/html");
  const kept = all(".group").map(stateOf);
  const places = all("main a, main button, main input, main select, main summary, main [tabindex]");
  const focused = places.indexOf(document.activeElement);
  hideTip();
  document.querySelector("main").replaceWith(fresh.querySelector("main"));
  ready();
  all(".group").forEach((group, place) => kept[place] && restore(group, kept[place]));
  const now = all("main a, main button, main input, main select, main summary, main [tabindex]");
  if (focused >= 0) now[focused]?.focus({ preventScroll: true });
  return fresh.getElementById("state").textContent;
}
let seen = null;
let words = document.getElementById("state").textContent;
async function follow() {
  const state = document.getElementById("state");
  try {
    const now = await versionOf();
    if (seen !== null && now !== seen) words = await renew();
    seen = now;
    state.textContent = words;
  } catch (error) {
    const silent = error instanceof TypeError;
    state.textContent = silent ? "The server does not respond." : error.message;
  }
  setTimeout(follow, 2000);
}
follow();
