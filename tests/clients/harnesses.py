# SPDX-License-Identifier: Apache-2.0
"""The agents: programs that run tools themselves. Each does an errand without a terminal."""

from __future__ import annotations

import json
from typing import Any

from clients import PRICES, Client
from script import Tasks, errand, steps, thought, tool_call


def program(name: str, environments: str, api: str, tasks: Tasks, script: str, **more: Any) -> Client:
    """A command-line agent; its script starts it and checks its result."""
    return Client(name, environments, api, ["bash", f"{{here}}/agents/{script}.sh"], steps(tasks), **more)


def pair(shell: str, argument: str = "command", **more: Any) -> str:
    """Two calls of a shell in one reply."""
    commands = ("echo one", "cat note.txt")
    return "\n".join(tool_call(shell, **{argument: command}, **more) for command in commands)


CLAUDE_CODE = errand(
    write=tool_call("Write", file_path="$WORK/note.txt", content="Tromsø: 🌧\n"),
    failing=tool_call("Read", file_path="$WORK/missing.txt"),
    pair=pair("Bash"),
    edit=tool_call("Edit", file_path="$WORK/note.txt", old_string="Tromsø", new_string="Bergen", replace_all=False),
    read=tool_call("Read", file_path="$WORK/note.txt"),
)
# it returns an edit without `replace_all` with the default of that argument
CLAUDE_CODE_EDITS = {
    "Write a note.": [
        tool_call("Write", file_path="$WORK/note.txt", content="Tromsø: 🌧\n"),
        thought("An edit.", tool_call("Edit", file_path="$WORK/note.txt", old_string="Tromsø", new_string="Bergen")),
        "The note is in place.",
    ],
}
# calls that it returns without white space at line ends, without `cd`, and with a number for a string
CLAUDE_CODE_REWRITES = {
    "Write a note.": [
        tool_call("Write", file_path="$WORK/note.txt", content="Tromsø: 🌧  \n"),
        tool_call("Bash", command="cd $WORK && cat note.txt"),
        tool_call("Read", file_path="$WORK/note.txt", offset="1"),
        tool_call("Edit", file_path="$WORK/note.txt", old_string="Tromsø", new_string="Bergen", replace_all=False),
        "The note is in place.",
    ],
}
# a call whose JSON ends too early
BROKEN = '<tool_call>\n{"name": "NAME", "arguments": {"command": "echo broken"\n</tool_call>'
CLAUDE_CODE_BREAKS = {
    "Break a call.": [BROKEN.replace("NAME", "Bash"), tool_call("Bash", command="echo whole"), "It is whole."],
}
SUMMARY = "The user asked for a note about the weather; the agent wrote it."
CLAUDE_CODE_COMPACTS = CLAUDE_CODE | {
    "Your task is to create a detailed summary": [
        f"<analysis>\nShort.\n</analysis>\n\n<summary>\n{SUMMARY}\n</summary>",
    ],
    "This session is being continued": ["The note is in place."],
}
CLAUDE_CODE_DELEGATES = {
    "Ask an agent.": [
        thought(
            "An agent can.",
            tool_call(
                "Agent",
                description="Counts words",
                prompt="Count the words of the note.",
                subagent_type="general-purpose",
                run_in_background=False,
            ),
        ),
        "Two words.",
    ],
    "Count the words of the note.": [thought("A shell can.", tool_call("Bash", command="echo 2")), "I counted two."],
}
CLAUDE_CODE_SEARCHES = {
    "Find a tool.": [
        tool_call("ToolSearch", query="select:WebFetch", max_results=1),
        tool_call("Bash", command="echo found"),
        "It is there.",
    ],
}
# pictures of a tool, alone and two at once, and of a message
CLAUDE_CODE_LOOKS = {
    "Look at the page.": [
        thought("A picture shows it.", tool_call("Read", file_path="$WORK/screen-1.png")),
        tool_call("Bash", command="echo clicked"),
        "\n".join(tool_call("Read", file_path=f"$WORK/screen-{at}.png") for at in (2, 3)),
        "The page has a form.",
    ],
    "Is it sent?": [thought("It may be.", tool_call("Bash", command="echo sent")), "It is sent."],
}

