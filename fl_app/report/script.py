"""The script of every page: tables that sort, charts that answer, pictures that open and compare.

A page is complete without it. It loads nothing and is the only script that a page's policy allows.
"""

from __future__ import annotations

SCRIPT = """
"use strict";
const make = (tag, properties = {}, ...children) => {
  const made = Object.assign(document.createElement(tag), properties);
  made.append(...children);
  return made;
};

/* tables: a button in every heading of the last line; empty values stay last */
const valueOf = cell => {
  if (cell === undefined) return "";
  if (cell.dataset.value !== undefined) return cell.dataset.value;
  const text = cell.textContent.trim();
  if (text === "" || text === "–") return "";
  const number = text.replace(/[\\u2009\\u00a0 ]/g, "").match(/^[-−+]?[0-9]*\\.?[0-9]+/);
  return number ? number[0].replace("−", "-") : text;
};
const sortBy = (header, column) => {
  const body = header.closest("table").tBodies[0];
  const up = header.getAttribute("aria-sort") !== "ascending";
  for (const other of header.closest("thead").querySelectorAll("th")) other.removeAttribute("aria-sort");
  header.setAttribute("aria-sort", up ? "ascending" : "descending");
  const rows = [...body.rows].sort((a, b) => {
    const x = valueOf(a.cells[column]), y = valueOf(b.cells[column]);
    if (x === "" || y === "") return (x === "") - (y === "");
    const order = isNaN(x) || isNaN(y) ? x.localeCompare(y) : x - y;
    return up ? order : -order;
  });
  body.append(...rows);
};
for (const table of document.querySelectorAll("table")) {
  if (!table.tHead || !table.tBodies.length || table.tBodies[0].rows.length < 2) continue;
  [...table.tHead.rows[table.tHead.rows.length - 1].cells].forEach((header, column) => {
    if (header.textContent.trim() === "") return;
    const button = make("button", {type: "button"}, ...header.childNodes);
    button.dataset.column = column;
    button.addEventListener("click", () => sortBy(header, column));
    header.append(button);
  });
}

/* charts: names switch their line; a pointer or the arrow keys read the values at one place */
for (const chart of document.querySelectorAll(".live-chart")) {
  const svg = chart.querySelector("svg");
  const series = [...svg.querySelectorAll(".series")];
  for (const name of chart.querySelectorAll(".series-name")) {
    const line = series.find(one => one.dataset.series === name.dataset.series);
    const button = make("button", {type: "button", className: "series-name"}, ...name.childNodes);
    button.setAttribute("aria-pressed", "true");
    button.addEventListener("click", () => {
      const shown = line.toggleAttribute("data-off") === false;
      button.setAttribute("aria-pressed", String(shown));
    });
    name.replaceWith(button);
  }
  const places = new Map();
  for (const dot of svg.querySelectorAll("circle")) {
    const x = Number(dot.getAttribute("cx"));
    if (!places.has(x)) places.set(x, []);
    places.get(x).push(dot);
  }
  const order = [...places.keys()].sort((a, b) => a - b);
  if (!order.length) continue;
  const words = make("output", {className: "readout"});
  const hint = "Point at the chart, or focus it and press ← →";
  words.textContent = hint;
  const rule = document.createElementNS(svg.namespaceURI, "line");
  rule.setAttribute("class", "rule");
  for (const [name, value] of [["y1", 14], ["y2", 260]]) rule.setAttribute(name, value);
  rule.style.display = "none";
  svg.prepend(rule);
  chart.append(words);
  svg.setAttribute("tabindex", "0");
  let at = -1;
  const tell = index => {
    at = Math.max(0, Math.min(order.length - 1, index));
    const dots = places.get(order[at]).filter(dot => !dot.closest(".series").hasAttribute("data-off"));
    rule.setAttribute("x1", order[at]);
    rule.setAttribute("x2", order[at]);
    rule.style.display = "";
    const values = dots.map(dot => `${dot.closest(".series").dataset.name} ${dot.dataset.value}`);
    const where = places.get(order[at])[0].dataset.at;
    words.textContent = `${chart.dataset.x} ${where}: ${values.join(", ") || "all lines are off"}`;
  };
  svg.addEventListener("pointermove", event => {
    const x = (event.clientX - svg.getBoundingClientRect().left) * svg.viewBox.baseVal.width
      / svg.getBoundingClientRect().width;
    tell(order.reduce((best, one, i) => Math.abs(one - x) < Math.abs(order[best] - x) ? i : best, 0));
  });
  svg.addEventListener("pointerleave", () => { rule.style.display = "none"; words.textContent = hint; });
  svg.addEventListener("keydown", event => {
    const step = {ArrowLeft: -1, ArrowRight: 1}[event.key];
    if (step === undefined) return;
    event.preventDefault();
    tell(at + step);
  });
}

/* pictures: a click enlarges; beside an original a slider uncovers one over the other */
const slider = (original, recovered) => {
  const over = make("img", {src: recovered.src, alt: recovered.alt, className: "over"});
  const range = make("input", {type: "range", min: 0, max: 100, value: 50});
  range.setAttribute("aria-label", "share of the recovered picture that is shown");
  const uncover = () => { over.style.clipPath = `inset(0 0 0 ${100 - range.value}%)`; };
  range.addEventListener("input", uncover);
  uncover();
  const under = make("img", {src: original.src, alt: original.alt});
  const stack = make("div", {className: "over-and-under"}, under, over);
  const names = make("div", {className: "ends"}, make("span", {}, "original"), make("span", {}, "recovered"));
  return make("div", {className: "compare"}, stack, range, names);
};
const dialog = make("dialog", {className: "zoom"});
document.body.append(dialog);
dialog.addEventListener("click", event => { if (event.target === dialog) dialog.close(); });
const enlarge = image => {
  const row = image.closest("[data-row]")?.dataset.row;
  const grid = image.closest(".gallery, .pair");
  const original = row === undefined ? null
    : grid.querySelector(`[data-row="${row}"][data-side="original"] img`);
  const big = original && original !== image ? slider(original, image)
    : make("img", {src: image.src, alt: image.alt, className: "alone"});
  const close = make("button", {type: "button"}, "Close");
  close.addEventListener("click", () => dialog.close());
  dialog.replaceChildren(big, make("p", {}, image.alt), close);
  dialog.showModal();
};
for (const image of document.querySelectorAll("img.tile")) {
  image.tabIndex = 0;
  image.setAttribute("role", "button");
  image.title = "Enlarge";
  image.addEventListener("click", () => enlarge(image));
  image.addEventListener("keydown", event => {
    if (event.key !== "Enter" && event.key !== " ") return;
    event.preventDefault();
    enlarge(image);
  });
}
"""
