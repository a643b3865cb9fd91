"""A script of scripts/ as a module."""

import importlib.machinery
import importlib.util
import sys
from pathlib import Path
from types import ModuleType

SCRIPTS = Path(__file__).resolve().parents[1] / "scripts"


def load_script(name: str) -> ModuleType:
    """A new module of scripts/NAME, executed; NAME may have an ending or none."""
    if str(SCRIPTS) not in sys.path:  # as where it is run: scripts import their neighbours
        sys.path.append(str(SCRIPTS))
    loader = importlib.machinery.SourceFileLoader(Path(name).stem, str(SCRIPTS / name))
    spec = importlib.util.spec_from_loader(loader.name, loader)
    assert spec
    module = importlib.util.module_from_spec(spec)
    sys.modules[loader.name] = module  # dataclasses look there
    loader.exec_module(module)
    return module
