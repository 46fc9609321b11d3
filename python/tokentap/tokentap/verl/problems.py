"""What can keep entropies from a batch."""

from __future__ import annotations


class EntropyProblem(ValueError):
    """A batch that would hold entropies which are not those of its tokens; `hint` says what to do."""

    hint = "This is a defect of tokentap.verl or of the agent loop; no batch was made."

    def __str__(self) -> str:
        return f"{super().__str__()} ({self.hint})"


class Unaligned(EntropyProblem):
    """A trained token which no generation through tokentap sampled at this place."""

    hint = "An agent loop must get every token of response mask 1 from its server_manager, in order."


class MissingEntropy(EntropyProblem):
    """A trained token without entropy."""

    hint = "The reason is tokentap's, see its README; `missing_entropy: mask` takes such tokens out of the training."


class NoEntropies(EntropyProblem):
    """A row of a batch that another agent loop made."""

    hint = "Name tokentap_agent or tokentap_tool_agent in agent_name or default_agent_loop."
