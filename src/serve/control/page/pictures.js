// SPDX-License-Identifier: Apache-2.0
// The pictures of prompts. An agent has chosen their bytes, so they are only drawn as pixels: those of five formats, one at a time, and none
// whose header declares too many pixels.

import { getBytes } from "./api.js";
import { amount, count, element, part } from "./element.js";
import { isShown, sizeOf } from "./pixels.js";

/** The bytes above which a picture is fetched on request only. */
const LARGE = 2_000_000;
/** The maximum number of pixels of a picture. Each has 4 bytes when it is decoded. */
const PIXELS = 40_000_000;
/** The longest side of a thumbnail in pixels, and the number of thumbnails that are kept. */
const [SIDE, KEPT] = [480, 64];


/** A number of bytes, as text. */
export function size(bytes) {
  if (bytes < 1000) return `${bytes} B`;
  return bytes < 1e6 ? `${(bytes / 1e3).toFixed(0)} kB` : `${(bytes / 1e6).toFixed(1)} MB`;
}

/** What identifies a picture and its tokens, as a list of texts. */
export function captions({ start, end, sha256, media_type: type, bytes }) {
  const place = end - start === 1 ? `1 token, ${count(end)}` : `${amount(end - start, "token")}, ${count(start + 1)} to ${count(end)}`;
  return [`${type}, ${size(bytes)}`, `sha256 ${sha256.slice(0, 12)}…`, place];
}

/** The picture is not shown; the message says why. */
class Refusal extends Error {}

/** Fetches a picture. Returns a Blob that browsers decode as a picture only, and its size in pixels. */
async function fetched(session, { sha256, media_type: type }) {
  const bytes = await getBytes(`/v1/sessions/${encodeURIComponent(session)}/images/${sha256}`);
  const pixels = sizeOf(type, bytes);
  if (!pixels) throw new Refusal("the header has no size in pixels");
  const [width, height] = pixels;
  if (width * height > PIXELS) throw new Refusal(`${count(width)} × ${count(height)} pixels are too many to decode`);
  return { blob: new Blob([bytes], { type }), width, height };
}

/** Decodes a picture, of which the first frame is drawn. */
async function thumbnail(blob) {
  const bitmap = await createImageBitmap(blob).catch(() => { throw new Refusal("it cannot be decoded"); });
  const scale = Math.min(1, SIDE / Math.max(bitmap.width, bitmap.height));
  const canvas = element("canvas", { width: Math.max(1, Math.round(bitmap.width * scale)), height: Math.max(1, Math.round(bitmap.height * scale)) });
  const context = canvas.getContext("2d");
  context.imageSmoothingQuality = "high";
  context.drawImage(bitmap, 0, 0, canvas.width, canvas.height);
  bitmap.close();
  return canvas;
}

export class Pictures {
  /** By digest, the oldest first: `{canvas, text, isReading, isFailed}`. A picture that is not shown has no canvas. */
  #known = new Map();
  #frames = new WeakMap();
  #waiting = [];
  #isReading = false;

  constructor() {
    this.watcher = new IntersectionObserver((entries) => {
      for (const { isIntersecting, target } of entries) if (isIntersecting) this.#want(target);
    });
    part("picture").addEventListener("close", () => {
      this.opened = null;
      const image = part("picture-full").querySelector("img");
      if (image) URL.revokeObjectURL(image.src);
      part("picture-full").replaceChildren();
    });
  }

  /**
   * An element that shows the picture as soon as it is scrolled into view, or why it is not shown. `hasButtons`: it can be loaded and
   * shown in full size by buttons, else it is loaded by a click.
   */
  frame(session, picture, hasButtons = false) {
    const node = element("span", { class: "frame", "data-picture": picture.sha256 });
    this.#frames.set(node, { session, picture, hasButtons });
    this.#fill(node);
    this.watcher.observe(node);
    if (!hasButtons) node.addEventListener("click", () => this.#load(node));
    return node;
  }

  /** Why a picture cannot be fetched; null if it can be. */
  #refusal({ available, media_type: type }) {
    if (!available) return "not available";
    return isShown(type) ? null : "not a picture that the page shows";
  }

