# SPDX-License-Identifier: Apache-2.0
"""Compare exported pictures with the processor of the model: a conversation with screenshots on a real SGLang.

    export_images.py MODEL --data URL --control URL

MODEL is the folder of the engine's vision model. Needs the Python package tokentap, torch, transformers and Pillow. Prints
a line per check (`ok|FAIL`); exits 1 on any FAIL.
"""
import argparse
import base64
import io
import json
import sys
import uuid

import PIL.Image
import torch
from transformers import AutoConfig, AutoModel, AutoProcessor

from tokentap import Client, SpanMismatch, images

bad = []


def check(name, holds, detail=""):
    bad.extend([] if holds else [name])
    print("ok" if holds else "FAIL", name, detail, flush=True)


def screenshot(width, height, seed):
    """A picture of random rectangles, as PNG."""
    generator = torch.Generator().manual_seed(seed)
    blocks = torch.randint(0, 256, (height // 8, width // 8, 3), generator=generator, dtype=torch.uint8)
    picture = PIL.Image.fromarray(blocks.numpy()).resize((width, height), PIL.Image.NEAREST)
    out = io.BytesIO()
    picture.save(out, "PNG")
    return out.getvalue()


def converse(client, processor, session, pictures):
    """A turn for each group of pictures; returns the ids that were sent and sampled."""
    encode = processor.tokenizer.encode
    frame = encode("<|vision_start|><|image_pad|><|vision_end|>")
    ids, sent = [], []
    for group in pictures:
        ids += encode("<|im_start|>user\n")
        for picture in group:
            ids += frame
            sent.append("data:image/png;base64," + base64.b64encode(picture).decode())
        ids += encode("click<|im_end|>\n<|im_start|>assistant\n")
        sampling = {"max_new_tokens": 5, "ignore_eos": True, "temperature": 1.0, "top_k": 100}
        # a placeholder that the model samples could not be told from a picture
        sampling["logit_bias"] = {str(processor.image_token_id): -100}
        made = client.generate(input_ids=ids, image_data=sent, session=session, sampling_params=sampling, return_logprob=True)
        ids = ids + list(made.output_ids)
    return ids


def main():
    ask = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ask.add_argument("model")
    ask.add_argument("--data", required=True)
    ask.add_argument("--control", required=True)
    args = ask.parse_args()
    processor = AutoProcessor.from_pretrained(args.model)
    processor.config = AutoConfig.from_pretrained(args.model)
    model = AutoModel.from_config(processor.config)
    # verl binds the function to the processor, which newer versions of transformers do not allow
    processor.get_rope_index = model.get_rope_index
    pictures = [screenshot(320, 200, 1), screenshot(96, 64, 2), screenshot(640, 480, 3)]
    session = "pictures-" + uuid.uuid4().hex[:8]
    with Client(args.data, args.control, timeout=600) as client:
        sent = converse(client, processor, session, [pictures[:2], [], pictures[2:]])
        (row,) = client.samples([session], "jsonl", images="embed").json()
        ids, mask = row["token_ids"], row["loss_mask"]
        pad = processor.image_token_id
        collapsed = [one for at, one in enumerate(ids) if one != pad or at == 0 or ids[at - 1] != pad]
        check("ids", collapsed == sent, "%d exported, %d sent" % (len(ids), len(sent)))
        check("loss_mask", sum(mask) == 15 and not any(m for one, m in zip(ids, mask) if one == pad))
        check("entropy", all((h is not None) == bool(m) for h, m in zip(row["entropy"], mask)))
        check("turns of pictures", [one["turn"] for one in row["images"]] == [0, 0, 2])

        of_row = images.RowImages.of(row)
        settings = of_row.settings
        decoded, inputs = of_row.inputs(processor, ids)
        spans = [one.end - one.start for one in of_row.references]
        grids = inputs["image_grid_thw"]
        of_grids = (grids.prod(dim=1) // processor.image_processor.merge_size**2).tolist()
        check("spans", spans == of_grids, "%s tokens, grids %s" % (spans, grids.tolist()))
        # the same by the processor itself, with the text of the whole row
        text = processor.tokenizer.decode(sent[:-5])
        overrides = settings["overrides"] or {}
        own = processor(text=[text], images=decoded, return_tensors="pt", images_kwargs=overrides)
        check("pixel_values", torch.equal(own["pixel_values"], inputs["pixel_values"]), str(tuple(own["pixel_values"].shape)))
        runs = images._runs(own["input_ids"][0].tolist(), pad)
        check("spans of the processor", runs == spans, str(runs))
        # fewer pixels than each of the pictures has
        smaller = {**settings, "overrides": {**overrides, "min_pixels": 1024, "max_pixels": 4096}}
        try:
            images.RowImages(session, of_row.references, smaller, of_row.embedded).inputs(processor, ids)
            check("other settings", False, "not refused")
        except SpanMismatch as error:
            check("other settings", str(spans) in str(error), str(error))
        fetched, _ = images.RowImages.of(client.samples([session], "jsonl").json()[0]).inputs(processor, ids, client.image)
        check("fetched pictures", [one.tobytes() for one in fetched] == [one.tobytes() for one in decoded])

        batch = images.verl(client.samples([session], "verl", images="embed").torch(), processor)
        (made,) = batch.non_tensor_batch["multi_modal_inputs"]
        length = batch.tensors["input_ids"].shape[1]
        check("verl", torch.equal(made["pixel_values"], inputs["pixel_values"])
              and batch.tensors["position_ids"].shape == (1, 4, length) and made["images_seqlens"].sum() == len(made["pixel_values"]))
        (of_areal,) = images.areal(client.samples([session], "areal", images="embed").torch(), processor)
        kinds = client.samples([session], "areal").torch().tensors["mm_token_type_ids"][0]
        check("areal", torch.equal(of_areal["pixel_values"], inputs["pixel_values"])
              and kinds.tolist() == [int(one == pad) for one in ids])
        (sample,) = client.samples([session], "slime", images="embed").json()["samples"]
        sample = images.slime(sample, processor)
        check("slime", torch.equal(sample["multimodal_train_inputs"]["pixel_values"], inputs["pixel_values"]))
        body, (fields,) = images.miles(client.samples([session], "miles", images="embed"), processor)
        check("miles", torch.equal(fields["multimodal_train_inputs"]["pixel_values"], inputs["pixel_values"])
              and b"images." not in body[: int.from_bytes(body[:8], "little")].split(b"_samples_meta")[0], "%d bytes" % len(body))

        # the model runs on what a trainer would give it
        with torch.no_grad():
            out = model(input_ids=batch.tensors["input_ids"], attention_mask=batch.tensors["attention_mask"],
                        pixel_values=made["pixel_values"], image_grid_thw=made["image_grid_thw"],
                        mm_token_type_ids=kinds[None].int())
        check("model", out.last_hidden_state.shape[1] == length)
        print(json.dumps(settings)[:200])
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
