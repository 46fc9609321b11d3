// SPDX-License-Identifier: Apache-2.0
// The view of the open path: its tokens, its numbers, and the chosen token.

import { replace } from "./address.js";
import { Curve, along } from "./along.js";
import { BottomSheet } from "./bottomsheet.js";
import { Chat } from "./chat.js";
import { about, card, tip } from "./details.js";
import { amount, count, element, part } from "./element.js";
import { file, save } from "./exported.js";
import { FindBar } from "./findbar.js";
import { label } from "./glyph.js";
import { Follower } from "./live.js";
import { histogram } from "./plot.js";
import { shown } from "./scale.js";
import { Sheet } from "./sheet.js";
import { Trajectory, UNKNOWN } from "./trajectory.js";

/** The number of tokens whose texts are fetched before anything is shown. */
const FIRST = 2048;


export class PathView {
  #opening = new AbortController();
  #follower = null;
  trajectory = null;
  survey = null;
  /** The session and the leaf of the open path; the leaf is null if none is open, or while it runs. */
  session = null;
  leaf = null;
  /** Whether the open path is read to its end. */
  isWhole = false;
  /** Whether the path is shown as a conversation. */
  isChat = false;

  constructor({ texts, pictures, onLeaf, onEnd }) {
    Object.assign(this, { texts, pictures, onLeaf, onEnd, chat: new Chat(texts) });
    this.sheet = new Sheet(part("tokens"), texts, pictures, { onPick: (at) => this.#picked(at), onPoint: (at, event) => this.#pointed(at, event) });
    const { sheet } = this;
    this.bottomSheet = new BottomSheet(() => this.address() && replace(this.address()));
    part("tokens").addEventListener("click", (event) => this.#tapped(event.target.closest(".t")));
    this.curve = new Curve((at) => sheet.choose(at));
    this.findBar = new FindBar(this.sheet, texts, (text) => this.announce(text));
    this.actions = {
      peak: (place) => this.spike(place === 0 ? 1 : -1),
      turn: (place) => this.turnBy(place === 0 ? -1 : 1),
      find: () => this.findBar.field.select(),
      match: (place) => this.findBar.next(place === 0 ? 1 : -1),
      trained: () => this.#emphasise(),
      save: () => this.save(),
      zoom: (place) => this.curve.zoom(place < 2 ? 1 / 2 : 2),
      pan: (place) => this.curve.pan(place === 0 ? -1 / 2 : 1 / 2),
      whole: () => this.curve.whole(),
      chat: () => this.#switch(),
      fold: () => this.trajectory && this.announce(sheet.chosen < 0 ? "No token is chosen." : sheet.fold(sheet.chosen) ?? "This text cannot be folded."),
      step: (place) => sheet.step(place === 0 ? -1 : 1),
      line: (place) => this.trajectory && sheet.line(place === 0 ? -1 : 1),
      end: (place) => sheet.choose(place === 0 ? 0 : (sheet.trajectory?.loaded ?? 0) - 1),
    };
    part("trained").addEventListener("click", () => this.#emphasise());
    part("chat").addEventListener("click", () => this.#switch());
  }

  /** Shows the path as a conversation, or as its recorded segments. */
  showChat(isChat) {
    if (isChat === this.isChat) return;
    this.isChat = isChat;
    part("chat").setAttribute("aria-pressed", String(isChat));
    this.sheet.arrange(isChat ? this.chat : undefined);
  }

  #switch() {
    this.showChat(!this.isChat);
    this.announce(this.isChat ? "The path is shown as a conversation." : "The path is shown as its tokens.");
    const address = this.address();
    if (address) replace(address);
  }

  /** The address of the open path and of its chosen token; null if none is open, or while it runs. */
  address() {
    const { trajectory, session, leaf } = this;
    return leaf === null ? null : { view: "path", session, leaf, at: trajectory ? this.sheet.chosen : -1, isChat: this.isChat };
  }

  /** Switches whether tokens that are not trained lose their colours. */
  #emphasise() {
    const isOn = part("tokens").classList.toggle("only-trained");
    part("trained").setAttribute("aria-pressed", String(isOn));
  }

  /** Announces a text to screen readers. */
  announce(text) {
    part("status").textContent = text;
  }

  /** Closes the path and shows a message instead. */
  showMessage(line) {
    this.close();
    this.sheet.show(null, line);
    this.findBar.refresh();
    this.curve.clear();
    for (const id of ["about", "details", "histogram", "facts"]) part(id).replaceChildren();
  }

  problem(error) {
    if (error.name === "AbortError") return;
    this.showMessage(error.status === 410 || error.status === 404 ? error.message : `Reading failed: ${error.message}`);
  }

  /** Stops reading and following. */
  close() {
    this.bottomSheet.hide();
    this.#opening.abort();
    this.#opening = new AbortController();
    this.#follower?.stop();
    this.#follower = null;
    this.trajectory = null;
    this.leaf = null;
    this.isWhole = false;
    part("export").disabled = true;
  }

  /**
   * Opens the path that ends in `leaf`. `classes` are those that an export trains. Scrolls to the turn `turn` and chooses the token `at`,
   * unless they are null.
   */
  async open(session, leaf, { version, classes, turn = null, at = null }) {
    const isOpen = this.leaf === leaf && this.trajectory?.head.session === session && this.classes === classes;
    if (isOpen && at !== null && at < this.trajectory.loaded) return this.sheet.choose(at);
    if (isOpen && turn !== null) return this.#toTurn(turn);
    this.close();
    this.classes = classes;
    const { signal } = this.#opening;
    Object.assign(this, { session, leaf });
    this.onLeaf(leaf);
    const { texts } = this;
    try {
      const trajectory = await Trajectory.open(session, leaf, { version, classes }, signal);
      const { ids } = trajectory;
      while (await trajectory.more(signal)) {
        // first the texts of the visible tokens, then those of all loaded tokens
        const isFirst = this.trajectory !== trajectory;
        if (isFirst) {
          await texts.load(ids.subarray(0, Math.min(FIRST, trajectory.loaded)), signal);
          this.#begin(trajectory);
        }
        await texts.load(ids.subarray(0, trajectory.loaded), signal);
        await texts.loadRuns(ids, 0, trajectory.loaded, signal);
        this.#grown();
        if (isFirst && turn !== null) this.#toTurn(turn);
        if (at !== null && this.sheet.chosen < 0) this.sheet.choose(at);
      }
      if (this.trajectory !== trajectory) this.#begin(trajectory);
      this.isWhole = true;
      part("export").disabled = false;
      this.announce(`${amount(trajectory.total, "token")}, ${amount(this.survey.spikes.length, "entropy spike")}.`);
      if (at !== null && at >= trajectory.total) this.#lacks(at);
      if (turn !== null && this.sheet.chosen < 0) this.#toTurn(turn);
    } catch (error) {
      this.problem(error);
    }
  }

  /** Says that the path has no token `at`. */
  #lacks(at) {
    const problem = `This path has no token ${count(at + 1)}.`;
    part("details").replaceChildren(element("p", { class: "sub" }, problem));
    this.announce(problem);
  }

  /** Follows a running sequence. */
  follow(session, { rid, index }) {
    this.close();
    this.onLeaf(null);
    const trajectory = Trajectory.running(session, rid, index);
    this.#begin(trajectory);
    this.announce("Following a running generation.");
    const onTokens = async (added, finished) => {
      if (added) {
        const wasAtEnd = this.sheet.isAtEnd();
        await this.texts.load(trajectory.ids.subarray(trajectory.loaded - added, trajectory.loaded).filter((id) => id !== UNKNOWN));
        if (this.trajectory !== trajectory) return;
        this.#grown();
        if (wasAtEnd && this.sheet.chosen < 0) this.sheet.toEnd();
      }
      if (!finished) return;
      this.announce(`The generation has ended: ${amount(trajectory.loaded, "token")}.`);
      await this.onEnd(session, rid);
    };
    this.#follower = new Follower({ rid, index }, trajectory, onTokens);
  }

  #begin(trajectory) {
    this.trajectory = trajectory;
    this.sheet.show(trajectory);
    part("details").replaceChildren(element("p", { class: "sub" }, "Point at a token, or press j and k to go to the next or previous spike."));
    this.#grown();
  }

  /** Redraws after tokens were added to the open trajectory. */
  #grown() {
    const { trajectory } = this;
    this.sheet.refresh();
    this.survey = trajectory.survey();
    this.curve.show(trajectory, this.survey);
    part("histogram").replaceChildren(histogram(trajectory, this.survey));
    part("facts").replaceChildren(about(trajectory, this.survey));
    this.findBar.refresh();
    this.#above();
  }

