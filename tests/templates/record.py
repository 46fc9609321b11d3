#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Record the results of Hugging Face's transformers for every template and conversation.

    record.py [--from target/templates] [--into expected] [--texts FOLDER] [NAME...]

For each template, INTO/NAME.json: its special tokens, and a line for each conversation with the rendered text's
length, sha256 and ids, or the error of rendering. --texts also keeps the texts, for debugging.
"""

import argparse
import datetime
import hashlib
import json
import logging
import re
from pathlib import Path

from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerFast
from transformers.utils import chat_template_utils

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
DEMO = ROOT / "src" / "demo" / "assets"
# a list or a mapping in the form of Python's repr: a template treated it as text
REPR = re.compile(r"\[\{?'\w|\{'\w+': ")


def clock(now):
    """Sets a fixed date for templates that render the current one."""

    class Stopped(datetime.datetime):
        @classmethod
        def now(cls, tz=None):
            return datetime.datetime.fromisoformat(now)

    chat_template_utils.datetime = Stopped


def sha256(text):
    return hashlib.sha256(text.encode("utf-8")).hexdigest()


class Encoder:
    """A tokenizer as transformers loads it: tokenizer.json, and the tokens that tokenizer_config.json adds.

    PreTrainedTokenizerFast uses the file unchanged. The class that AutoTokenizer selects may build another tokenizer
    (for DeepSeek V3, whose config names Llama's class, that one loses spaces)."""

    def __init__(self, folder):
        self.plain = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self.whole = PreTrainedTokenizerFast.from_pretrained(str(folder))
        self.tokens = self.whole.special_tokens_map
        there = {token.content for token in self.plain.get_added_tokens_decoder().values()}
        self.added = {t: i for t, i in sorted(self.whole.get_added_vocab().items(), key=lambda x: x[1]) if t not in there}

    def ids(self, text):
        ids = self.whole.encode(text, add_special_tokens=False)
        same = ids == self.plain.encode(text, add_special_tokens=False).ids
        assert same or self.added, "tokenizer.json alone returns the same ids, unless the config adds tokens"
        return ids


class Template:
    """One template and the tokenizer for its ids."""

    def __init__(self, source, text, encoder):
        self.source, self.text, self.encoder = source, text, encoder
        self.own = source["own"] is True
        self.tokens = encoder.tokens if self.own else source.get("special_tokens", {})

    def render(self, conversation):
        """The text, rendered by the function that apply_chat_template calls. If the tokenizer is the template's own, it is
        compared with apply_chat_template, and so are the ids."""
        asked = {
            "tools": conversation.get("tools"),
            "add_generation_prompt": conversation["add_generation_prompt"],
            "chat_template": self.text,
            **conversation.get("kwargs", {}),
        }
        messages = conversation["messages"]
        (text,), _ = chat_template_utils.render_jinja_template([messages], **asked, **self.tokens)
        if self.own:
            apply = self.encoder.whole.apply_chat_template
            assert text == apply(messages, tokenize=False, **asked), "apply_chat_template renders the same text"
            ids = apply(messages, tokenize=True, return_dict=False, **asked)
            assert ids == self.encoder.ids(text), "apply_chat_template returns the ids of its text"
        return text

    def record(self, conversation):
        try:
            text = self.render(conversation)
        except AssertionError:
            raise
        except Exception as error:  # any exception of a template is recorded
            return None, {"error": type(error).__name__, "message": str(error)}
        ids = self.encoder.ids(text)
        line = {"chars": len(text), "sha256": sha256(text), "count": len(ids)}
        # ids of another model's tokenizer are stored as a hash, which is enough to compare them
        line |= {"ids": ids} if self.source["own"] else {"ids_sha256": sha256(",".join(map(str, ids)))}
        if REPR.search(text):
            line["python_repr"] = True
        return text, line


def templates(fetched, names):
    listed = json.loads((HERE / "sources.json").read_text(encoding="utf-8"))
    encoders = {}

    def encoder(name):
        if name not in encoders:
            encoders[name] = Encoder(DEMO if name == "demo" else fetched / "tokenizers" / name)
        return encoders[name]

    ours = [{"name": "demo", "kind": "synthetic", "tokenizer": "demo", "own": True}]
    ours += [
        {"name": path.stem, "kind": "synthetic", "tokenizer": "demo", "own": False}
        for path in sorted((HERE / "synthetic").glob("*.jinja"))
    ]
    for source in listed["templates"] + ours:
        if names and source["name"] not in names:
            continue
        if source["name"] == "demo":
            text = (DEMO / "chat_template.jinja").read_text(encoding="utf-8")
        else:
            folder = HERE / "synthetic" if source["kind"] == "synthetic" else fetched / source["name"]
            file = f"{source['name']}.jinja" if source["kind"] == "synthetic" else "chat_template.jinja"
            text = (folder / file).read_text(encoding="utf-8")
        yield Template(source, text, encoder(source["tokenizer"]))


def compact(value):
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def write(path, template, lines):
    tokenizer = template.source["tokenizer"] + ("" if template.source["own"] else " (not its own)")
    head = {"template": template.source["name"], "kind": template.source["kind"], "tokenizer": tokenizer}
    head |= {"sha256": sha256(template.text), "special_tokens": template.tokens}
    if template.source["own"] and template.encoder.added:
        head["added_by_config"] = template.encoder.added
    rows = ",\n".join(f"{compact(name)}:{compact(line)}" for name, line in lines.items())
    path.write_text(f'{compact(head)[:-1]},"conversations":{{\n{rows}\n}}}}\n', encoding="utf-8")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--from", dest="fetched", type=Path, default=ROOT / "target" / "templates")
    parser.add_argument("--into", type=Path, default=HERE / "expected")
    parser.add_argument("--texts", type=Path)
    parser.add_argument("names", nargs="*")
    asked = parser.parse_args()
    logging.disable(logging.WARNING)
    recorded = json.loads((HERE / "conversations.json").read_text(encoding="utf-8"))
    clock(recorded["now"])
    asked.into.mkdir(parents=True, exist_ok=True)
    rendered = errors = count = 0
    for template in templates(asked.fetched, asked.names):
        lines = {}
        for conversation in recorded["conversations"]:
            text, lines[conversation["name"]] = template.record(conversation)
            rendered, errors = rendered + (text is not None), errors + (text is None)
            if asked.texts and text is not None:
                path = asked.texts / template.source["name"] / f"{conversation['name']}.txt"
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text, encoding="utf-8", newline="")
        write(asked.into / f"{template.source['name']}.json", template, lines)
        count += 1
    print(f"{count} templates: {rendered} texts, {errors} errors")


if __name__ == "__main__":
    main()
