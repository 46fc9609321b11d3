// SPDX-License-Identifier: Apache-2.0
// Files of pictures: valid ones, hostile ones, and files that declare the size of a bomb.

import { deflateSync } from "node:zlib";

const TABLE = Uint32Array.from({ length: 256 }, (_, byte) => {
  let rest = byte;
  for (let bit = 0; bit < 8; bit++) rest = rest & 1 ? 0xedb8_8320 ^ (rest >>> 1) : rest >>> 1;
  return rest;
});

function chunk(kind, data) {
  const body = Buffer.concat([Buffer.from(kind, "latin1"), data]);
  let sum = 0xffff_ffff;
  for (const byte of body) sum = TABLE[(sum ^ byte) & 0xff] ^ (sum >>> 8);
  const [size, check] = [Buffer.alloc(4), Buffer.alloc(4)];
  size.writeUInt32BE(data.length);
  check.writeUInt32BE((sum ^ 0xffff_ffff) >>> 0);
  return Buffer.concat([size, body, check]);
}

const SIGNATURE = Buffer.from([0x89, 0x50, 0x4e, 0x47, 0x0d, 0x0a, 0x1a, 0x0a]);

/** The header of a PNG; `kind` is the number of its colour type, and `bits` that of bits of a sample. */
function header(width, height, kind = 2, bits = 8) {
  const data = Buffer.alloc(13);
  data.writeUInt32BE(width, 0);
  data.writeUInt32BE(height, 4);
  data.set([bits, kind], 8);
  return chunk("IHDR", data);
}

/** A PNG with the colour `paint(x, y)` at each place; `more` are chunks after its header. */
export function png(width, height, paint, more = []) {
  const rows = Buffer.alloc(height * (1 + 3 * width));
  for (let y = 0; y < height; y++) for (let x = 0; x < width; x++) rows.set(paint(x, y), y * (1 + 3 * width) + 1 + 3 * x);
  return Buffer.concat([SIGNATURE, header(width, height), ...more, chunk("IDAT", deflateSync(rows)), chunk("IEND", Buffer.alloc(0))]);
}

/** A PNG of one colour. */
export const plain = (width, height, colour) => png(width, height, () => colour);

/** A small file that is valid and has one bit for each of `side` × `side` pixels. */
export function bomb(side) {
  const data = deflateSync(Buffer.alloc(side * (1 + side / 8)), { level: 9 });
  return Buffer.concat([SIGNATURE, header(side, side, 0, 1), chunk("IDAT", data), chunk("IEND", Buffer.alloc(0))]);
}

const SCRIPT = "<script>window.hit = 'picture'</script>";
const HTML = `<html><body onload="window.hit='picture'">${SCRIPT}`;

/** A GIF whose first frame has the given size. It has at most 300 pixels of the frame. */
export function gif(screen, frame = screen) {
  // codes of three bits: a clear code before each pixel, so that they stay that long
  const codes = [...Array.from({ length: Math.min(frame[0] * frame[1], 300) }, () => [4, 0]).flat(), 5];
  const bits = codes.map((code) => [code & 1, (code >> 1) & 1, code >> 2]).flat();
  const data = Array.from({ length: Math.ceil(bits.length / 8) }, (_, at) => bits.slice(8 * at, 8 * at + 8).reduce((byte, bit, place) => byte | (bit << place), 0));
  const start = Buffer.from("GIF89a\0\0\0\0\xf0\0\0\xff\0\0\0\0\xff!\xf9\x04\0\0\0\0\0,\0\0\0\0\0\0\0\0\0\x02", "latin1");
  const bytes = Buffer.concat([start, Buffer.from([data.length, ...data, 0, 0x3b])]);
  bytes.writeUInt16LE(screen[0], 6);
  bytes.writeUInt16LE(screen[1], 8);
  const at = bytes.indexOf(0x2c, 19);
  bytes.writeUInt16LE(frame[0], at + 5);
  bytes.writeUInt16LE(frame[1], at + 7);
  return bytes;
}

