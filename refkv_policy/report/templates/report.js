// The page's own behaviour: theme, keys, what a pointer or the keyboard rests on, and the players.

const root = document.documentElement;
const THEMES = ["auto", "light", "dark"];

function remembered() {
  try {
    return localStorage.getItem("refkv-theme");
  } catch {
    return null; // a page opened from a file may not keep anything
  }
}

function setTheme(theme) {
  root.dataset.theme = theme;
  document.getElementById("theme").textContent = `Theme: ${theme}`;
  try {
    localStorage.setItem("refkv-theme", theme);
  } catch {
    // not kept
  }
}

function nextTheme() {
  setTheme(THEMES[(THEMES.indexOf(root.dataset.theme) + 1) % THEMES.length]);
}

setTheme(THEMES.includes(remembered()) ? remembered() : "auto");
document.getElementById("theme").addEventListener("click", nextTheme);

const keys = document.getElementById("keys");
document.getElementById("show-keys").addEventListener("click", () => keys.showModal());

// Players ---------------------------------------------------------------------------------------------------------

const players = [...document.querySelectorAll(".players")].map((element) => new Players(element));
let active = players[0];
for (const each of players) {
  each.element.refkv = each;
  each.element.addEventListener("pointerdown", () => (active = each));
  each.element.addEventListener("focusin", () => (active = each));
  each.element.addEventListener("frame", (event) => markFrame(event.detail));
  each.element.classList.add("ready");
}

function markFrame(frame) {
  for (const cell of document.querySelectorAll("td.now")) cell.classList.remove("now");
  for (const row of document.querySelectorAll("table.heat tbody tr")) {
    const begun = [...row.querySelectorAll("td[data-frame]")].filter((cell) => Number(cell.dataset.frame) <= frame);
    if (begun.length) begun.at(-1).classList.add("now");
  }
}

document.addEventListener("click", (event) => {
  const cell = event.target.closest("td[data-frame]");
  if (cell && active) {
    active.seek(Number(cell.dataset.frame));
    active.element.scrollIntoView({ block: "nearest" });
  }
});

// Keys ------------------------------------------------------------------------------------------------------------

const ACTIONS = {
  " ": () => active && active.toggle(),
  ArrowLeft: (far) => active && active.step(far ? -10 : -1),
  ArrowRight: (far) => active && active.step(far ? 10 : 1),
  Home: () => active && active.seek(0),
  End: () => active && active.seek(active.settings.frames - 1),
  g: () => active && active.gain && nextOption(active.gain),
  t: nextTheme,
  "?": () => keys.showModal(),
};
const PLAYER_KEYS = [" ", "ArrowLeft", "ArrowRight", "Home", "End", "g"];

function nextOption(select) {
  select.selectedIndex = (select.selectedIndex + 1) % select.options.length;
  select.dispatchEvent(new Event("change"));
}

document.addEventListener("keydown", (event) => {
  const action = ACTIONS[event.key];
  if (!action || event.ctrlKey || event.metaKey || event.altKey || keys.open) return;
  if (PLAYER_KEYS.includes(event.key) && !active) return;
  // What a focused element does by itself with a key stays its own.
  if (event.target.closest("input, select, textarea, .scroll")) return;
  if (event.key === " " && event.target.closest("button, summary, a")) return;
  event.preventDefault();
  action(event.shiftKey);
});

// What is pointed at ----------------------------------------------------------------------------------------------

const tip = document.getElementById("tip");

function showTip(text, x, y) {
  tip.textContent = text;
  tip.hidden = false;
  const box = tip.getBoundingClientRect();
  tip.style.left = `${Math.max(4, Math.min(x + 14, window.innerWidth - box.width - 6))}px`;
  tip.style.top = `${y + 18 + box.height > window.innerHeight ? y - box.height - 10 : y + 18}px`;
}

document.addEventListener("pointermove", (event) => {
  const target = event.target.closest ? event.target.closest("td.cell") : null;
  if (!target) tip.hidden = true;
  else showTip(squareWords(target), event.clientX, event.clientY);
});
document.addEventListener("scroll", () => (tip.hidden = true), { passive: true, capture: true });

function squareWords(cell) {
  if (cell.dataset.tip) return cell.dataset.tip;
  const map = cell.closest("table");
  const step = map.tHead.rows[0].cells[cell.cellIndex];
  return `${cell.parentElement.cells[0].textContent}, step ${step.textContent.trim()} (σ ${step.dataset.sigma}): ${cell.dataset.w}`;
}

// A map has one cell in the order of tabs; arrows go from cell to cell and say what is there.
for (const map of document.querySelectorAll("table.map")) {
  const said = document.getElementById(`${map.id}-said`);
  const rows = [...map.tBodies[0].rows];
  let here = rows.length && rows[0].cells.length > 1 ? rows[0].cells[1] : null;
  if (!here) continue;
  here.tabIndex = 0;
  map.addEventListener("focusin", (event) => {
    if (!event.target.matches("td.cell")) return;
    here.tabIndex = -1;
    here = event.target;
    here.tabIndex = 0;
    said.textContent = squareWords(here);
  });
  const go = (cell) => {
    cell.tabIndex = 0; // without it a cell takes no focus
    cell.focus();
  };
  map.addEventListener("click", (event) => {
    const cell = event.target.closest("td.cell");
    if (cell) go(cell);
  });
  map.addEventListener("keydown", (event) => {
    if (event.key === "Enter") event.target.click();
    const move = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] }[event.key];
    if (!move || !event.target.matches("td.cell")) return;
    event.preventDefault();
    event.stopPropagation();
    const row = rows[rows.indexOf(here.parentElement) + move[0]];
    const next = row && row.cells[here.cellIndex + move[1]];
    if (next && next.matches("td.cell")) go(next);
  });
}

// Folded parts open where a link leads into them, and for print.
function unfold() {
  const target = location.hash.length > 1 && document.getElementById(decodeURIComponent(location.hash.slice(1)));
  for (let at = target; at; at = at.parentElement) if (at.matches("details")) at.open = true;
  if (target) target.scrollIntoView();
}
window.addEventListener("hashchange", unfold);
unfold();
window.addEventListener("beforeprint", () => {
  for (const each of document.querySelectorAll("details")) each.open = true;
});
for (const each of players) each.seek(0);
