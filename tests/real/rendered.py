"""rendered.py MODEL_DIR: conversations as JSON on standard input, their ids on standard output, by transformers and the model's own
chat template, given what SGLang gives it: arguments of calls as objects."""
import json
import sys

from transformers import AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained(sys.argv[1])
for case in json.load(sys.stdin):
    for message in case["messages"]:
        for call in message.get("tool_calls") or []:
            call["function"]["arguments"] = json.loads(call["function"]["arguments"])
    # as text and then as ids, because what apply_chat_template returns has changed over time
    text = tokenizer.apply_chat_template(case["messages"], tools=case.get("tools"), tokenize=False, add_generation_prompt=True,
                                         **case.get("chat_template_kwargs", {}))
    print(json.dumps(tokenizer.encode(text, add_special_tokens=False)))
