// SPDX-License-Identifier: Apache-2.0
// The comparison of two paths side by side: the difference of their entropies where the tokens before are equal.

import { replace } from "./address.js";
import { Alignment } from "./alignment.js";
import { get } from "./api.js";
import { adapterOf, facts, policyText, text } from "./details.js";
import { classesOf, legend, signed } from "./difference.js";
import { amount, count, element, numbers, part } from "./element.js";
import { label } from "./glyph.js";
import { classes } from "./line.js";
import { copy } from "./link.js";
import { differences, markDifference } from "./plot.js";
import { shown } from "./scale.js";
import { Sheet } from "./sheet.js";
import { Trajectory } from "./trajectory.js";

const SIDES = ["left", "right"];
const NAMES = { left: "A", right: "B" };
/** The maximum number of characters of a name from an engine or a trainer. */
const NAME = 60;


export class CompareView {
  #opening = new AbortController();
  #plot = null;
  paths = null;
  alignment = null;
  chosen = -1;
  showsDifference = true;

  /** `announce` tells a text to screen readers, `onBack` leaves the comparison. */
  constructor({ texts, pictures, announce, onBack }) {
    Object.assign(this, { texts, announce, onBack });
    const paint = (trajectory, at, shape) => this.#paint(trajectory, at, shape);
    this.sheets = Object.fromEntries(SIDES.map((side) => [side, new Sheet(part(side), texts, pictures, { prefix: side, paint, onPick: (at) => this.#picked(side, at), onPoint: () => {} })]));
    this.lead = "left";
    for (const side of SIDES) {
      const root = part(side);
      for (const event of ["pointerover", "wheel", "touchstart", "focusin"]) root.addEventListener(event, () => { this.lead = side; }, { passive: true });
      root.addEventListener("scroll", () => this.#scrolled(side), { passive: true });
    }
    part("compare-legend").replaceChildren(legend());
    part("colours").addEventListener("click", () => this.actions.colours());
    part("swap").addEventListener("click", () => this.actions.swap());
    part("divergence").addEventListener("click", () => this.actions.divergence());
    part("compare-link").addEventListener("click", () => this.actions.link());
    part("compare-back").addEventListener("click", onBack);
    const lead = () => this.sheets[this.lead];
    this.actions = {
      peak: (place) => this.peak(place === 0 ? 1 : -1),
      step: (place) => lead().step(place === 0 ? -1 : 1),
      line: (place) => lead().line(place === 0 ? -1 : 1),
      end: (place) => lead().choose(place === 0 ? 0 : (lead().trajectory?.loaded ?? 0) - 1),
      divergence: () => this.#toDivergence(),
      colours: () => this.#switchColours(),
      swap: () => this.#swap(),
      link: () => copy(this.address(), announce),
      back: onBack,
    };
  }

  /** The address of the comparison with its chosen token. */
  address() {
    return { view: "compare", ...this.of, at: this.chosen };
  }

  close() {
    this.#opening.abort();
    this.#opening = new AbortController();
    this.paths = this.alignment = null;
    this.chosen = -1;
  }

  /** Opens two paths, each `{session, leaf}`, and chooses the token `at` unless it is null. */
  async open({ left, right, at = null }) {
    this.close();
    this.of = { left, right };
    const { signal } = this.#opening;
    for (const side of SIDES) {
      this.sheets[side].show(null, "Reading…");
      part(`${side}-about`).replaceChildren(element("strong", {}, `${NAMES[side]} `), name(this.of[side]));
    }
    for (const id of ["compare-about", "compare-details", "compare-plot", "compare-facts"]) part(id).replaceChildren();
    try {
      const found = await Promise.all(SIDES.map((side) => open(this.of[side], signal)));
      const paths = Object.fromEntries(SIDES.map((side, index) => [side, found[index]]));
      for (let more = true, isFirst = true; more; isFirst = false) {
        more = (await Promise.all(found.map((one) => one.more(signal)))).some(Boolean);
        if (!more && !isFirst) break;
        for (const one of found) {
          await this.texts.load(one.ids.subarray(0, one.loaded), signal);
          await this.texts.loadRuns(one.ids, 0, one.loaded, signal);
        }
        this.#grown(paths, found);
        if (at !== null && this.chosen < 0) this.choose(at);
      }
      const { compared, divergence } = this.alignment;
      this.announce(`Comparison: ${amount(compared.length, "token")} compared, ${divergence === null ? "no token differs" : `token ${count(divergence + 1)} is the first that differs`}.`);
    } catch (error) {
      if (error.name === "AbortError") return;
      this.close();
      for (const side of SIDES) this.sheets[side].show(null, `Reading failed: ${error.message}`);
    }
  }

  #grown(paths, [left, right]) {
    this.paths = { left, right };
    this.alignment = new Alignment(left, right);
    for (const side of SIDES) {
      const sheet = this.sheets[side];
      const segments = this.alignment.segments(paths[side]);
      if (Object.getPrototypeOf(sheet.trajectory ?? {}) === paths[side]) {
        sheet.trajectory.segments = segments;
        sheet.refresh();
      } else {
        sheet.show(Object.create(paths[side], { segments: { value: segments, writable: true } }));
      }
      part(`${side}-about`).replaceChildren(...about(NAMES[side], this.of[side], paths[side]));
    }
    this.#summary();
    if (this.chosen < 0) part("compare-details").replaceChildren(element("p", { class: "sub" }, "Choose a token, or press j and k to go to the next or previous large difference."));
  }

  #summary() {
    const { alignment, paths } = this;
    const { divergence, shared, compared, lacking, common } = alignment;
    const isLoaded = SIDES.every((side) => paths[side].loaded === paths[side].total);
    const means = alignment.means();
    const first = paths.left.ids.length && divergence !== null ? `first different token: ${count(divergence + 1)}` : !isLoaded ? "no different token so far" : shared === paths.left.total && shared === paths.right.total ? "all tokens are equal" : "one path is the beginning of the other";
    const facts = [compared.length ? `B − A: ${signed(means.difference)} nats on average` : "no entropy to compare", `over ${amount(compared.length, "token")} after equal tokens`, first];
    part("compare-about").replaceChildren(...facts.map((fact, at) => element(at ? "span" : "strong", { class: "num" }, fact)));
    part("divergence").disabled = divergence === null;
    this.#plot = differences(alignment, (at) => this.choose(at));
    part("compare-plot").replaceChildren(this.#plot);
    const [temperatures, widths] = [alignment.unequal.temperature, alignment.unequal.top_k].map((pairs) => [...pairs].join(", "));
    const whole = SIDES.map((side) => paths[side].survey().mean);
    part("compare-facts").replaceChildren(numbers([
      ["equal tokens", count(shared)],
      ["compared", count(compared.length)],
      ["mean of A there", `${shown(means.left)} nats`],
      ["mean of B there", `${shown(means.right)} nats`],
      ["mean difference", `${signed(means.difference)} nats`],
      ["B higher", compared.length ? `${shown((100 * compared.filter((at) => alignment.difference[at] > 0).length) / compared.length, 1)} %` : null],
      ["no difference", lacking ? amount(lacking, "position") : null],
      ["one turn of both", common ? `${amount(common, "token")}, not compared` : null],
      ["mean of all of A", `${shown(whole[0])} nats`],
      ["mean of all of B", `${shown(whole[1])} nats`],
    ]), ...[
      alignment.isMixed ? "Some entropies were measured in different ways, or are bounds. They have no difference." : null,
      temperatures ? `The temperatures differ${orUnknown(temperatures)} (${temperatures}). The difference includes that.` : null,
      widths ? `The k of the estimates differ${orUnknown(widths)} (${widths}). Their errors may differ, too.` : null,
    ].filter(Boolean).map((note) => element("p", { class: "note" }, note)));
  }

  #paint(trajectory, at, shape) {
    const own = classes(trajectory, at, shape);
    const { alignment, showsDifference } = this;
    const fork = at === alignment?.divergence ? " fork" : "";
    if (!showsDifference || !alignment || at >= alignment.context || !trajectory.isSampled(at)) return own + fork;
    return `${own.split(" ").filter((name) => name !== "none" && !/^e\d+$/.test(name)).join(" ")} ${classesOf(alignment.difference[at])}${fork}`;
  }

  /** Scrolls the other path to the token at the top of this one. Equal positions are beside each other. */
  #scrolled(side) {
    if (side !== this.lead || !this.alignment) return;
    const [from, to] = [this.sheets[side], this.sheets[side === "left" ? "right" : "left"]];
    if (from.layout?.of === from.trajectory && to.layout?.of === to.trajectory) to.scrollTo(from.place());
  }

  choose(at) {
    const side = at < this.sheets[this.lead].trajectory?.loaded ? this.lead : SIDES.find((one) => at < this.sheets[one].trajectory?.loaded);
    if (side) this.sheets[side].choose(at);
  }

  #picked(side, at) {
    if (this.picking) return;
    this.picking = true;
    this.chosen = at;
    const other = this.sheets[side === "left" ? "right" : "left"];
    if (at < (other.trajectory?.loaded ?? 0)) other.choose(at);
    else other.unchoose();
    this.picking = false;
    part("compare-details").replaceChildren(...this.#card(at));
    markDifference(this.#plot, this.alignment, at);
    if (!part("compare-view").hidden) replace(this.address(), true);
  }

  #card(at) {
    const { alignment, paths } = this;
    const difference = alignment.difference[at];
    const why = at >= alignment.context ? "none: the tokens before differ" : SIDES.some((side) => !paths[side].isSampled(at)) ? "none: not sampled in both" : "none: an entropy is missing, or measured in another way";
    const [low, high] = [paths.right.lower[at] - paths.left.upper[at], paths.right.upper[at] - paths.left.lower[at]];
    const known = SIDES.filter((side) => at < paths[side].loaded);
    const columns = known.map((side) => new Map(facts(paths[side], at)));
    const rows = [...new Set(columns.flatMap((column) => [...column.keys()]))].filter((one) => columns.some((column) => column.get(one) ?? null));
    return [
      numbers([["B − A", Number.isNaN(difference) ? why : `${signed(difference)} nats`], ["its interval", Number.isNaN(difference) || Number.isNaN(low + high) ? null : `${signed(low)} to ${signed(high)}`]]),
      element("table", { class: "pair" },
        element("thead", {}, element("tr", {}, element("td", {}), known.map((side) => element("th", { scope: "col" }, NAMES[side])))),
        element("tbody", {},
          element("tr", {}, element("th", { scope: "row" }, "text"), known.map((side) => element("td", {}, element("div", { class: "text", tabindex: "0", role: "group", "aria-label": `Text of the token of ${NAMES[side]}` }, text(this.texts, paths[side], at))))),
          rows.map((row) => element("tr", {}, element("th", { scope: "row" }, row), columns.map((column) => element("td", {}, column.get(row) ?? "–"))))))];
  }

  /** Goes to the large difference before or after the chosen token. */
  peak(by) {
    const peaks = this.alignment?.peaks() ?? [];
    const found = by > 0 ? peaks.findIndex((at) => at > this.chosen) : peaks.findLastIndex((at) => at < (this.chosen < 0 ? Infinity : this.chosen));
    if (found < 0) return this.announce(!peaks.length ? "There are no differences." : by > 0 ? "This is the last large difference." : "This is the first large difference.");
    this.choose(peaks[found]);
    this.announce(`Difference ${found + 1} of ${peaks.length}: ${signed(this.alignment.difference[peaks[found]])} nats, ${this.sheets.left.label(peaks[found])}`);
  }

  #toDivergence() {
    if (this.alignment?.divergence === null || !this.alignment) return this.announce("No token differs.");
    this.choose(this.alignment.divergence);
  }

  #switchColours() {
    this.showsDifference = !this.showsDifference;
    part("colours").textContent = this.showsDifference ? "Colours: difference" : "Colours: own entropy";
    for (const side of SIDES) if (this.sheets[side].trajectory) this.sheets[side].repaint();
  }

  #swap() {
    const [{ left, right }, { chosen }] = [this.of, this];
    this.of = { left: right, right: left };
    replace({ ...this.address(), at: chosen });
    this.open({ ...this.of, at: chosen < 0 ? null : chosen });
  }
}

/** Opens the path of the newest version of its session. */
async function open({ session, leaf }, signal) {
  const { frozen_versions: frozen } = await get(`/v1/sessions/${encodeURIComponent(session)}`, signal);
  return Trajectory.open(session, leaf, { version: frozen + 1 }, signal);
}

const name = ({ session, leaf }) => element("span", {}, `${label(session, 128)} · path to turn ${leaf}`);

function orUnknown(pairs) {
  return pairs.includes("unknown") ? " or are unknown" : "";
}

/** The line above a path: its name, its policy and its mean entropy. */
function about(side, of, trajectory) {
  const { head } = trajectory;
  const policies = [...new Set(head.policy.map((span) => [policyText(span), ...(span.adapter ? [`adapter ${adapterOf(span)}`] : [])].join(", ")))];
  const model = head.turns.at(-1)?.model;
  return [element("strong", {}, `${side} `), name(of), element("span", { class: "sub num" }, [policies.join("; ") || "policy unknown", model ? label(model, NAME) : null, amount(trajectory.total, "token")].filter(Boolean).join(" · "))];
}