CODEX = errand(
    write=tool_call("exec_command", cmd="echo 'Tromsø: 🌧' >note.txt"),
    failing=tool_call("exec_command", cmd="cat missing.txt"),
    pair=pair("exec_command", "cmd"),
    edit=tool_call(
        "exec_command",
        cmd="apply_patch <<'END'\n*** Begin Patch\n*** Update File: note.txt\n"
        "@@\n-Tromsø: 🌧\n+Bergen: 🌧\n*** End Patch\nEND\n",
    ),
    read=tool_call("exec_command", cmd="cat note.txt"),
)

CODEX_DELEGATES = {
    "Ask an agent.": [
        thought("An agent can.", tool_call("multi_agent_v1__spawn_agent", message="Count the words of the note.")),
        # the sub-agent works at the same time
        tool_call("exec_command", cmd="sleep 3"),
        "Two words.",
    ],
    "Count the words of the note.": [thought("Two.", "I counted two.")],
}
CODEX_COMPACTS = {
    "Count far.": [
        tool_call("exec_command", cmd="seq 1 3000"),
        tool_call("exec_command", cmd="echo 'counted far'"),
    ],
    "CONTEXT CHECKPOINT COMPACTION": [SUMMARY],
    "Another language model started": ["It is counted."],
}
# a picture of the first message, of a tool, and of a later message
CODEX_LOOKS = {
    "Look at the page.": [
        thought("There is a form.", tool_call("exec_command", cmd="echo clicked")),
        tool_call("view_image", path="$WORK/screen-2.png"),
        "The page has a form.",
    ],
    "Is it sent?": [tool_call("exec_command", cmd="echo sent"), thought("It says so.", "It is sent.")],
}

CONTINUE = errand(
    write=tool_call("Write", filepath="$WORK/note.txt", content="Tromsø: 🌧\n"),
    failing=tool_call("Read", filepath="$WORK/missing.txt"),
    # it edits only a file that it has read
    pair=tool_call("Bash", command="echo one") + "\n" + tool_call("Read", filepath="$WORK/note.txt"),
    edit=tool_call("Edit", file_path="$WORK/note.txt", old_string="Tromsø", new_string="Bergen"),
    read=tool_call("Read", filepath="$WORK/note.txt"),
)

COPILOT = errand(
    write=tool_call("create", path="$WORK/note.txt", file_text="Tromsø: 🌧\n"),
    failing=tool_call("view", path="$WORK/missing.txt"),
    pair=pair("bash", description="Looks"),
    edit=tool_call("edit", path="$WORK/note.txt", old_str="Tromsø", new_str="Bergen"),
    read=tool_call("view", path="$WORK/note.txt"),
)

MINI_SWE_AGENT = errand(
    write=tool_call("bash", command="echo 'Tromsø: 🌧' >note.txt"),
    failing=tool_call("bash", command="cat missing.txt"),
    pair=pair("bash"),
    edit=tool_call("bash", command="sed -i s/Tromsø/Bergen/ note.txt"),
    read=tool_call("bash", command="cat note.txt"),
    last=tool_call("bash", command="echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"),
)

OPENCODE = errand(
    write=tool_call("write", filePath="$WORK/note.txt", content="Tromsø: 🌧\n"),
    failing=tool_call("read", filePath="$WORK/missing.txt"),
    pair=pair("bash", description="Looks"),
    edit=tool_call("edit", filePath="$WORK/note.txt", oldString="Tromsø", newString="Bergen"),
    read=tool_call("read", filePath="$WORK/note.txt"),
)

PI = errand(
    write=tool_call("write", path="note.txt", content="Tromsø: 🌧\n"),
    failing=tool_call("read", path="missing.txt"),
    pair=pair("bash"),
    edit=tool_call("edit", path="note.txt", edits=[{"oldText": "Tromsø", "newText": "Bergen"}]),
    read=tool_call("read", path="note.txt"),
)

QWEN_CODE = errand(
    write=tool_call("write_file", file_path="$WORK/note.txt", content="Tromsø: 🌧\n"),
    failing=tool_call("read_file", file_path="$WORK/missing.txt"),
    pair=pair("run_shell_command", is_background=False),
    edit=tool_call("edit", file_path="$WORK/note.txt", old_string="Tromsø", new_string="Bergen"),
    read=tool_call("read_file", file_path="$WORK/note.txt"),
)