  /** The line above the tokens. */
  #above() {
    const { trajectory, survey, texts } = this;
    const { head, live, loaded, total } = trajectory;
    const facts = [
      live ? "running" : `path to turn ${head.leaf}`, `mean ${shown(survey.mean)} nats`, amount(survey.spikes.length, "spike"),
      head.think_token_count ? `thinking ${amount(head.think_token_count, "token")}, mean ${shown(head.think_entropy_mean)} nats` : null,
      loaded < total ? `${count(loaded)} of ${count(total)} tokens read` : null, texts.problem || null,
    ];
    part("about").replaceChildren(...facts.filter(Boolean).map((fact, at) => element(at ? "span" : "strong", { class: !at && live ? "live" : "num" }, fact)));
  }

  #toTurn(turn) {
    const { segments, loaded } = this.trajectory;
    const own = segments.filter((segment) => segment.turn === turn && segment.start < loaded);
    const segment = own.find(({ kind }) => kind === "response") ?? own[0];
    if (segment) this.sheet.choose(segment.start);
  }

  #picked(at) {
    if (!this.trajectory) return; // the next path is being loaded
    part("details").replaceChildren(...card(this.texts, this.pictures, this.trajectory, at));
    this.curve.mark(at);
    const address = this.address();
    // a path that is still being read may be covered by another view
    if (address && !part("path-view").hidden) replace(address, true);
  }

  /** The history must have the address of the token before its sheet gets an entry. */
  #tapped(token) {
    if (!token) return;
    const address = this.address();
    if (address) replace(address);
    this.bottomSheet.open(token);
  }

  #pointed(at, event) {
    const box = part("tip");
    const { trajectory } = this;
    box.hidden = at < 0 || !trajectory || at >= trajectory.loaded || event.pointerType === "touch";
    if (box.hidden) return;
    box.replaceChildren(...tip(this.texts, trajectory, at));
    const token = event.target.closest(".t").getBoundingClientRect();
    const [width, height] = [box.offsetWidth, box.offsetHeight];
    box.style.left = `${Math.max(8, Math.min(token.left, innerWidth - width - 8))}px`;
    box.style.top = `${token.bottom + 6 + height > innerHeight ? token.top - height - 6 : token.bottom + 6}px`;
  }

  /** Goes to the spike before or after the chosen token. */
  spike(by) {
    const spikes = this.trajectory ? this.survey.spikes : [];
    const { chosen } = this.sheet;
    const found = by > 0 ? spikes.findIndex((at) => at > chosen) : spikes.findLastIndex((at) => at < (chosen < 0 ? Infinity : chosen));
    if (found < 0) return this.announce(!spikes.length ? "There are no spikes." : by > 0 ? "This is the last spike." : "This is the first spike.");
    this.sheet.choose(spikes[found]);
    this.announce(`Spike ${found + 1} of ${spikes.length}: ${this.sheet.label(spikes[found])}`);
  }

  /** Goes to the response of the previous or next turn. */
  turnBy(by) {
    const responses = (this.trajectory?.segments ?? []).filter(({ kind, start }) => kind === "response" && start < this.trajectory.loaded);
    const at = Math.max(0, this.sheet.chosen);
    const found = by > 0 ? responses.find(({ start }) => start > at) : responses.findLast(({ start }) => start < at);
    if (found) this.sheet.choose(found.start);
  }

  /** Saves the view as one HTML file. */
  async save() {
    const { trajectory, survey } = this;
    if (!trajectory || part("export").disabled) return;
    const { session, leaf } = trajectory.head;
    const colours = await (await fetch("/page/tokens.css")).text();
    const facts = [...part("facts").querySelectorAll("dt")].map((name) => [name.textContent, name.nextElementSibling.textContent]);
    const table = [["session", label(session, 128)], ...facts];
    const plots = [along(trajectory, survey), histogram(trajectory, survey)];
    save(file(trajectory, this.sheet, { title: `${label(session, 128)}, path to turn ${leaf}`, table, plots, colours }), `tokentap-${session}-${leaf}`);
    this.announce("The view is saved as one HTML file.");
  }
}
