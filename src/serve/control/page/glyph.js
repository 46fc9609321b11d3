// SPDX-License-Identifier: Apache-2.0
// Makes text of a model safe to display: every invisible character, and every one that moves others, is replaced by a visible glyph.

/** The maximum number of characters of a token in the text. A longer token also shows its length. */
export const SHOWN = 60;

const NAMES = new Map([
  [0x00a0, "nbsp"], [0x00ad, "shy"], [0x061c, "alm"], [0x115f, "filler"], [0x1160, "filler"], [0x180e, "mvs"], [0x200b, "zwsp"],
  [0x200c, "zwnj"], [0x200d, "zwj"], [0x200e, "lrm"], [0x200f, "rlm"], [0x2028, "ls"], [0x2029, "ps"], [0x202a, "lre"], [0x202b, "rle"],
  [0x202c, "pdf"], [0x202d, "lro"], [0x202e, "rlo"], [0x2060, "wj"], [0x2066, "lri"], [0x2067, "rli"], [0x2068, "fsi"], [0x2069, "pdi"],
  [0x3164, "filler"], [0xfeff, "bom"], [0xffa0, "filler"],
]);

/** Whether a character is invisible or changes the display of others. */
function isOdd(code) {
  return code < 0x20 || (code >= 0x7f && code < 0xa0) || NAMES.has(code) || (code >= 0xd800 && code < 0xe000)
    || (code >= 0x2061 && code <= 0x206f) || (code >= 0xfff0 && code < 0xfffc) || (code >= 0xe0000 && code < 0xe1000)
    || (code >= 0xfe00 && code < 0xfe10) || (code >= 0x180b && code <= 0x180f);
}

function name(code) {
  return NAMES.get(code) ?? `U+${code.toString(16).toUpperCase().padStart(4, "0")}`;
}

/**
 * Splits a text into lines of pieces `{text, kind}`. `kind` is "plain", "glyph" (line ends, tabs) or "odd". A long text is cut, and its
 * last piece, of kind "cut", has its length.
 */
export function lines(text, most = SHOWN) {
  const found = [[]];
  let [plain, count] = ["", 0];
  const flush = () => {
    if (plain) found.at(-1).push({ text: plain, kind: "plain" });
    plain = "";
  };
  for (const character of text.length > 4 * most ? text.slice(0, 4 * most) : text) {
    if (count++ >= most) break;
    const code = character.codePointAt(0);
    if (character === "\n") {
      flush();
      found.at(-1).push({ text: "↵", kind: "glyph" });
      found.push([]);
    } else if (character === "\t") {
      flush();
      found.at(-1).push({ text: "→   ", kind: "glyph" });
    } else if (isOdd(code)) {
      flush();
      found.at(-1).push({ text: name(code), kind: "odd" });
    } else {
      // a combining mark without a base character gets a visible one
      plain += /\p{M}/u.test(character) && !plain ? `◌${character}` : character;
    }
  }
  flush();
  if (count > most) {
    if (found.length > 1 && !found.at(-1).length) found.pop();
    found.at(-1).push({ text: `… ${text.length.toLocaleString("en")} characters`, kind: "cut" });
  }
  return found;
}

/** The same as plain text on one line, for labels. */
export function label(text, most = 40) {
  return lines(text, most).flat().map((piece) => (piece.kind === "odd" ? `[${piece.text}]` : piece.text)).join("");
}
