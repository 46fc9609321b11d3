// SPDX-License-Identifier: Apache-2.0
// Exports a view as one HTML file that needs neither scripts nor a network.

import { facts } from "./details.js";
import { label } from "./glyph.js";
import { classes } from "./line.js";
import { download } from "./link.js";

const POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'";

const STYLE = `body{margin:0 auto;max-width:960px;padding:28px 24px 60px;background:var(--ground);color:var(--ink);font:14px/1.5 system-ui,sans-serif}
h1{font-size:17px;margin:0 0 4px}p{color:var(--quiet);margin:0 0 18px}pre{font:14px/24px var(--mono);white-space:pre-wrap;overflow-wrap:anywhere;margin:0 0 6px;padding-left:12px;border-left:3px solid var(--line)}
pre.between{border-left-color:var(--accent)}h2{font:600 12px/1.5 system-ui,sans-serif;color:var(--quiet);margin:16px 0 4px}pre .t{padding:2px 0}
dl{display:grid;grid-template-columns:max-content 1fr;gap:2px 16px;margin:0 0 20px}dt{color:var(--quiet)}dd{margin:0}svg{width:360px;max-width:100%;margin:0 24px 8px 0}
svg text{font:10.5px system-ui,sans-serif;fill:var(--quiet)}svg .axis{stroke:var(--line);fill:none}svg .most{fill:var(--bar);opacity:.42}svg .mean{stroke:var(--ink);fill:none}svg .think{fill:var(--accent);opacity:.12}
svg .bin{fill:color-mix(in oklch,var(--low),var(--high) calc(var(--e)*100%/23));stroke:var(--bar);stroke-width:.4}`;

/** Escapes a text for use between tags and in quoted attributes. */
export function escape(text) {
  return String(text).replace(/[&<>"']/g, (character) => `&#${character.charCodeAt(0)};`);
}

/** The file as a list of strings. `parts` are the title, the table and the plots of the view. */
export function file(trajectory, sheet, { title, table, plots, colours }) {
  const out = ["<!doctype html>\n<html lang=\"en\"", theme(), "><head><meta charset=\"utf-8\"><meta http-equiv=\"Content-Security-Policy\" content=\"", escape(POLICY),
    "\"><meta name=\"viewport\" content=\"width=device-width\"><meta name=\"referrer\" content=\"no-referrer\"><title>", escape(title), "</title><style>", colours, STYLE,
    "</style></head><body><h1>", escape(title), "</h1><p>Each token coloured by the entropy of the policy, in nats; hover for its numbers. Written by tokentap, ",
    new Date().toISOString().slice(0, 16).replace("T", " "), " UTC.</p>"];
  out.push("<dl>", ...table.flatMap(([name, value]) => ["<dt>", escape(name), "</dt><dd>", escape(value), "</dd>"]), "</dl>");
  const writer = new XMLSerializer();
  plots.forEach((plot) => out.push(writer.serializeToString(plot)));
  for (const section of sheet.layout.sections) {
    const title = section.title ? escape(section.title()) : null;
    if (section.isFolded) out.push("<details><summary>", title, "</summary>");
    else if (title) out.push("<h2>", title, "</h2>");
    out.push("<pre class=\"", section.kind, "\">");
    for (let at = section.start; at < Math.min(section.end, trajectory.loaded); at = trajectory.next(at)) out.push(token(trajectory, sheet, at));
    out.push(section.isFolded ? "</pre></details>" : "</pre>");
  }
  out.push("</body></html>\n");
  return out;
}

function token(trajectory, sheet, at) {
  const picture = trajectory.pictureAt(at);
  if (picture) {
    const hint = facts(trajectory, at).map(([name, value]) => `${name} ${value}`).join("\n");
    return `<span class="${classes(trajectory, at, { kind: "picture" })}" title="${escape(hint)}">${escape(`[${sheet.label(at)}]`)}</span>`;
  }
  const shape = sheet.shapes.of(trajectory, at);
  const text = shape.rows.map((row) => row.pieces.map(({ text, kind }) => (kind === "plain" ? escape(text) : `<span class="g${kind === "odd" ? " odd" : ""}">${escape(text)}</span>`)).join("")).join("\n");
  const hint = trajectory.isSampled(at) ? facts(trajectory, at).filter(([, value]) => value !== null).map(([name, value]) => `${name} ${value}`).join("\n") : `id ${trajectory.ids[at]}`;
  return `<span class="${classes(trajectory, at, shape)}" title="${escape(hint)}">${text}</span>`;
}

function theme() {
  const chosen = document.documentElement.dataset.theme;
  return chosen ? ` data-theme="${escape(chosen)}"` : "";
}

/** Downloads the file in the browser. */
export function save(pieces, name) {
  download(new Blob(pieces, { type: "text/html" }), `${label(name, 80).replace(/[^A-Za-z0-9._-]+/g, "-")}.html`);
}