VERIFIERS = errand(
    write=tool_call("bash", command="echo 'Tromsø: 🌧' >note.txt"),
    failing=tool_call("bash", command="cat missing.txt"),
    pair=pair("bash"),
    edit=tool_call("bash", command="sed -i s/Tromsø/Bergen/ note.txt"),
    read=tool_call("bash", command="cat note.txt"),
)


def terminus(*commands: str, done: bool = False) -> str:
    """A reply of Terminus 2: keystrokes in JSON, without tool calls."""
    keys = [{"keystrokes": f"{command}\n", "duration": 0.1} for command in commands]
    return json.dumps(
        {"analysis": "Short.", "plan": "Go on.", "commands": keys, "task_complete": done}, ensure_ascii=False
    )


# it asks again before it ends
TERMINUS = {
    "Write a note.": [
        thought("A shell can.", terminus("echo 'Tromsø: 🌧' >note.txt")),
        terminus("cat missing.txt"),
        thought("Two at once.", terminus("echo one", "cat note.txt")),
        terminus("sed -i s/Tromsø/Bergen/ note.txt"),
        terminus(done=True),
        thought("It is.", terminus(done=True)),
    ]
}


OPENCODE_DELEGATES = {
    "Ask an agent.": [
        thought(
            "An agent can.",
            tool_call(
                "task", description="Counts words", prompt="Count the words of the note.", subagent_type="general"
            ),
        ),
        "Two words.",
    ],
    "Count the words of the note.": [
        thought("A shell can.", tool_call("bash", command="echo 2", description="Counts")),
        "I counted two.",
    ],
}


OPENCODE_BREAKS = {
    "Break a call.": [
        tool_call("shell", command="echo unknown"),
        BROKEN.replace("NAME", "bash"),
        tool_call("bash", command="echo whole", description="Looks"),
        "It is whole.",
    ],
}


def opencode(name: str, api: str, tasks: Tasks = OPENCODE, least_turns: int = 7, **more: Any) -> Client:
    env = {"CLIENT_NO_TITLE": "true"} | more.pop("env", {})
    return program(f"opencode{name}", "npm", api, tasks, "opencode", env=env, least_turns=least_turns, **more)


def qwen_code(name: str, api: str, **more: Any) -> Client:
    return program(f"qwen-code{name}", "npm", api, QWEN_CODE, "qwen_code", least_turns=7, **more)


def mini_swe_agent(name: str, api: str) -> Client:
    return program(f"mini-swe-agent{name}", "litellm", api, MINI_SWE_AGENT, "mini_swe_agent", least_turns=5)


def claude_code(name: str, tasks: Tasks, *lines: str, env: dict[str, str] | None = None, **more: Any) -> Client:
    """Claude Code with tasks, each as a line TASK:ANSWER."""
    env = {"CLIENT_TASKS": "\n".join(lines)} | (env or {})
    return program(f"claude-code{name}", "claude", "messages", tasks, "claude_code", env=env, **more)


def codex(name: str, tasks: Tasks, *lines: str, env: dict[str, str] | None = None, **more: Any) -> Client:
    """Codex with tasks, each as a line TASK:ANSWER or TASK:ANSWER:PICTURE."""
    env = {"CLIENT_TASKS": "\n".join(lines)} | (env or {})
    return program(f"codex{name}", "npm", "responses", tasks, "codex", env=env, **more)


WRITES, READS = "Write a note.:The note is in place.", "Read it again.:It still rains."
WRITTEN = {"CLIENT_WRITES": "true"}

