// Text that a model wrote, as it may be shown: every character that is invisible, or that moves others, has a visible stand-in.

/** Characters of a token that are shown in the text; how many there are stands beside them. */
export const SHOWN = 60;

const NAMES = new Map([
  [0x00a0, "nbsp"], [0x00ad, "shy"], [0x061c, "alm"], [0x115f, "filler"], [0x1160, "filler"], [0x180e, "mvs"], [0x200b, "zwsp"],
  [0x200c, "zwnj"], [0x200d, "zwj"], [0x200e, "lrm"], [0x200f, "rlm"], [0x2028, "ls"], [0x2029, "ps"], [0x202a, "lre"], [0x202b, "rle"],
  [0x202c, "pdf"], [0x202d, "lro"], [0x202e, "rlo"], [0x2060, "wj"], [0x2066, "lri"], [0x2067, "rli"], [0x2068, "fsi"], [0x2069, "pdi"],
  [0x3164, "filler"], [0xfeff, "bom"], [0xffa0, "filler"],
]);

/** Whether a character would not be seen, or would change how others are. */
function isOdd(code) {
  return code < 0x20 || (code >= 0x7f && code < 0xa0) || NAMES.has(code) || (code >= 0xd800 && code < 0xe000)
    || (code >= 0x2061 && code <= 0x206f) || (code >= 0xfff0 && code < 0xfffc) || (code >= 0xe0000 && code < 0xe1000)
    || (code >= 0xfe00 && code < 0xfe10) || (code >= 0x180b && code <= 0x180f);
}

function name(code) {
  return NAMES.get(code) ?? `U+${code.toString(16).toUpperCase().padStart(4, "0")}`;
}

/**
 * The pieces of a text: lists of `{text, kind}` by line. `kind` is "plain", "glyph" (line ends, tabs) or "odd". Of a long text the
 * beginning, and one piece of kind "cut" that says how long it is.
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
      // marks that would pile up on what stands before them
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

/** The same on one line, as plain text: for labels. */
export function label(text, most = 40) {
  return lines(text, most).flat().map((piece) => (piece.kind === "odd" ? `[${piece.text}]` : piece.text)).join("");
}
