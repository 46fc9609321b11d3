# SPDX-License-Identifier: Apache-2.0
"""prompt_log.py LOG [server arguments]: starts SGLang and appends the token ids of each prompt, a JSON list per line, to the file LOG.

SGLang's own endpoints for Messages and Responses do not report the ids of their prompts.
"""
import json
import runpy
import sys


def main() -> None:
    log = sys.argv.pop(1)
    from sglang.srt.managers.tokenizer_manager import TokenizerManager

    tokenize = TokenizerManager._tokenize_one_request

    async def logged(self, obj):
        tokenized = await tokenize(self, obj)
        with open(log, "a") as out:
            out.write(json.dumps(list(tokenized.input_ids)) + "\n")
        return tokenized

    TokenizerManager._tokenize_one_request = logged
    runpy.run_module("sglang.launch_server", run_name="__main__")


if __name__ == "__main__":
    main()
