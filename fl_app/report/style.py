"""The style sheet of every page: light and dark, from phone to desktop, nothing to load."""

from __future__ import annotations

STYLE = """
:root {
  --ground: #f5f5f2; --card: #ffffff; --ink: #1c1e24; --muted: #5f6470; --line: #dfe0dc;
  --accent: #2457c5; --open: #b4470c; --half: #8a6a00; --shut: #0b7a6c; --warn: #fff3d6; --warn-ink: #6b4500;
  --bad: #fde4e1; --bad-ink: #85170c;
  --s0: #0072b2; --s1: #d55e00; --s2: #009e73; --s3: #a6488a; --s4: #8a6d00; --s5: #3f9fd8; --s6: #e69f00;
  --s7: #555b66;
}
@media (prefers-color-scheme: dark) {
  :root {
    --ground: #131519; --card: #1d2026; --ink: #e9eaed; --muted: #a0a6b2; --line: #343943;
    --accent: #8fb2ff; --open: #ff9d66; --half: #f0cc55; --shut: #4fd1bd;
    --warn: #3b3013; --warn-ink: #ffdf94; --bad: #45201d; --bad-ink: #ffc0b8;
    --s0: #5aa9e6; --s1: #ff8a4c; --s2: #35c79a; --s3: #d98cc4; --s4: #d8b93a; --s5: #9fd3f5; --s6: #f3b73e;
    --s7: #b4bac6;
  }
}
* { box-sizing: border-box; }
html { -webkit-text-size-adjust: 100%; }
body {
  margin: 0; background: var(--ground); color: var(--ink);
  font: 16px/1.55 system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", "DejaVu Sans", sans-serif;
}
main { max-width: 1240px; margin: 0 auto; padding: 2rem 1.25rem 4rem; }
main.wide { max-width: 1560px; }
h1 {
  font-size: clamp(1.5rem, 4.5vw, 2.2rem); line-height: 1.2; margin: .2rem 0 .8rem;
  overflow-wrap: anywhere;
}
h2 { font-size: 1.3rem; margin: 2.8rem 0 .6rem; }
h3 { font-size: 1rem; margin: 1.2rem 0 .4rem; }
p { margin: .4rem 0; max-width: 72ch; }
p, li, summary, td small { overflow-wrap: anywhere; }
a { color: var(--accent); }
code { font: .9em ui-monospace, "SF Mono", Menlo, Consolas, "DejaVu Sans Mono", monospace; }
code.whole { white-space: nowrap; }
.eyebrow, .muted, figcaption, small { color: var(--muted); }
.eyebrow { margin: 0; font-size: .85rem; letter-spacing: .04em; text-transform: uppercase; }
.chips { display: flex; flex-wrap: wrap; gap: .4rem; list-style: none; padding: 0; margin: 0 0 1.2rem; }
.chips li {
  background: var(--card); border: 1px solid var(--line); border-radius: 99px; padding: .1rem .7rem;
  font-size: .85rem;
}
.banner {
  background: var(--warn); color: var(--warn-ink); border-radius: 10px; padding: .8rem 1rem;
  margin: 0 0 1.2rem;
}
.banner.failed { background: var(--bad); color: var(--bad-ink); }
.banner p { max-width: none; margin: 0; }
.banner pre { margin: .4rem 0 0; background: none; border: 0; padding: 0; }
.cards { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 27rem), 1fr)); gap: 1rem; }
.card, .panel {
  background: var(--card); border: 1px solid var(--line); border-radius: 14px; padding: 1.1rem 1.25rem;
  min-width: 0;
}
.card { border-top: 4px solid var(--accent); }
.card.open { border-top-color: var(--open); }
.card.half { border-top-color: var(--half); }
.card.shut { border-top-color: var(--shut); }
.card.unknown { border-top-color: var(--line); }
.lead { font-size: 1.15rem; margin: .2rem 0 1.2rem; max-width: 60rem; }
.card h2 { margin: 0; font-size: 1rem; font-weight: 600; }
.card .big {
  font-size: 1.9rem; font-weight: 700; line-height: 1.2; margin: .2rem 0; letter-spacing: -.01em;
}
.card .big small { font-size: .95rem; font-weight: 500; letter-spacing: 0; }
.card h3 { margin: 0 0 .3rem; overflow-wrap: anywhere; }
nav { display: flex; flex-wrap: wrap; gap: .3rem 1.1rem; margin: 0 0 1.4rem; }
nav a[aria-current] { color: var(--ink); font-weight: 600; text-decoration: none; }
.verdicts { display: flex; flex-wrap: wrap; gap: .4rem; }
.verdict {
  display: inline-block; border: 1px solid var(--line); border-radius: 99px; padding: 0 .6rem;
  white-space: nowrap; font-weight: 600; color: var(--muted);
}
.verdict.shut { color: var(--shut); border-color: currentColor; }
.verdict.half { color: var(--half); border-color: currentColor; }
.verdict.open { color: var(--open); border-color: currentColor; }
.pair { display: flex; gap: .8rem; margin: .8rem 0 0; }
figure { margin: 0; }
figcaption { font-size: .82rem; line-height: 1.35; margin-top: .3rem; }
.tile {
  display: block; width: 100%; image-rendering: pixelated; border-radius: 6px;
  background: var(--line);
}
.pair figure { width: 9.5rem; min-width: 0; }
.strip { display: flex; flex-wrap: wrap; gap: .4rem; }
.strip figure { width: 4rem; }
.gallery {
  display: grid; gap: 1rem .8rem; justify-content: start;
  grid-template-columns: repeat(var(--columns), minmax(5.5rem, 12rem));
}
.sideways { overflow-x: auto; }
.gallery .head { font-weight: 600; font-size: .9rem; align-self: end; line-height: 1.3; }
.gallery .missing {
  aspect-ratio: 1; border: 1px dashed var(--line); border-radius: 6px; display: grid; place-items: center;
  text-align: center; font-size: .8rem; color: var(--muted); padding: .4rem;
}
.worst .tile { outline: 3px solid var(--open); outline-offset: 2px; }
.worst figcaption { color: var(--open); font-weight: 600; margin-top: .45rem; }
.worst.half .tile { outline-color: var(--half); }
.worst.half figcaption { color: var(--half); }
.worst.shut .tile { outline-color: var(--shut); }
.worst.shut figcaption { color: var(--shut); }
.scroll {
  overflow-x: auto; background: var(--card); border: 1px solid var(--line); border-radius: 12px;
  margin: .6rem 0;
}
.panel .scroll, details .scroll { background: none; }
table { border-collapse: collapse; width: 100%; font-size: .85rem; font-variant-numeric: tabular-nums; }
th, td {
  padding: .4rem .45rem; text-align: left; vertical-align: top;
  border-bottom: 1px solid var(--line);
}
tbody tr:last-child td { border-bottom: 0; }
th { font-weight: 600; color: var(--muted); vertical-align: bottom; }
th.group { text-align: center; border-left: 1px solid var(--line); }
td { max-width: 24rem; overflow-wrap: break-word; }
.number { text-align: right; white-space: nowrap; }
th.number { white-space: normal; }
td small { display: block; }
.tokens { min-width: min(36rem, 62vw); line-height: 1.9; }
.tokens mark { background: var(--bad); color: var(--bad-ink); border-radius: 4px; padding: 0 .2rem; }
.tokens u { text-underline-offset: 3px; text-decoration-thickness: 2px; }
.phrase { display: block; min-width: 6rem; }
.sentence { display: block; min-width: 12rem; }
td:not(.number) small { min-width: 7rem; }
th button { all: unset; cursor: pointer; }
th button:hover, th[aria-sort] button {
  color: var(--ink); text-decoration: underline; text-underline-offset: 3px;
}
th button:focus-visible { outline: 2px solid var(--accent); outline-offset: 2px; }
th[aria-sort=ascending] button::after { content: " ▲"; }
th[aria-sort=descending] button::after { content: " ▼"; }
.charts {
  display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 27rem), 1fr));
  gap: 1rem;
}
.wide th, .wide td { padding-inline: .4rem; }
.wide thead tr:last-child th:first-child, .wide tbody td:first-child {
  position: sticky; left: 0; background: var(--card);
}
.s0 { --own: var(--s0); } .s1 { --own: var(--s1); } .s2 { --own: var(--s2); } .s3 { --own: var(--s3); }
.s4 { --own: var(--s4); } .s5 { --own: var(--s5); } .s6 { --own: var(--s6); } .s7 { --own: var(--s7); }
.live { display: block; width: 100%; height: auto; touch-action: pan-y; }
.live:focus-visible, .tile:focus-visible, .scroll:focus-visible {
  outline: 2px solid var(--accent); outline-offset: 2px;
}
.live text { fill: var(--muted); font-size: 14px; }
.live .grid { stroke: var(--line); }
.live .level { stroke: var(--muted); stroke-dasharray: 4 3; stroke-width: 1.4; }
.live .rule { stroke: var(--muted); }
.live polyline { fill: none; stroke: var(--own); stroke-width: 2.2; }
.live polygon { fill: var(--own); opacity: .16; }
.live circle { fill: var(--own); }
.live .faint circle { opacity: 0; }
.live .faint circle:hover { opacity: 1; }
.live .series[data-off] { display: none; }
.legend { display: flex; flex-wrap: wrap; gap: .2rem .9rem; }
.series-name { color: var(--ink); overflow-wrap: anywhere; }
button.series-name { all: unset; cursor: pointer; overflow-wrap: anywhere; }
button.series-name:focus-visible { outline: 2px solid var(--accent); outline-offset: 2px; }
button.series-name[aria-pressed=false] { color: var(--muted); text-decoration: line-through; }
.key { display: inline-block; width: 1rem; height: .25rem; margin: 0 .4rem .2rem 0; background: var(--own); }
.readout {
  display: block; min-height: 1.4em; font-size: .85rem; color: var(--muted); overflow-wrap: anywhere;
}
abbr { text-decoration: underline dotted; text-underline-offset: 3px; cursor: help; }
.terms dt { font-weight: 600; }
.terms dd { margin: 0 0 .4rem; max-width: 72ch; }
.examples { display: flex; flex-wrap: wrap; gap: .6rem; }
.examples figure { width: 7rem; }
img.tile[role=button] { cursor: zoom-in; }
dialog.zoom {
  background: var(--card); color: var(--ink); border: 1px solid var(--line); border-radius: 14px;
  padding: 1rem; width: min(32rem, 94vw);
}
dialog.zoom::backdrop { background: rgb(0 0 0 / .6); }
dialog.zoom .alone, .over-and-under img { width: 100%; display: block; image-rendering: pixelated; }
.over-and-under { position: relative; }
.over-and-under .over { position: absolute; inset: 0; height: 100%; }
.compare input { width: 100%; }
.ends { display: flex; justify-content: space-between; font-size: .85rem; color: var(--muted); }
caption { text-align: left; padding: .45rem .6rem; color: var(--muted); font-size: .85rem; }
.paper-name { font-size: 1.1rem; margin-top: 1.8rem; }
h4 { margin: 1rem 0 .3rem; font-size: .95rem; }
.charts.loose { align-items: start; }
.figures .panel { max-width: 46rem; }
.stack { display: grid; gap: 1rem; align-content: start; min-width: 0; }
.panel img.chart { display: block; width: 100%; height: auto; }
.frontier { display: block; width: 100%; height: auto; }
.frontier.roomy { max-width: 60rem; }
.frontier.tight { display: none; }
.paper { background: #fff; border-radius: 8px; padding: .3rem; }
.panel h3 { margin-top: 0; }
details {
  background: var(--card); border: 1px solid var(--line); border-radius: 12px;
  padding: .7rem 1rem; margin: .6rem 0;
}
summary { cursor: pointer; font-weight: 600; }
pre {
  overflow-x: auto; font: .82rem/1.5 ui-monospace, Menlo, Consolas, "DejaVu Sans Mono", monospace;
  margin: .6rem 0 0;
}
.banner pre { white-space: pre-wrap; overflow-wrap: anywhere; }
ul { padding-left: 1.2rem; margin: .4rem 0; }
@media (max-width: 560px) {
  .frontier.roomy { display: none; }
  .frontier.tight { display: block; }
  main { padding: 1.2rem .9rem 3rem; }
  .card, .panel { padding: .9rem 1rem; }
  .scroll thead { display: block; }
  .scroll thead tr { display: none; }
  .scroll thead tr:last-child { display: flex; flex-wrap: wrap; gap: 0 .6rem; padding: .2rem .6rem; }
  .scroll thead th { display: inline; border: 0; padding: 0; position: static !important; }
  .scroll table, .scroll tbody, .scroll tr, .scroll td, .scroll caption { display: block; }
  .scroll tr { padding: .5rem 0; border-bottom: 2px solid var(--line); }
  .scroll td { border: 0; max-width: none; padding: .1rem .6rem; text-align: left; white-space: normal; }
  .scroll td[data-label]::before { content: attr(data-label) ": "; color: var(--muted); }
  .scroll td small { display: inline; }
  .wide tbody td:first-child { position: static; }
  .gallery { gap: .8rem .5rem; grid-template-columns: repeat(var(--columns), minmax(4.3rem, 1fr)); }
  .gallery figcaption, .gallery .head { font-size: .75rem; }
}
@media print {
  details:not([open]) > *:not(summary) { display: none; }
  .card, .panel, figure { break-inside: avoid; }
}
"""
