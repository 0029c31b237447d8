"""Libraries, imported when a trace needs them."""

from __future__ import annotations

import json
import subprocess
import sys

LOADED = """
import json, time
from pathlib import Path
from planner import libraries
libraries.load(lambda text: None, models=True)
import transformers
from transformers.utils import import_utils
listed = getattr(import_utils, libraries.LISTS_MODELS)
folder = Path(transformers.__file__).parent / "models"
began = time.perf_counter()
same = listed(str(folder / "__init__.py")) == listed(folder)
seconds = time.perf_counter() - began
libraries.load(lambda text: None, models=True)
print(json.dumps([same, seconds, listed is getattr(import_utils, libraries.LISTS_MODELS)]))
"""


def test_transformers_reads_the_sources_of_its_models_once() -> None:
    done = subprocess.run([sys.executable, "-c", LOADED], capture_output=True, text=True, check=True)
    same, seconds, wrapped_once = json.loads(done.stdout)
    assert same
    assert seconds < 0.1  # half a second when it reads them
    assert wrapped_once
