# SPDX-License-Identifier: Apache-2.0
"""The reference: the processor of transformers, and the served weights over the same tokens and pixels, in float64."""
import io

import torch
import transformers
from PIL import Image

torch.set_num_threads(1)
transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()


class Weights:
    def __init__(self, folder):
        self.processor = transformers.AutoProcessor.from_pretrained(folder)
        self.model = transformers.AutoModelForImageTextToText.from_pretrained(folder, dtype=torch.float64).eval()
        self.start, self.pad, self.end = (
            self.processor.tokenizer.convert_tokens_to_ids(f"<|{name}|>") for name in ("vision_start", "image_pad", "vision_end"))

    def encode(self, text):
        return self.processor.tokenizer(text, add_special_tokens=False).input_ids

    def pixels(self, pictures):
        opened = [Image.open(io.BytesIO(picture)) for picture in pictures]
        return self.processor.image_processor(images=opened, return_tensors="pt")

    def tokens(self, picture):
        """The number of tokens of a picture: its patches in time, height and width, over those that are merged."""
        [grid] = self.pixels([picture])["image_grid_thw"]
        return int(grid.prod()) // self.processor.image_processor.merge_size**2

    def expand(self, ids, pictures):
        """The ids with a run in place of each placeholder, and the range of each run."""
        expanded, spans, left = [], [], list(pictures)
        for token in ids:
            count = self.tokens(left.pop(0)) if token == self.pad and left else 1
            if token == self.pad:
                spans.append((len(expanded), len(expanded) + count))
            expanded += [token] * count
        return expanded, spans

    def logits(self, ids, pictures, positions):
        """The logits from which the tokens at these positions of the expanded ids were sampled: [positions, vocabulary]."""
        tokens = torch.tensor([ids])
        pixels = self.pixels(pictures)
        with torch.no_grad():
            hidden = self.model.model(
                input_ids=tokens, pixel_values=pixels["pixel_values"].double(), image_grid_thw=pixels["image_grid_thw"],
                mm_token_type_ids=(tokens == self.pad).int(),
            ).last_hidden_state[0]
            return self.model.lm_head(hidden[[position - 1 for position in positions]])


def entropy(logits, temperature):
    """In nats."""
    logp = torch.log_softmax(logits / temperature, -1)
    return -(logp.exp() * logp).nan_to_num(0).sum(-1)
