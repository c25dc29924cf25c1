"""llama.cpp's HTTP server in a process of its own: prints its address as one line, ends when its stdin closes."""

import argparse
import sys
from pathlib import Path

import xllamacpp


def main() -> None:
    """Serve until the one who started this is gone."""
    parser = argparse.ArgumentParser()
    parser.add_argument("model", type=Path)
    parser.add_argument("--template", type=Path, required=True)
    parser.add_argument("--alias", required=True)
    parser.add_argument("--slots", type=int, required=True)
    parser.add_argument("--context", type=int, required=True, help="of all slots together")
    given = parser.parse_args()
    params = xllamacpp.CommonParams()
    params.model.path = str(given.model)
    params.model_alias = {given.alias}
    params.hostnames = ["127.0.0.1"]
    params.port = 0
    params.n_parallel = given.slots
    params.n_ctx = given.context
    # more threads wait for one another in busy loops, and collapse when anything else uses a core
    params.cpuparams.n_threads = 1
    params.cpuparams_batch.n_threads = 1
    params.use_jinja = True
    params.chat_template = given.template.read_text(encoding="utf-8")
    params.endpoint_metrics = True
    params.ui = False
    params.cache_ram_mib = 256  # kept prompts of slots that were given away; the default would take gigabytes
    server = xllamacpp.Server(params)
    print(f"listening {server.listening_address}", flush=True)
    sys.stdin.buffer.read()


if __name__ == "__main__":
    main()
