# SPDX-License-Identifier: Apache-2.0
"""Export conversations with pictures and read them with the trainers' own libraries.

    pictures.py TOKENTAP

TOKENTAP is the binary. It runs before an engine of this script, which expands the placeholder of each picture to as many
tokens as the image processor of Qwen2.5-VL in transformers makes, with a limit of pixels on its command line. The batch has a
row with pictures in two turns, and one of text. Prints `ok|skip|FAIL name detail` for each reader, and exits 1 if any line has
FAIL.
"""
import argparse
import base64
import http.server
import io
import json
import os
import pathlib
import sys
import tempfile
import threading
import time
import traceback

from read import Skip, Wrong, load, need, same

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "python" / "tokentap"))

START, PAD, END = 1024, 1025, 1026
SAMPLED = [10, 11, 12]
SETTINGS = {"patch_size": 14, "merge_size": 2, "temporal_patch_size": 2, "min_pixels": 3136, "max_pixels": 262144,
            "processor_class": "Processor", "image_processor_type": "Qwen2VLImageProcessorPil"}  # fmt: skip
# Fewer pixels than the pictures have: a trainer with the settings of the model makes other tokens. Both members are
# needed, transformers ignores one alone.
OVERRIDES = {"min_pixels": 3136, "max_pixels": 12544}


class Processor:
    """The interface of a processor of transformers, with its image processor and a tokenizer of one token a byte."""

    image_token, image_token_id, video_token_id = "<|image_pad|>", PAD, PAD + 2

    def __init__(self, settings=None):
        image_processor = load("verl", "transformers", "Qwen2VLImageProcessorPil")
        self.image_processor = image_processor.from_dict(dict(settings or {"patch_size": 14}))
        transformers = load("verl", "transformers", None)
        text = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1, "vocab_size": 1100,
            "bos_token_id": 0, "eos_token_id": 0,
                "rope_scaling": {"rope_type": "default", "mrope_section": [1, 1, 2]}}  # fmt: skip
        vision = {"depth": 1, "hidden_size": 16, "num_heads": 2, "out_hidden_size": 16, "spatial_merge_size": 2}
        config = transformers.Qwen2_5_VLConfig(text_config=text, vision_config=vision, image_token_id=PAD)
        import torch

        with torch.device("meta"):
            # as verl binds it
            self.get_rope_index = transformers.Qwen2_5_VLModel(config).get_rope_index

    def __call__(self, text, images, return_tensors, images_kwargs):
        import torch

        made = dict(self.image_processor(images=images, return_tensors=return_tensors, **images_kwargs))
        counts = iter((made["image_grid_thw"].prod(dim=1) // self.image_processor.merge_size**2).tolist())
        first, *rest = text[0].split(self.image_token)
        ids = [7] * len(first)
        for part in rest:
            ids += [PAD] * next(counts) + [7] * len(part)
        return {**made, "input_ids": torch.tensor([ids]), "attention_mask": torch.ones(1, len(ids), dtype=torch.long)}


class Engine(http.server.BaseHTTPRequestHandler):
    """Answers as SGLang 0.5.23 does, as far as tokentap asks."""

    protocol_version = "HTTP/1.1"
    processor = None

    def log_message(self, *_):
        pass

    def do_GET(self):
        info = {"model_path": "tiny", "tokenizer_path": "tiny", "is_generation": True, "weight_version": "1", "version": "0.5.23",
                "mm_process_config": {"image": OVERRIDES}, "image_processor_backend": "pil"}  # fmt: skip
        models = {"object": "list", "data": [{"id": "tiny", "object": "model", "max_model_len": 4096}]}
        self.answer(models if self.path == "/v1/models" else info)

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["content-length"])) or b"{}")
        if self.path != "/generate" or "input_ids" not in body:
            return self.answer({"error": {"message": "not here"}}, 400)
        pictures = body.get("image_data") or []
        prompt = expanded(body["input_ids"], made(pictures)["image_grid_thw"] if pictures else None)
        meta = {"id": body.get("rid", "r"), "finish_reason": {"type": "stop"}, "prompt_tokens": len(prompt),
                "completion_tokens": len(SAMPLED), "weight_version": "1", "image_tokens": prompt.count(PAD),
                "output_token_logprobs": [[-0.5, one, None] for one in SAMPLED]}  # fmt: skip
        echo = {"prompt_token_ids": prompt} if body.get("return_prompt_token_ids") else {}
        self.answer({"text": "", "output_ids": SAMPLED, "meta_info": meta, **echo})

    def answer(self, value, status=200):
        data = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


