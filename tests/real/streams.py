# SPDX-License-Identifier: Apache-2.0
"""Streams: the mode of each member, and the complete reply joined from the events.

A member is cumulative if the last event has its complete value, incremental if each event has only the new part.
The server does not report the mode; 0.5.6 --stream-output mixes them (text and logprobs are cumulative, ids are not)."""
from same import ENTROPY

GROWING = ["output_token_logprobs", "output_top_logprobs", "output_token_ids_logprobs", *ENTROPY[:3]]


def by_index(events):
    out = {}
    for event in events:
        out.setdefault(event.get("index"), []).append(event)
    return [out[i] for i in sorted(out, key=lambda i: i or 0)]


def lists(event):
    meta = event["meta_info"]
    return {"output_ids": event["output_ids"], **{k: meta[k] for k in GROWING if meta.get(k) is not None}}


def modes(events):
    """Whether each member of a generation is cumulative; a member is absent if its mode is unknown, as with a single event."""
    if len(events) < 2:
        return {}
    total = events[-1]["meta_info"]["completion_tokens"]
    grown = {k: len(v) >= total for k, v in lists(events[-1]).items()}
    # an incomplete character is U+FFFD until its last byte arrives
    earlier, text = [e["text"].rstrip("\ufffd") for e in events[:-1]], events[-1]["text"]
    return grown | ({"text": all(map(text.startswith, earlier))} if any(earlier) else {})


def fold(events):
    """One generation in the form of a non-streaming reply."""
    grown, last = modes(events), events[-1]
    out = {k: v for k, v in last.items() if k != "index"} | {"meta_info": dict(last["meta_info"])}
    for key, cumulative in grown.items():
        if cumulative:
            continue
        if key == "text":
            out["text"] = "".join(e["text"] for e in events)
        elif key == "output_ids":
            out["output_ids"] = [x for e in events for x in e["output_ids"]]
        else:
            out["meta_info"][key] = [x for e in events for x in e["meta_info"].get(key) or []]
    return out


def shapes(events):
    """The key sequences that occurred, in unfinished and in finished events, without the entropy members."""
    def keys(e):
        return tuple(e), tuple(k for k in e["meta_info"] if k not in ENTROPY)
    finished = {keys(e) for e in events if e["meta_info"]["finish_reason"]}
    return {keys(e) for e in events if not e["meta_info"]["finish_reason"]}, finished
