# SPDX-License-Identifier: Apache-2.0
"""Makes tokenizer.json and tokenizer_config.json from corpus.txt.

A byte-level BPE of VOCAB_SIZE entries, special tokens last. Run it in this
folder after changing the corpus (`pip install tokenizers`), and check in what
it writes: the model is trained at start, the tokenizer is not.
"""

import json
import pathlib
import re

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

HERE = pathlib.Path(__file__).parent
VOCAB_SIZE = 1024

# As in Qwen3: the turn markers are special (skip_special_tokens hides them), the
# tags a parser looks for are added tokens which stay in the text.
SPECIAL = ["<|im_start|>", "<|im_end|>"]
TAGS = ["<think>", "</think>", "<tool_call>", "</tool_call>"]


def main():
    text = (HERE / "corpus.txt").read_text(encoding="utf-8")
    pieces = re.split("|".join(map(re.escape, SPECIAL + TAGS)), text)

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE - len(SPECIAL) - len(TAGS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(pieces, trainer)
    tokenizer.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in SPECIAL])
    tokenizer.add_tokens([AddedToken(token, normalized=False, special=False) for token in TAGS])
    size = tokenizer.get_vocab_size()
    assert size == VOCAB_SIZE, f"the corpus gives {size} entries, not {VOCAB_SIZE}"

    # One line: a table of merges is data, and its diff is not reviewed.
    (HERE / "tokenizer.json").write_text(tokenizer.to_str(pretty=False) + "\n", encoding="utf-8")
    config = {
        "add_bos_token": False,
        "add_prefix_space": False,
        "bos_token": None,
        "clean_up_tokenization_spaces": False,
        "eos_token": "<|im_end|>",
        "model_max_length": 4096,
        "pad_token": "<|im_end|>",
        "tokenizer_class": "PreTrainedTokenizerFast",
        "unk_token": None,
    }
    text = json.dumps(config, indent=2, ensure_ascii=False)
    (HERE / "tokenizer_config.json").write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