AGENTS: list[Client] = [
    claude_code("", CLAUDE_CODE, WRITES, READS, env=WRITTEN, least_turns=7),
    claude_code(
        "-without-thinking", CLAUDE_CODE, WRITES, READS, env=WRITTEN | {"MAX_THINKING_TOKENS": "0"}, least_turns=7
    ),
    claude_code("-default-arguments", CLAUDE_CODE_EDITS, WRITES, env=WRITTEN, least_turns=3),
    claude_code(
        "-rewrites-calls",
        CLAUDE_CODE_REWRITES,
        WRITES,
        env=WRITTEN,
        least_turns=5,
    ),
    # a call whose JSON ends too early comes back with the text in another argument
    claude_code("-breaks-call", CLAUDE_CODE_BREAKS, "Break a call.:It is whole.", least_turns=3),
    # a sub-agent has another conversation in the same session
    claude_code(
        "-delegates",
        CLAUDE_CODE_DELEGATES,
        "Ask an agent.:Two words.",
        least_turns=4,
    ),
    # the call for the summary leaves out the latest messages, which follow the summary
    claude_code(
        "-compacts",
        CLAUDE_CODE_COMPACTS,
        WRITES,
        "/compact:",
        READS,
        env=WRITTEN,
        least_turns=8,
    ),
    # its window is shorter than the conversation, so that it compacts the conversation while it works
    claude_code(
        "-overflows",
        CLAUDE_CODE_COMPACTS,
        WRITES,
        env={"CLAUDE_CODE_MAX_CONTEXT_TOKENS": "40000", "CLAUDE_CODE_AUTO_COMPACT_WINDOW": "30000"},
        least_turns=3,
    ),
    # a tool that it searched for is added to the list of tools
    claude_code(
        "-searches-tools",
        CLAUDE_CODE_SEARCHES,
        "Find a tool.:It is there.",
        least_turns=3,
    ),
    claude_code(
        "-looks",
        CLAUDE_CODE_LOOKS,
        "Look at the page.:The page has a form.",
        "Is it sent? @screen-4.png:It is sent.",
        screenshots=4,
        least_turns=6,
        limit_seconds=240,
    ),
    # the proxy turns Messages into Responses
    program(
        "claude-code-litellm-proxy",
        "claude frameworks",
        "responses",
        CLAUDE_CODE,
        "litellm_proxy",
        env=WRITTEN | {"CLIENT_TASKS": f"{WRITES}\n{READS}"},
        least_turns=7,
        limit_seconds=240,
    ),
    codex("", CODEX, WRITES, READS, env=WRITTEN, least_turns=7),
    codex("-delegates", CODEX_DELEGATES, "Ask an agent.:Two words.", least_turns=4),
    # the call for the summary has no tools
    codex(
        "-compacts",
        CODEX_COMPACTS,
        "Count far.:It is counted.",
        env={"CLIENT_COMPACTS_AT": "24000"},
        least_turns=4,
    ),
    codex(
        "-looks",
        CODEX_LOOKS,
        "Look at the page.:The page has a form.:screen-1.png",
        "Is it sent?:It is sent.:screen-3.png",
        screenshots=3,
        least_turns=5,
    ),
    opencode("", "chat"),
    # opencode also generates a title for the conversation, in the same session
    opencode("-titled", "chat", env={"CLIENT_NO_TITLE": "false"}, least_turns=8),
    opencode("-messages", "messages"),
    opencode("-responses", "responses"),
    opencode(
        "-delegates",
        "messages",
        OPENCODE_DELEGATES,
        env={"CLIENT_TASK": "Ask an agent.", "CLIENT_ANSWER": "Two words."},
        least_turns=4,
    ),
    # a malformed call, and a call of an unknown tool, come back as calls of another tool
    opencode(
        "-breaks-calls",
        "chat",
        OPENCODE_BREAKS,
        env={"CLIENT_TASK": "Break a call.", "CLIENT_ANSWER": "It is whole."},
        least_turns=4,
    ),
    # its prompts start with a fixed exchange: a first message and its greeting
    qwen_code("", "chat"),
    # a continuing process starts its prompt with a new listing of the folder
    qwen_code("-continued", "chat", env={"CLIENT_CONTINUES": "true"}),
    qwen_code("-messages", "messages"),
    program("pi", "npm", "chat", PI, "pi", least_turns=7),
    program("copilot", "npm", "chat", COPILOT, "copilot", least_turns=7),
    program("copilot-responses", "npm", "responses", COPILOT, "copilot", least_turns=7),
    program("continue", "npm", "chat", CONTINUE, "continue", least_turns=7),
    Client(
        "terminus",
        "python312",
        "chat",
        ["{tools}/python312/bin/python", "{here}/agents/terminus.py"],
        steps(TERMINUS),
        env=PRICES,
    ),
    program("verifiers", "verifiers", "chat", VERIFIERS, "verifiers", least_turns=5),
    mini_swe_agent("", "chat"),
    mini_swe_agent("-responses", "responses"),
]
