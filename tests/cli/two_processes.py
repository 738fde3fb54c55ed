"""Run by torchrun: `isentrope ARGUMENTS`, and then whether this process is still connected to the others."""

import sys

import torch

from isentrope.cli import app

app(sys.argv[1:], standalone_mode=False)
print(f"still connected: {torch.distributed.is_initialized()}")
