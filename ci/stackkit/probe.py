# SPDX-License-Identifier: Apache-2.0
"""Run inside a slice's environment: what is there, and where does it come from?

Arguments: the modules to look for. Prints a JSON object: `origins` maps each module to the file
that an import would load, or null; `distributions` maps each installed distribution to the version
that an import would load.
"""

import importlib.metadata
import importlib.util
import json
import sys


def _origin(module: str) -> str | None:
    try:
        spec = importlib.util.find_spec(module)
    except ModuleNotFoundError:
        return None
    if spec is None:
        return None
    return spec.origin or ", ".join(spec.submodule_search_locations or ["namespace"])


if __name__ == "__main__":
    names = {found.metadata["Name"] for found in importlib.metadata.distributions()}
    report = {
        "origins": {module: _origin(module) for module in sys.argv[1:]},
        "distributions": {name: importlib.metadata.version(name) for name in sorted(names)},
    }
    print(json.dumps(report))
