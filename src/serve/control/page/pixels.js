// SPDX-License-Identifier: Apache-2.0
// The size in pixels that the header of a picture declares. A file of some kilobytes can decode to gigabytes, so the size is read before.

const text = (view, at) => String.fromCharCode(...[0, 1, 2, 3].map((place) => view.getUint8(at + place)));
const three = (view, at) => view.getUint16(at, true) + (view.getUint8(at + 2) << 16);

function png(view) {
  const isPng = view.getUint32(0) === 0x8950_4e47 && view.getUint32(4) === 0x0d0a_1a0a && text(view, 12) === "IHDR";
  return isPng ? [view.getUint32(16), view.getUint32(20)] : null;
}

/** The first frame of a GIF may be larger than its screen, and browsers then show the frame. */
function gif(view) {
  if (text(view, 0) !== "GIF8") return null;
  const palette = (flags) => (flags & 0x80 ? 3 << ((flags & 7) + 1) : 0);
  const [width, height] = [view.getUint16(6, true), view.getUint16(8, true)];
  let at = 13 + palette(view.getUint8(10));
  while (view.getUint8(at) === 0x21) {
    at += 2;
    for (let size; (size = view.getUint8(at)) > 0;) at += size + 1;
    at++;
  }
  if (view.getUint8(at) !== 0x2c) return null;
  const side = (place) => view.getUint16(at + place, true) + view.getUint16(at + place + 4, true);
  return [Math.max(width, side(1)), Math.max(height, side(3))];
}

/** The frame header follows segments with a length. A decoder would skip bytes between them, and might find another header there. */
function jpeg(view) {
  if (view.getUint16(0) !== 0xffd8) return null;
  for (let at = 2; view.getUint8(at) === 0xff;) {
    const kind = view.getUint8(at + 1);
    if (kind === 0xff) {
      at++;
      continue;
    }
    const isFrame = kind >= 0xc0 && kind <= 0xcf && ![0xc4, 0xc8, 0xcc].includes(kind);
    if (isFrame) return [view.getUint16(at + 7), view.getUint16(at + 5)];
    // the scans begin, the file ends, or a marker without a length
    if (kind < 0xc0 || (kind >= 0xd0 && kind <= 0xda)) return null;
    const size = view.getUint16(at + 2);
    if (size < 2) return null;
    at += 2 + size;
  }
  return null;
}

function webp(view) {
  if (text(view, 0) !== "RIFF" || text(view, 8) !== "WEBP") return null;
  const kind = text(view, 12);
  if (kind === "VP8X") return [three(view, 24) + 1, three(view, 27) + 1];
  if (kind === "VP8 " && three(view, 23) === 0x2a_019d) return [view.getUint16(26, true) & 0x3fff, view.getUint16(28, true) & 0x3fff];
  if (kind !== "VP8L" || view.getUint8(20) !== 0x2f) return null;
  const bits = view.getUint32(21, true);
  return [(bits & 0x3fff) + 1, ((bits >>> 14) & 0x3fff) + 1];
}

function bmp(view) {
  if (view.getUint16(0) !== 0x424d) return null;
  if (view.getUint32(14, true) === 12) return [view.getUint16(18, true), view.getUint16(20, true)];
  return [Math.abs(view.getInt32(18, true)), Math.abs(view.getInt32(22, true))];
}

/** The formats that are shown. None of them can have scripts or load other files. */
const FORMATS = new Map([["image/png", png], ["image/jpeg", jpeg], ["image/gif", gif], ["image/webp", webp], ["image/bmp", bmp]]);

/** Whether pictures of a media type are shown. */
export function isShown(type) {
  return FORMATS.has(type);
}

/** `[width, height]` of a picture with these bytes (an ArrayBuffer); null if the header is not one of this media type. */
export function sizeOf(type, bytes) {
  try {
    const size = FORMATS.get(type)?.(new DataView(bytes));
    return size?.every((side) => side > 0) ? size : null;
  } catch (error) {
    if (error instanceof RangeError) return null; // the header is cut off
    throw error;
  }
}
