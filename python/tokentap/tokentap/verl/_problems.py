# SPDX-License-Identifier: Apache-2.0
"""The errors of the verl adapter."""

from __future__ import annotations


class EntropyProblem(ValueError):
    """The entropies of a batch cannot be assigned to its tokens; `hint` says what to do."""

    hint = "This is a defect of tokentap.verl or of the agent loop; no batch was made."

    def __str__(self) -> str:
        return f"{super().__str__()} ({self.hint})"


class Unaligned(EntropyProblem):
    """No generation through tokentap sampled a trained token at its place."""

    hint = "An agent loop must get every token with response mask 1 from its server_manager, in order."


class MissingEntropy(EntropyProblem):
    """A trained token has no entropy."""

    hint = "docs/reference/reasons.md explains the reason; `missing_entropy: mask` does not train such tokens."


class MissingExperts(EntropyProblem):
    """A reply lacks the routed experts that verl's routing replay needs."""

    hint = "Start SGLang with --enable-return-routed-experts, and verl with the model that it serves."


class NoEntropies(EntropyProblem):
    """Another agent loop made a row of the batch."""

    hint = "Name tokentap_agent or tokentap_tool_agent in agent_name or default_agent_loop."
