# SPDX-License-Identifier: Apache-2.0
"""rendered.py MODEL_DIR: reads conversations as JSON from standard input and prints their ids, rendered by transformers with the model's
chat template. The arguments of tool calls are passed as objects, as SGLang does."""
import json
import sys

from transformers import AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained(sys.argv[1])
for case in json.load(sys.stdin):
    for message in case["messages"]:
        for call in message.get("tool_calls") or []:
            call["function"]["arguments"] = json.loads(call["function"]["arguments"])
    # rendered to text and then encoded, because the return type of apply_chat_template differs between versions
    text = tokenizer.apply_chat_template(case["messages"], tools=case.get("tools"), tokenize=False, add_generation_prompt=True,
                                         **case.get("chat_template_kwargs", {}))
    print(json.dumps(tokenizer.encode(text, add_special_tokens=False)))