  #want(node) {
    const { picture } = this.#frames.get(node);
    if (picture.bytes <= LARGE) this.#load(node);
  }

  #load(node) {
    const { picture } = this.#frames.get(node);
    if (this.#refusal(picture) || this.#isRead(picture)) return;
    this.#waiting.push(node);
    this.#read();
  }

  /** Whether a picture was read, or is being read. A read that failed is repeated. */
  #isRead({ sha256 }) {
    return this.#known.has(sha256) && !this.#known.get(sha256).isFailed;
  }

  /** Reads the pictures that are waiting and still on the page. One is decoded at a time, which bounds the memory. */
  async #read() {
    if (this.#isReading) return;
    this.#isReading = true;
    for (let node; (node = this.#waiting.shift());) {
      const { session, picture } = this.#frames.get(node);
      if (!node.isConnected || this.#isRead(picture)) continue;
      this.#keep(picture, { text: "reading…", isReading: true });
      try {
        const { blob, width, height } = await fetched(session, picture);
        this.#keep(picture, { canvas: await thumbnail(blob), text: `${count(width)} × ${count(height)} pixels` });
      } catch (error) {
        const isFailed = !(error instanceof Refusal);
        this.#keep(picture, { text: `${isFailed ? "not read" : "not shown"}: ${error.message}`, isFailed });
      }
    }
    this.#isReading = false;
  }

  #keep({ sha256 }, state) {
    this.#known.delete(sha256);
    this.#known.set(sha256, state);
    const shown = (digest) => document.querySelectorAll(`[data-picture="${CSS.escape(digest)}"]`);
    const thumbnails = [...this.#known].filter(([, { canvas }]) => canvas);
    for (const [digest] of thumbnails.slice(0, Math.max(0, thumbnails.length - KEPT))) if (!shown(digest).length) this.#known.delete(digest);
    for (const node of shown(sha256)) this.#fill(node, state);
  }

  /** Draws the state of a picture. */
  #fill(node, state = this.#known.get(this.#frames.get(node).picture.sha256)) {
    const { session, picture, hasButtons } = this.#frames.get(node);
    const refusal = this.#refusal(picture);
    const canLoad = !refusal && (state ? state.isFailed : picture.bytes > LARGE);
    const text = state?.text ?? refusal ?? (canLoad ? `${size(picture.bytes)}${hasButtons ? "" : ": click to load"}` : "");
    const hasFocus = node.contains(document.activeElement);
    node.replaceChildren(state?.canvas ? copy(state.canvas) : element("span", { class: "nothing" }), element("span", { class: "sub" }, text));
    if (!hasButtons) return;
    const button = (name, act) => node.append(element("button", { type: "button", onclick: act }, name));
    if (state?.canvas) button("Full size", () => this.#show(session, picture));
    else if (canLoad || (hasFocus && state?.isReading)) button("Load", () => this.#load(node));
    if (hasFocus) node.querySelector("button")?.focus();
  }

  /** Shows a picture in full size, until the dialog is closed. */
  async #show(session, picture) {
    const opened = (this.opened = Symbol("the last picture"));
    const fill = (node) => opened === this.opened && part("picture-full").replaceChildren(node);
    fill("Reading…");
    part("picture").showModal();
    try {
      const { blob, width, height } = await fetched(session, picture);
      if (opened !== this.opened) return;
      const image = element("img", { alt: `${picture.media_type} of ${width} × ${height} pixels` });
      image.src = URL.createObjectURL(blob);
      fill(image);
    } catch (error) {
      fill(`Not read: ${error.message}`);
    }
  }
}

function copy(canvas) {
  const { width, height } = canvas;
  const own = element("canvas", { width, height });
  own.getContext("2d").drawImage(canvas, 0, 0);
  return own;
}
