# SPDX-License-Identifier: Apache-2.0
"""calls.py [FIXTURE]: reads the sampled calls of tests/fixtures/tool_arguments.json with SGLang's own parsers, whole and streamed.

A row without `decision` must be what SGLang reads in one of the two ways: where they differ, the one that keeps the sampled text is right.
A row with `decision` must not be what it reads in both. It needs the environment of an SGLang (setup.sh), no server.
"""
from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import sglang.version
from sglang.srt.entrypoints.openai.protocol import Tool
from sglang.srt.function_call.function_call_parser import FunctionCallParser

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from compatibility import record_passed  # noqa: E402

FIXTURE = Path(__file__).resolve().parent.parent / "fixtures" / "tool_arguments.json"
# the markers that are tokens arrive as a whole
PIECES = re.compile(r"</?(?:minimax:)?tool_call>|｜DSML｜|.", re.DOTALL)
Reading = tuple[str, list[tuple[str, Any]]]


def parsed(arguments: str) -> Any:
    """The value of the arguments; the text itself if it is not JSON."""
    try:
        return json.loads(arguments)
    except ValueError:
        return arguments


def whole(parser: str, tools: list[Tool], text: str) -> Reading:
    content, calls = FunctionCallParser(tools, parser).parse_non_stream(text)
    return content, [(call.name or "", parsed(call.parameters)) for call in calls]


def streamed(parser: str, tools: list[Tool], text: str) -> Reading:
    """One token or character at a time, as the slowest stream."""
    stream = FunctionCallParser(tools, parser)
    content, calls = "", []
    for piece in PIECES.findall(text):
        more, items = stream.parse_stream_chunk(piece)
        content += more
        for item in items:
            if item.name:
                calls.append([item.name, ""])
            if item.parameters and calls:
                calls[-1][1] += item.parameters
    return content, [(name, parsed(arguments)) for name, arguments in calls]


def main() -> int:
    fixture = json.loads(Path(sys.argv[1] if len(sys.argv) > 1 else FIXTURE).read_text())
    tools = [Tool(**tool) for tool in fixture["tools"]]
    failed = 0
    for row in fixture["rows"]:
        ours = (row["content"], [(name, json.loads(arguments)) for name, arguments in row["calls"]])
        theirs = {read.__name__: read(row["parser"], tools, row["sampled"]) for read in (whole, streamed)}
        exact = [how for how, reading in theirs.items() if reading == ours]
        # white space around the text does not count
        agrees = [how for how, (content, calls) in theirs.items() if (content.strip(), calls) == ours]
        if len(exact) == 2 if "decision" in row else not agrees:
            failed += 1
            print(f"FAIL {row['parser']}: {row['case']}: ours {ours}, SGLang {theirs}")
        else:
            print(f"ok   {row['parser']}: {row['case']}: {row.get('decision') or ' and '.join(agrees)}")
    if not failed and len(sys.argv) == 1:
        record_passed("SGLang", sglang.version.__version__, "make real-calls")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