/** A BMP of one colour. */
export function bmp(width, height) {
  const row = 4 * Math.ceil((3 * width) / 4);
  const bytes = Buffer.alloc(54 + Math.min(row * Math.abs(height), 4096), 0x80);
  bytes.write("BM", 0, "latin1");
  [bytes.length, 0, 54, 40, width, height].forEach((value, at) => bytes.writeInt32LE(value, 2 + 4 * at));
  bytes.writeUInt16LE(1, 26);
  bytes.writeUInt16LE(24, 28);
  bytes.fill(0, 30, 54);
  return bytes;
}

/** A WebP with the extended header only. */
function webp(width, height) {
  const bytes = Buffer.alloc(30);
  bytes.write("RIFF\x16\0\0\0WEBPVP8X\x0a\0\0\0", 0, "latin1");
  bytes.writeUIntLE(width - 1, 24, 3);
  bytes.writeUIntLE(height - 1, 27, 3);
  return bytes;
}

/** A JPEG with the frame header only, after a comment. */
function jpeg(width, height, comment = HTML) {
  const frame = Buffer.from([0xff, 0xc0, 0, 11, 8, 0, 0, 0, 0, 1, 1, 0x11, 0]);
  frame.writeUInt16BE(height, 5);
  frame.writeUInt16BE(width, 7);
  const text = Buffer.from(comment);
  return Buffer.concat([Buffer.from([0xff, 0xd8, 0xff, 0xfe, (text.length + 2) >> 8, (text.length + 2) & 0xff]), text, frame]);
}

const SVG = `<svg xmlns="http://www.w3.org/2000/svg" onload="window.hit='picture'">${SCRIPT}<image href="http://127.0.0.1:9/a"/></svg>`;

/** Hostile files by name, each with what the page says about it; "" if it is shown. */
export const HOSTILE_FILES = {
  "SVG with a script": [Buffer.from(SVG), "not a picture that the page shows"],
  HTML: [Buffer.from(HTML), "not a picture that the page shows"],
  "HTML after the signature of PNG": [Buffer.concat([SIGNATURE, Buffer.from(HTML)]), "the header has no size in pixels"],
  "SVG after the signature of JPEG": [Buffer.concat([Buffer.from([0xff, 0xd8, 0xff]), Buffer.from(SVG)]), "the header has no size in pixels"],
  "JavaScript in a GIF": [Buffer.from("GIF89a=1;window.hit='picture'//".padEnd(80), "latin1"), "the header has no size in pixels"],
  "valid PNG with HTML in it and after it": [Buffer.concat([png(40, 30, () => [0, 120, 0], [chunk("tEXt", Buffer.from(`Comment\0${HTML}`))]), Buffer.from(HTML)]), ""],
  "header of 100,000 × 100,000 pixels": [Buffer.concat([SIGNATURE, header(100_000, 100_000), chunk("IDAT", deflateSync(Buffer.alloc(100))), chunk("IEND", Buffer.alloc(0))]), "100,000 × 100,000 pixels are too many to decode"],
  "valid PNG of 40,000 × 40,000 pixels": [bomb(40_000), "40,000 × 40,000 pixels are too many to decode"],
  "GIF with a larger frame": [gif([1, 1], [60_000, 60_000]), "60,000 × 60,000 pixels are too many to decode"],
  "BMP that stands on its head": [bmp(30_000, -30_000), "30,000 × 30,000 pixels are too many to decode"],
  "WebP of the largest size": [webp(1 << 24, 1 << 24), "16,777,216 × 16,777,216 pixels are too many to decode"],
  "JPEG of the largest size": [jpeg(65_535, 65_535), "65,535 × 65,535 pixels are too many to decode"],
  "JPEG without an image": [jpeg(32, 32), "it cannot be decoded"],
  "PNG that ends early": [plain(64, 64, [9, 9, 9]).subarray(0, 40), "it cannot be decoded"],
  "PNG that ends in its header": [plain(64, 64, [9, 9, 9]).subarray(0, 20), "the header has no size in pixels"],
};
