# SPDX-License-Identifier: Apache-2.0
"""kvcr-tuning as a pull request to SGLang, on kvcr: options that its store asks for by name."""

from dataclasses import replace
from pathlib import Path

from stackkit.export import (
    END,
    Calls,
    File,
    Imports,
    Insert,
    Remove,
    folder,
    instead,
    layer_of,
)
from stackkit.export.readme import readme
from stackkit.export.sglang import registered

BELOW = layer_of(Path(__file__).parents[2] / "kvcr" / "upstream" / "layer.py")
BACKEND = BELOW.names.modules["kvstrata.kvcr"]
CHECKS = BELOW.names.modules["kvstrata_host.kvcr"]
PACKAGE = f"{BACKEND}.tuning"

BACKEND_HOME = f"python/{BACKEND.replace('.', '/')}"
HOME = f"{BACKEND_HOME}/tuning"
EXTENSION = f"{BACKEND_HOME}/extension.py"
TESTS = "test/registered/unit/mem_cache/storage/kvcr/tuning"

TOP = """
# Options for the performance of the kvcr backend

Each is off unless it is asked for. They are an object under `tuning` in the extra config:

    --hicache-storage-backend-extra-config '{"tuning": {"combined_io": true}}'
"""

FRONT = instead(
    {
        """

Nothing here imports SGLang, KVCR or NIXL: the package is importable where they are missing.
""": ""
    }
)

# The table of the README is that of the package, which has a command for it.
WITHOUT_COMMAND = (
    Remove(f"{TESTS}/test_config.py", "test_the_readme_has_the_options_that_the_code_has"),
    Remove(f"{TESTS}/test_config.py", "readme"),
    Remove(f"{TESTS}/test_config.py", "", Imports(f"{PACKAGE}.__main__")),
    Remove(f"{TESTS}/test_config.py", "", Imports(f"{BACKEND}.settings")),
)

LAYER = replace(
    BELOW,
    subject="[HiCache] Add options for the performance of the kvcr backend",
    body="""
Each is off unless it is asked for under `tuning` in the extra config; with all of them off a store
uses the same objects as before.

An option overrides the little of a store's ways that it changes and leaves the rest to the one
within it, so that they nest in any combination. Options that ranks have to share are compared at
start, before anything is read.
""",
    names=replace(
        BELOW.names,
        modules={**BELOW.names.modules, "kvstrata.kvcr_tuning": PACKAGE},
        words={"kvstrata-kvcr": "the kvcr backend", **BELOW.names.words},
    ),
    files=(
        *folder(
            "src/kvstrata/kvcr_tuning",
            HOME,
            "around.py batching.py checksums.py combined.py config.py copying.py "
            "huge_pages.py options.py recency.py sharing.py stages.py",
        ),
        File("src/kvstrata/kvcr_tuning/__init__.py", f"{HOME}/__init__.py", (FRONT,)),
        File("README.md", f"{HOME}/README.md", (readme(TOP, ("Options",)),)),
        *folder("tests", TESTS, "test_config.py test_huge_pages.py", registered(5)),
    ),
    edits=(
        Remove(EXTENSION, "extended", Calls("ConfigError")),
        Remove(EXTENSION, "", Imports(f"{BACKEND}.errors")),
        Insert(
            EXTENSION,
            "extended",
            END,
            f"""
            # Imports this module.
            from {PACKAGE}.options import tuned

            return tuned(options, surroundings, inner)
            """,
            spaced=True,
        ),
        *WITHOUT_COMMAND,
    ),
    left_out={
        "plugin.py": "the backend asks for the options by name",
        "__main__.py": "a tool for operators",
    },
    tested_elsewhere={},
    helpers=(
        *(file for file in BELOW.helpers if file.target.startswith(f"{CHECKS}/")),
        *folder(
            "tests",
            "tests",
            "stores.py ways.py test_checksums.py test_combined.py test_copying.py test_off.py "
            "test_recency.py test_sharing.py test_stages.py",
        ),
        File(
            "tests/test_operations.py",
            "tests/test_operations.py",
            (
                instead(
                    {
                        "import ConfigError, hooks": "import ConfigError, agreement",
                        "hooks.start_storage": "agreement.check_alike",
                    }
                ),
            ),
        ),
    ),
    checks=(
        *(edit for edit in BELOW.checks if edit.file.startswith(f"{CHECKS}/")),
        Remove("tests/test_off.py", "test_the_package_has_no_hooks_of_its_own"),
        Remove("tests/test_off.py", "test_loading_the_plugin_imports_neither_kvcr_nor_sglang"),
    ),
)
