"""Keep the first layers of a GGUF model: tokenizer and embeddings stay real, the text becomes gibberish, all is faster.

The 135M model has 30 layers; with 4 of them prefill takes about a seventh of the time, and every count of tokens and
every cache hit is as real as before. What is left of the model would never end its reply, so a token that its gibberish
is full of becomes the end of text: a reply ends early unless the server is told to ignore that. Needs gguf only.
"""

import os
import tempfile
from pathlib import Path

import gguf


def prune(source: Path, target: Path, layers: int, end: str) -> None:
    """Write `source` to `target`, whole or not at all: its first `layers` layers, the token `end` as end of text."""
    target.parent.mkdir(parents=True, exist_ok=True)
    handle, draft = tempfile.mkstemp(prefix=target.name, dir=target.parent)
    os.close(handle)
    try:
        _write(gguf.GGUFReader(source), draft, layers, end)
        Path(draft).replace(target)
    finally:
        Path(draft).unlink(missing_ok=True)


def _write(reader: gguf.GGUFReader, target: str, layers: int, end: str) -> None:
    architecture = reader.fields[gguf.Keys.General.ARCHITECTURE].contents()
    count_key = gguf.Keys.LLM.BLOCK_COUNT.format(arch=architecture)
    had = reader.fields[count_key].contents()
    if not 0 < layers <= had:
        raise ValueError(f"the model has {had} layers, {layers} cannot be kept")
    changed = {count_key: layers, gguf.Keys.Tokenizer.EOS_ID: _token_id(reader, end)}
    writer = gguf.GGUFWriter(target, architecture)
    written_by_itself = {gguf.Keys.General.ARCHITECTURE}
    for key, field in reader.fields.items():
        if key.startswith("GGUF.") or key in written_by_itself:
            continue
        kind, *inner = field.types
        value = changed[key] if key in changed else field.contents()
        writer.add_key_value(key, value, kind, sub_type=inner[-1] if inner else None)
    for tensor in reader.tensors:
        part, _, rest = tensor.name.partition(".")
        if part == "blk" and int(rest.split(".")[0]) >= layers:
            continue
        writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _token_id(reader: gguf.GGUFReader, text: str) -> int:
    tokens = reader.fields[gguf.Keys.Tokenizer.LIST].contents()
    return int(tokens.index(text))
