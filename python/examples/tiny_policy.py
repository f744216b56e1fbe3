"""
A policy that learns in minutes on two cores: a Llama of some tens of thousands of parameters whose vocabulary holds whole actions as single tokens.

    python tiny_policy.py DIRECTORY

The directory then holds the model and its tokenizer in the form in which models are published, so that everything treats it as any other. Words that it does not know are one
token, `[UNK]`; it reads the instruction as far as its words go, and answers with an action.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

UNKNOWN, PAD, START, END = "[UNK]", "<|endoftext|>", "<|im_start|>", "<|im_end|>"

#: ChatML, with tools described as plain JSON and calls as Qwen spells them.
TEMPLATE = """
{%- if tools -%}
{{- '<|im_start|>system\\n' -}}{%- if messages[0].role == 'system' -%}{{- messages[0].content + '\\n' -}}{%- endif -%}
{%- for tool in tools -%}{{- (tool | tojson) + '\\n' -}}{%- endfor -%}{{- '<|im_end|>\\n' -}}
{%- endif -%}
{%- for message in messages -%}
{%- if message.role == 'tool' -%}{{- '<|im_start|>user\\n<tool_response>\\n' + message.content + '\\n</tool_response><|im_end|>\\n' -}}
{%- elif message.role == 'assistant' -%}
{{- '<|im_start|>assistant\\n' + (message.content or '') -}}
{%- for call in message.tool_calls or [] -%}
{{- '<tool_call>\\n{"name": ' + (call.function.name | tojson) + ', "arguments": ' + (call.function.arguments | tojson) + '}\\n</tool_call>' -}}
{%- endfor -%}{{- '<|im_end|>\\n' -}}
{%- elif not (tools and loop.first and message.role == 'system') -%}{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' -}}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}{%- endif -%}
""".strip()


def tokenizer_of(actions: Sequence[str], words: Sequence[str]) -> Any:
    """A tokenizer with these actions and words, the marks of ChatML and of calls, and nothing else."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    known = ["system", "user", "assistant", *words]
    spelled = [UNKNOWN, *known, *(f"Ġ{word}" for word in words)]
    raw = Tokenizer(models.WordPiece({word: at for at, word in enumerate(spelled)}, unk_token=UNKNOWN, max_input_chars_per_word=100))
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    raw.decoder = decoders.ByteLevel()
    raw.add_special_tokens([AddedToken(mark, normalized=False, special=True) for mark in (PAD, START, END)])
    raw.add_tokens([AddedToken(text, normalized=False, special=False) for text in ("<tool_call>", "</tool_call>", *actions)])
    return PreTrainedTokenizerFast(tokenizer_object=raw, eos_token=END, pad_token=PAD, unk_token=UNKNOWN, chat_template=TEMPLATE)


def model_of(tokenizer: Any, *, seed: int = 0, width: int = 64, layers: int = 2, context: int = 8192, spread: float = 0.02) -> Any:
    """A Llama with random weights for this tokenizer."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=width,
        intermediate_size=2 * width,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=context,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        initializer_range=spread,
        pad_token_id=tokenizer.pad_token_id,
        tie_word_embeddings=False,
    )
    model = LlamaForCausalLM(config)
    with torch.no_grad():
        # An unknown word says nothing: what is known is not drowned by it.
        model.get_input_embeddings().weight[tokenizer.unk_token_id] = 0
    return model


def save(directory: str, actions: Sequence[str], words: Sequence[str], *, seed: int = 0) -> None:
    tokenizer = tokenizer_of(actions, words)
    tokenizer.save_pretrained(directory)
    model_of(tokenizer, seed=seed).save_pretrained(directory)


#: For agents that speak text only: a command in a fenced block, as one token.
FENCED = [f"```bash\nprintf {number} > answer.txt\n```\n" for number in (1, 2, 3, 4)]
#: For agents with a `bash` tool, such as the agent CLI `pi`: a whole call, as one token.
CALLS = [f'<tool_call>\n{{"name": "bash", "arguments": {{"command": "printf {number} > answer.txt"}}}}\n</tool_call>' for number in (1, 2, 3, 4)]
WORDS = ["one", "two", "three", "four"]

if __name__ == "__main__":
    save(sys.argv[1], FENCED, WORDS)
