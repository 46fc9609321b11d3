# SPDX-License-Identifier: Apache-2.0
"""The reference entropies: the served weights over the same tokens, float32 forward, float64 softmax, full vocabulary.

`logits` applies what SGLang applies before it reports: penalties, logit_bias, min_new_tokens. top-k, top-p and min-p are not part
of the distribution that logprobs and entropies describe. With the overlap scheduler penalties lag one step: at output t >= 1 the
counted tokens are the last one of the prompt and outputs 0 .. t-2; without it, outputs 0 .. t-1 (measured, 0.5.23).
The repetition penalty is applied after frequency and presence were subtracted. Without the overlap scheduler the order is that of a
Python set of classes, which differs between processes, so each order is tried."""
import itertools

import torch
import transformers

torch.set_num_threads(1)
ORDER = ("frequency", "presence", "repetition")
END = (151645, 151643)  # <|im_end|>, <|endoftext|>


class Weights:
    def __init__(self, directory, lag):
        self.model = transformers.AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32).eval()
        self.tokenizer = transformers.AutoTokenizer.from_pretrained(directory)
        self.lag = lag

    def ids(self, prompt):
        return list(prompt) if not isinstance(prompt, str) else self.tokenizer(prompt).input_ids

    def entropies(self, prompt, output, sampling):
        """Lists of one number per token of `output`, in nats, at the temperature of `sampling` (greedy: 1): one list, or one for each
        order in which the server may have penalised."""
        if not output:
            return [[]]
        temperature = sampling.get("temperature", 1.0)
        temperature = temperature if temperature >= 1e-6 else 1.0
        mixed = sampling.get("repetition_penalty", 1) != 1 and {"frequency_penalty", "presence_penalty"} & set(sampling)
        orders = itertools.permutations(("frequency", "presence", "repetition")) if mixed and not self.lag else [ORDER]
        found = []
        for order in orders:
            logp = torch.log_softmax(self.logits(self.ids(prompt), output, sampling, order) / temperature, -1)
            found.append((-(logp.exp() * logp).nan_to_num(0).sum(-1)).tolist())
        return found

    def logits(self, ids, output, sampling, order):
        with torch.no_grad():
            logits = self.model(torch.tensor([ids + output[:-1]])).logits[0, len(ids) - 1:].double()
        counts = torch.zeros(logits.shape[1], dtype=torch.float64)
        frequency, presence = sampling.get("frequency_penalty", 0), sampling.get("presence_penalty", 0)
        repetition = sampling.get("repetition_penalty", 1)
        for t, row in enumerate(logits):
            if t >= 1:
                counts[(ids[-1] if t == 1 else output[t - 2]) if self.lag else output[t - 1]] += 1
            for penalty in order:
                if penalty == "frequency":
                    row -= frequency * counts
                elif penalty == "presence":
                    row -= presence * (counts > 0)
                elif repetition != 1:
                    row.copy_(torch.where(counts > 0, torch.where(row > 0, row / repetition, row * repetition), row))
            for token, value in sampling.get("logit_bias", {}).items():
                row[int(token)] += value
            if sampling.get("min_new_tokens", 0) > t:
                row[list(END)] = -torch.inf
        return logits
