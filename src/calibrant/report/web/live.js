
// A served page follows its study: when something has changed, the new page takes the old one's place.
const versionOf = async () => (await fetch(`${location.pathname.replace(/\/$/, "")}/version`)).text();
async function renew() {
  const text = await (await fetch(location.pathname)).text();
  const fresh = new DOMParser().parseFromString(text, "text/html");
  const kept = all(".group").map((group) => ({
    words: group.querySelector("[data-filter]")?.value ?? "",
    calibrator: group.querySelector("[data-calibrator]")?.value ?? "",
  }));
  hideTip();
  document.querySelector("main").replaceWith(fresh.querySelector("main"));
  document.getElementById("state").textContent = fresh.getElementById("state").textContent;
  ready();
  all(".group").forEach((group, place) => {
    if (!kept[place] || !group.querySelector("[data-filter]")) return;
    group.querySelector("[data-filter]").value = kept[place].words;
    group.querySelector("[data-calibrator]").value = kept[place].calibrator;
    filterRows(group);
  });
}
let seen = null;
async function follow() {
  try {
    const now = await versionOf();
    if (seen !== null && now !== seen) await renew();
    seen = now;
  } catch {
    document.getElementById("state").textContent = "The server does not answer any more.";
  }
  setTimeout(follow, 2000);
}
follow();
