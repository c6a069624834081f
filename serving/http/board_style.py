"""The warm board's colours and layout, for light and dark, phone and desktop, and the script that keeps it fresh."""

from __future__ import annotations

STYLE = """
:root { --page: #f6f7f8; --card: #fff; --text: #1b2126; --soft: #5a6570; --line: #dde2e7; --good: #14756a;
  --bad: #b3261e; --busy: #8a5a00; --warm: #14756a; --padded: #c58a1c; --cold: #b3261e;
  --h0: #d3eeea; --h1: #a3d9d2; --h2: #66bab0; --h3: #227e74; --h4: #0d5c54; --on: #08332f; --off: #fff; }
@media (prefers-color-scheme: dark) { :root { --page: #111416; --card: #1a1e22; --text: #e7eaed; --soft: #98a3ad;
  --line: #30373d; --good: #52c7b8; --bad: #ff8a80; --busy: #f0b957; --warm: #35a99b; --padded: #d9a13c;
  --cold: #e5675c; --h0: #12403b; --h1: #17635b; --h2: #1d7a70; --h3: #4bb5a9; --h4: #9fe0d8;
  --on: #eafaf8; --off: #06231f; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--page); color: var(--text); font: 15px/1.45 system-ui, -apple-system, "Segoe UI",
  "DejaVu Sans", sans-serif; }
main { max-width: 70rem; margin: 0 auto; padding: 1rem; }
header, h2 { display: flex; flex-wrap: wrap; align-items: center; gap: .4rem .8rem; }
h1 { font-size: 1.4rem; margin: 0; } h2 { font-size: 1.15rem; margin: 0; }
h3 { font-size: .95rem; margin: 1.2rem 0 .4rem; }
small, .soft { color: var(--soft); font-weight: 400; font-size: .85rem; }
section { background: var(--card); border: 1px solid var(--line); border-radius: .6rem; padding: 1rem; margin: 1rem 0; }
.pill { font-size: .8rem; font-weight: 600; padding: .1rem .6rem; border-radius: 1rem; border: 1px solid currentColor; }
.good { color: var(--good); } .bad, .error { color: var(--bad); } .busy { color: var(--busy); }
.error { overflow-wrap: anywhere; }
details { flex-basis: 100%; } summary { cursor: pointer; color: var(--soft); font-size: .85rem; }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(9rem, 1fr)); gap: .6rem; margin: .8rem 0; }
.tiles div { border: 1px solid var(--line); border-radius: .5rem; padding: .5rem .7rem; }
dt { color: var(--soft); font-size: .85rem; } dd { margin: 0; font-size: 1.35rem; font-weight: 600; }
dd.soft { font-size: .8rem; font-weight: 400; }
.bar { display: flex; height: .6rem; border-radius: .3rem; overflow: hidden; background: var(--line); }
.bar i { display: block; min-width: 3px; }
.key { color: var(--soft); font-size: .85rem; margin: .4rem 0 0; }
.key span { white-space: nowrap; margin-left: .6rem; }
.key i { display: inline-block; width: .8rem; height: .8rem; border-radius: .2rem; vertical-align: -1px;
  margin-right: .25rem; }
.key b { color: var(--text); }
i.warm { background: var(--warm); } i.padded { background: var(--padded); } i.cold { background: var(--cold); }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: .85rem; }
th, td { text-align: left; padding: .2rem .7rem .2rem 0; vertical-align: top; overflow-wrap: anywhere; }
th { color: var(--soft); font-weight: 500; }
.cold td, .cold th { white-space: nowrap; overflow-wrap: normal; } .number { text-align: right; }
@media (max-width: 40rem) {
  .cold td, .cold th { white-space: normal; } .cold td:first-child { overflow-wrap: anywhere; } }
.heat { border-collapse: separate; border-spacing: 3px; }
.heat th { white-space: nowrap; padding: .25rem .5rem .25rem 0; vertical-align: middle; }
.heat th[scope=col] { text-align: center; padding: 0; }
.heat td { min-width: 4.6rem; text-align: center; padding: .4rem .5rem; border-radius: .3rem; white-space: nowrap;
  border: 1px solid transparent; }
.heat th:first-child { position: sticky; left: 0; background: var(--card); }
.heat0 { background: var(--h0); } .heat1 { background: var(--h1); } .heat2 { background: var(--h2); }
.heat3 { background: var(--h3); } .heat4 { background: var(--h4); }
td.warm { background-color: var(--h0); color: var(--on); } td.heat1 { background: var(--h1); }
td.heat2 { background: var(--h2); } td.heat3 { background: var(--h3); color: var(--off); }
td.heat4 { background: var(--h4); color: var(--off); }
.heat td.proven, i.proven { border: 1px dashed var(--good); }
.heat td.planned, i.planned { border: 1px dashed var(--bad); }
td.planned, td.proven { color: var(--soft); }
footer { color: var(--soft); font-size: .85rem; } a { color: inherit; }
"""

# Every two seconds while somebody looks; what is unfolded stays so.
SCRIPT = """
async function refresh() {
  if (!document.hidden) try {
    const answer = await fetch("/", {headers: {accept: "text/html"}});
    const page = new DOMParser().parseFromString(await answer.text(), "text/html");
    const open = [...document.querySelectorAll("details[open]")].map(e => e.id);
    for (const id of open) page.getElementById(id)?.setAttribute("open", "");
    document.querySelector("main").replaceWith(page.querySelector("main"));
    document.title = page.title;
    document.body.style.opacity = 1;
  } catch { document.body.style.opacity = .5; }
  setTimeout(refresh, 2000);
}
setTimeout(refresh, 2000);
"""