def made(uris):
    """The tensors of pictures by the engine's processor."""
    import PIL.Image

    pictures = [PIL.Image.open(io.BytesIO(base64.b64decode(uri.partition(",")[2]))).convert("RGB") for uri in uris]
    text = ["\n".join([Processor.image_token] * len(pictures))]
    return Engine.processor(text, pictures, "pt", OVERRIDES)


def expanded(ids, grids):
    """The ids with the tokens of each picture: one of four patches."""
    counts = iter([] if grids is None else (grids.prod(dim=1) // 4).tolist())
    return [token for one in ids for token in ([PAD] * next(counts) if one == PAD else [one])]


def screenshot(width, height, seed):
    """A data URI of a PNG of random blocks."""
    import numpy as np
    import PIL.Image

    blocks = np.random.default_rng(seed).integers(0, 256, (height // 8, width // 8, 3), dtype=np.uint8)
    out = io.BytesIO()
    PIL.Image.fromarray(blocks).resize((width, height), PIL.Image.NEAREST).save(out, "PNG")
    return "data:image/png;base64," + base64.b64encode(out.getvalue()).decode()


def converse(client):
    """The rows of two sessions, and the tensors of the pictures of the first."""
    pictures = [screenshot(160, 96, 1), screenshot(224, 224, 2)]
    ids = [1, START, PAD, END, 2]
    client.generate(input_ids=ids, image_data=pictures[:1], session="pictures", return_logprob=True)
    ids += [*SAMPLED, 3, START, PAD, END, 4]
    client.generate(input_ids=ids, image_data=pictures, session="pictures", return_logprob=True)
    client.generate(input_ids=[5, 6], session="text", return_logprob=True)
    truth = made(pictures)
    return [expanded([*ids, *SAMPLED], truth["image_grid_thw"]), [5, 6, *SAMPLED]], truth


def positions(ids, grids):
    """The positions [4, tokens] by the definition: of the text, and in three dimensions, where a picture has rows and columns."""
    found, at, grids = [], 0, iter(grids)
    while len(found) < len(ids):
        if ids[len(found)] != PAD:
            found.append([len(found), at, at, at])
            at += 1
            continue
        _, height, width = next(grids)
        height, width = height // 2, width // 2
        found += [[len(found) + row * width + column, at, at + row, at + column] for row in range(height) for column in range(width)]
        at += max(height, width)
    return [list(one) for one in zip(*found)]


def check_inputs(inputs, truth, name):
    import torch

    for key in ("pixel_values", "image_grid_thw"):
        need(torch.equal(inputs[key], truth[key]), "%s of %s differ from those of the engine's processor", key, name)


def read_verl(client, rows, truth):
    DataProto = load("torch verl", "verl.protocol", "DataProto")
    extract = load("torch verl", "verl.utils.model", "extract_multi_modal_inputs")
    import numpy as np
    from tokentap import images

    processor = Processor()
    batch = images.verl(client.samples(["pictures", "text"], "verl", images="embed").torch(), processor)
    table = {}
    for key, values in batch.non_tensor_batch.items():
        # as verl's agent loop
        table[key] = np.empty(len(values), dtype=object)
        table[key][:] = values
    data = DataProto.from_dict(tensors=batch.tensors, non_tensors=table)
    check_inputs(extract(list(data.non_tensor_batch["multi_modal_inputs"])), truth, "the batch")
    grids = truth["image_grid_thw"].tolist()
    for at, row in enumerate(rows):
        mask = data.batch["attention_mask"][at].bool()
        same(data.batch["input_ids"][at][mask].tolist(), row, "row %d input_ids" % at)
        same(data.batch["position_ids"][at][:, mask].tolist(), positions(row, grids if PAD in row else []), "row %d position_ids" % at)
    # a micro batch of text alone
    need(extract(list(data.non_tensor_batch["multi_modal_inputs"][1:])) == {}, "a row of text has inputs")
    need([len(one.get("images", ())) for one in data.non_tensor_batch["multi_modal_data"]] == [2, 0], "multi_modal_data")
    return "DataProto and extract_multi_modal_inputs, %d rows" % len(data)


def read_slime(client, rows, truth):
    Sample = load("torch miles", "miles.utils.types", "Sample")
    from tokentap import images

    samples = client.samples(["pictures", "text"], "slime", images="embed").json()["samples"]
    processor = Processor()
    for at, (sample, row) in enumerate(zip(samples, rows, strict=True)):
        check_sample(Sample.from_dict(images.slime(sample, processor)), row, truth, "row %d" % at)
    return "Sample, %d samples" % len(samples)


def read_miles(client, rows, truth):
    Sample = load("torch miles", "miles.utils.types", "Sample")
    from safetensors.torch import load as tensors_of
    from tokentap import images

    body, fields = images.miles(client.samples(["pictures", "text"], "miles", images="embed"), Processor())
    tensors = tensors_of(body)
    metas = json.loads(tensors.pop("_samples_meta").numpy().tobytes())["samples"]
    for at, (meta, more, row) in enumerate(zip(metas, fields, rows, strict=True)):
        taken = {key: tensors.pop("%s.%d" % (key, at)).tolist() for key in ("tokens", "loss_mask", "rollout_log_probs")}
        names = ("response", "response_length", "status", "metadata")
        check_sample(Sample.from_dict({**taken, **{key: meta[key] for key in names if key in meta}, **more}), row, truth, "row %d" % at)
    need(not tensors, "tensors that no sample names: %s", sorted(tensors))
    return "Sample, %d samples" % len(metas)


def check_sample(sample, row, truth, name):
    sample.validate()
    same(sample.tokens, row, name + " tokens")
    if PAD not in row:
        need(not sample.multimodal_train_inputs, "%s of text has inputs", name)
        return
    check_inputs(sample.multimodal_train_inputs, truth, name)
    need(len(sample.multimodal_inputs["images"]) == 2, "%s multimodal_inputs", name)


def read_areal(client, rows, truth):
    load("torch", "torch", None)
    from tokentap import images

    batch = client.samples(["pictures", "text"], "areal", images="embed").torch()
    with_pictures, text = images.areal(batch, Processor())
    check_inputs(with_pictures, truth, "the row")
    need(text == {}, "a row of text has inputs")
    for at, row in enumerate(rows):
        kinds = batch.tensors["mm_token_type_ids"][at][batch.tensors["attention_mask"][at].bool()].tolist()
        same(kinds, [int(one == PAD) for one in row], "row %d mm_token_type_ids" % at)
    return "torch, 2 rows"


def refuse_other_settings(client, _rows, _truth):
    """A processor with the settings of the model alone makes other tokens."""
    from tokentap import SpanMismatch, images

    (row,) = client.samples(["pictures"], "jsonl", images="embed").json()
    known = images.RowImages.of(row)
    need(known.settings["overrides"] == OVERRIDES, "overrides are %s", known.settings["overrides"])
    other = images.RowImages(known.session, known.references, {"processor": SETTINGS, "overrides": {}}, known.embedded)
    try:
        other.inputs(Processor(), row["token_ids"])
    except SpanMismatch as error:
        return str(error)
    raise Wrong("other tokens are accepted")


CHECKS = {"verl": read_verl, "slime": read_slime, "miles": read_miles, "areal": read_areal, "settings": refuse_other_settings}


def wait_for_settings(client):
    """Waits until turns have the settings of the processor. Those before it is read, or before the engine was probed, have none."""
    for attempt in range(100):
        session = "begin-%d" % attempt
        client.generate(input_ids=[START, PAD, END], image_data=[screenshot(32, 32, 0)], session=session, return_logprob=True)
        rows = client.samples([session], "jsonl").json()
        if any(row["image_settings"] and json.loads(row["image_settings"])["processor"] for row in rows):
            return
        time.sleep(0.1)
    raise Wrong("the settings of the processor are not recorded: %s" % rows)


def run(tokentap, folder):
    load("pictures", "PIL.Image", None)
    Engine.processor = Processor(SETTINGS)
    from tokentap import Client, serve

    for name, text in {"tokenizer.json": {}, "preprocessor_config.json": SETTINGS}.items():
        (folder / name).write_text(json.dumps(text))
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Engine)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    upstream = "http://127.0.0.1:%d" % server.server_address[1]
    try:
        with serve(upstream, binary=tokentap, tokenizer=folder) as tap, Client(tap.url, tap.control_url, timeout=60) as client:
            wait_for_settings(client)
            rows, truth = converse(client)
            return [check(name, lambda read=read: read(client, rows, truth)) for name, read in CHECKS.items()]
    finally:
        server.shutdown()


def check(name, read):
    """Whether a check did not fail; prints its line."""
    try:
        word, detail = "ok", read()
    except Skip as error:
        word, detail = "skip", str(error)
    except Exception as error:  # an error of the reader is a result of this check
        traceback.print_exc()
        word, detail = "FAIL", "%s: %s" % (type(error).__name__, error)
    print("%s %s %s" % (word, name, " ".join(detail.split())), flush=True)
    return word != "FAIL"


def main():
    ask = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ask.add_argument("tokentap")
    args = ask.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        try:
            return 0 if all(run(args.tokentap, pathlib.Path(folder))) else 1
        except Skip as error:
            print("skip pictures %s" % error)
            return 0


if __name__ == "__main__":
    # Some of these libraries have threads that block a normal exit.
    code = main()
    sys.stdout.flush()
    os._exit(code)
