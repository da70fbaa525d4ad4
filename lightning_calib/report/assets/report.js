"use strict";
(() => {
  const root = document.documentElement;
  const byId = (id) => document.getElementById(id);

  // Some browsers refuse storage to pages from disk: the choice then lasts as long as the page.
  const remember = (theme) => { try { localStorage.setItem("theme", theme); } catch { /* not kept */ } };
  const recall = () => { try { return localStorage.getItem("theme"); } catch { return null; } };
  const isDark = () => root.dataset.theme === "dark" ||
    (!root.dataset.theme && matchMedia("(prefers-color-scheme: dark)").matches);
  if (recall()) root.dataset.theme = recall();
  byId("theme").addEventListener("click", () => {
    root.dataset.theme = isDark() ? "light" : "dark";
    remember(root.dataset.theme);
  });

  // One tooltip for all words, kept inside the window.
  const tip = document.createElement("div");
  tip.id = "tip";
  tip.setAttribute("role", "tooltip");
  tip.hidden = true;
  document.body.append(tip);
  const showTip = (word) => {
    tip.textContent = word.dataset.tip;
    tip.hidden = false;
    const box = word.getBoundingClientRect();
    const left = Math.min(box.left, root.clientWidth - tip.offsetWidth - 8);
    tip.style.left = `${Math.max(8, left) + scrollX}px`;
    tip.style.top = `${box.bottom + 6 + scrollY}px`;
    word.setAttribute("aria-describedby", "tip");
  };
  const hideTip = () => { tip.hidden = true; };
  for (const word of document.querySelectorAll(".term")) {
    word.addEventListener("mouseenter", () => showTip(word));
    word.addEventListener("focus", () => showTip(word));
    word.addEventListener("mouseleave", hideTip);
    word.addEventListener("blur", hideTip);
  }

  // Places of charts that tell their values, under a mouse or a finger.
  for (const place of document.querySelectorAll(".hot")) {
    place.addEventListener("mouseenter", () => showTip(place));
    place.addEventListener("mouseleave", hideTip);
    place.addEventListener("click", () => showTip(place));
  }

  // Lines to copy; where the clipboard is refused, the line is marked.
  for (const button of document.querySelectorAll(".copy")) {
    button.addEventListener("click", () => {
      const mark = () => getSelection().selectAllChildren(button.previousElementSibling);
      const done = () => { button.textContent = "copied"; };
      if (!navigator.clipboard) { mark(); return; }
      navigator.clipboard.writeText(button.dataset.copy).then(done, mark);
    });
  }

  // A link to a folded section opens it.
  const unfold = () => {
    const folded = location.hash && byId(location.hash.slice(1))?.querySelector("details.folded");
    if (folded) folded.open = true;
  };
  addEventListener("hashchange", unfold);
  unfold();

  // Closed details are opened for the printer.
  let opened = [];
  addEventListener("beforeprint", () => {
    opened = [...document.querySelectorAll("details:not([open])")];
    for (const one of opened) one.open = true;
  });
  addEventListener("afterprint", () => { for (const one of opened) one.open = false; });

  const table = byId("main-table");
  if (!table) return;
  byId("intervals").addEventListener("change", (event) => {
    table.classList.toggle("with-intervals", event.target.checked);
  });

  const body = table.tBodies[0];
  const original = [...body.rows];
  const headers = [...table.tHead.rows[0].cells];
  const valueAt = (row, column) => {
    const text = row.cells[column].dataset.value;
    if (headers[column].dataset.kind === "text") return text;
    return text === "" ? NaN : Number(text);
  };
  const compare = (a, b) => (typeof a === "string" ? a.localeCompare(b) : a - b);
  const sortBy = (column, sign) => {
    const rows = original.filter((row) => row.classList.contains("row"));
    const known = rows.filter((row) => !Number.isNaN(valueAt(row, column)));
    const unknown = rows.filter((row) => Number.isNaN(valueAt(row, column)));
    known.sort((a, b) => sign * compare(valueAt(a, column), valueAt(b, column)));
    body.replaceChildren(...known, ...unknown);  // rows without a number stand last either way
  };
  const mark = (column, direction) => {
    headers.forEach((header, n) => {
      if (n === column && direction) header.setAttribute("aria-sort", direction);
      else header.removeAttribute("aria-sort");
    });
    table.classList.toggle("sorted", Boolean(direction));
    byId("reset-sort").disabled = !direction;
  };
  headers.forEach((header, column) => {
    header.querySelector("button").addEventListener("click", () => {
      const best = header.dataset.better === "higher" ? "descending" : "ascending";
      const other = best === "ascending" ? "descending" : "ascending";
      const next = header.getAttribute("aria-sort") === best ? other : best;
      sortBy(column, next === "ascending" ? 1 : -1);
      mark(column, next);
    });
  });
  byId("reset-sort").addEventListener("click", () => {
    body.replaceChildren(...original);
    mark(-1, null);
  });
})();
