"""A character tokenizer whose chat template has tools, and scripts in place of a model that can use them."""

import json
from collections.abc import Callable, Sequence
from typing import Any

import torch
from tokenizers import Regex, Tokenizer, models, pre_tokenizers
from tokenizers.decoders import Fuse
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

CHARACTERS = [chr(code) for code in range(32, 127)] + ["\n"]
TEMPLATE = """\
{%- for message in messages %}
{%- if message.role == 'assistant' %}
{{- '<a>' + message.content }}
{%- for call in message.tool_calls or [] %}
{{- '<call>' + (call.function | tojson) + '</call>' }}
{%- endfor %}
{{- '<eos>' }}
{%- elif message.role == 'tool' %}
{{- '<t>' + message.content }}
{%- else %}
{{- '<u>' + message.content }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
{{- '<a>' }}
{%- endif %}"""
RESPONSES = {
    "defaults": {"role": "assistant"},
    "start_anchor": "<a>",
    "fields": {
        "tool_calls": {
            "open": "<call>",
            "close_pattern": "</call>",
            "repeats": True,
            "content": "json",
            "transform": {"type": "function", "function": "{content}"},
        },
        "content": {"close_pattern": "<eos>", "content": "text"},
    },
}


def tokenizer() -> PreTrainedTokenizerFast:
    """One token a character, one for each tag."""
    tags = ["<pad>", "<eos>", "<unk>", "<u>", "<a>", "<t>", "<call>", "</call>"]
    vocabulary = {c: i for i, c in enumerate([*tags, *CHARACTERS])}
    core = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    core.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    core.decoder = Fuse()
    made = PreTrainedTokenizerFast(
        tokenizer_object=core, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>", chat_template=TEMPLATE
    )
    made.add_tokens(["<u>", "<a>", "<t>", "<call>", "</call>"])
    made.response_template = RESPONSES
    return made


def model(vocabulary: int, context: int = 512) -> LlamaForCausalLM:
    """A random Llama, the same each time."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=context,
        pad_token_id=0,
        eos_token_id=1,
        bos_token_id=None,
        tie_word_embeddings=False,
        initializer_range=0.3,
    )
    return LlamaForCausalLM(config)


def call(name: str, **arguments: Any) -> str:
    """A turn that calls a tool."""
    return f"<call>{json.dumps({'name': name, 'arguments': arguments})}</call><eos>"


def scripted(trainer: Any, choose: Callable[[str], str]) -> None:
    """Let the policy's turns be choose(text so far) in place of samples, whatever the model thinks of them."""
    words = trainer.processing_class

    def generate(prompt_ids: Sequence[list[int]], *args: Any, **kwargs: Any) -> tuple[list[list[int]], None]:
        return [words(choose(words.decode(ids)), add_special_tokens=False)["input_ids"] for ids in prompt_ids], None

    trainer._generate_single_turn = generate
