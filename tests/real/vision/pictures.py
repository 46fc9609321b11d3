# SPDX-License-Identifier: Apache-2.0
"""Screenshots of a page, as PNG files that the tests draw themselves."""
import io

from PIL import Image, ImageDraw

# widths and heights: a desktop, telephones, icons; above and below the limits of the processors
SIZES = [(1280, 800), (64, 96), (390, 844), (33, 47), (512, 512), (800, 600), (200, 60), (1, 1), (640, 480), (333, 222)]


def screenshot(size, seed):
    """A page with a bar, a text and boxes; another seed has other pixels."""
    picture = Image.new("RGB", size, (250 - seed % 97, 240, 200 + seed % 50))
    draw = ImageDraw.Draw(picture)
    width, height = size
    draw.rectangle((0, 0, width, height // 8), (37 * seed % 256, 60, 120))
    draw.text((width // 10, height // 4), f"Step {seed}: choose an entry", (10, 10, 10))
    for box in range(6):
        left, top = (53 * seed + 131 * box) % width, (height // 3 + 71 * seed * (box + 1)) % height
        colour = (91 * seed * (box + 1) % 256, 40 * box, 17 * seed % 256)
        draw.rectangle((left, top, left + width // 5, top + height // 9), colour)
    return encode(picture, "PNG")


def encode(picture, form, **options):
    content = io.BytesIO()
    picture.save(content, form, **options)
    return content.getvalue()


def media_type(picture):
    return Image.MIME[Image.open(io.BytesIO(picture)).format]


def formats():
    plain = Image.open(io.BytesIO(screenshot((160, 120), 7)))
    turned = Image.Exif()
    turned[0x0112] = 6  # orientation: a quarter turn
    clear = plain.convert("RGBA")
    clear.putalpha(Image.linear_gradient("L").resize(plain.size))
    return {
        "a JPEG": encode(plain, "JPEG"), "a JPEG with an orientation": encode(plain, "JPEG", exif=turned), "a WebP": encode(plain, "WEBP"),
        "a GIF": encode(plain, "GIF"), "a BMP": encode(plain, "BMP"), "a palette": encode(plain.convert("P"), "PNG"),
        "a transparent PNG": encode(clear, "PNG"), "a grey PNG": encode(plain.convert("L"), "PNG"),
    }


FORMATS = formats()
