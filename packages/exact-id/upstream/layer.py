# SPDX-License-Identifier: Apache-2.0
"""exact-id as a pull request to kvcached: patches of SGLang among its own."""

from stackkit.export import File, Layer, Names, folder, instead
from stackkit.export.kvcached import STYLE, headed, registered

PACKAGE = "kvcached.integration.sglang.exact_id"
HOME = "kvcached/integration/sglang/exact_id"
CHECKS = "leases_on_host"

FRONT = instead(
    {
        """

Nothing here imports SGLang, kvcached or torch: the package is importable where they are missing.
""": "\n"
    }
)

GATING = instead(
    {
        """
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
""": """
from dataclasses import dataclass
""",
        """KVCACHED_VERSION = "0.1.6"

_ON = ("1", "true")
_OFF = ("", "0", "false")

_log = logging.getLogger(__name__)


def is_enabled(environment: Mapping[str, str]) -> bool:
    \"\"\"Whether ENABLE_KVCACHED is on: 1 or true in any case, as kvcached itself reads it.\"\"\"
    value = environment.get(SWITCH, "")
    if value.lower() not in _ON + _OFF:
        _log.warning(
            "%s is %r; allowed: %s for on, %s for off. It counts as off.",
            SWITCH,
            value,
            " or ".join(_ON),
            " or ".join(map(repr, _OFF)),
        )
    return value.lower() in _ON


def kvcached_version() -> str | None:
    \"\"\"The installed release of kvcached, without a local label; None without one.\"\"\"
    try:
        return version("kvcached").partition("+")[0]
    except PackageNotFoundError:
        return None


def is_supported(environment: Mapping[str, str]) -> bool:
    \"\"\"Whether hooks may be applied: ENABLE_KVCACHED is on, and kvcached is the \
supported release.

    Another release is warned of.
    \"\"\"
    if not is_enabled(environment):
        return False
    found = kvcached_version()
    if found != KVCACHED_VERSION:
        _log.warning(
            "DeepSeek-V4 pools stay native: kvcached is %s; supported: %s",
            found or "not installed",
            KVCACHED_VERSION,
        )
    return found == KVCACHED_VERSION


""": """

""",
        """    kvcached_version: str | None
""": "",
        """    if seen.kvcached_version != KVCACHED_VERSION:
        found = seen.kvcached_version or "not installed"
        return f"kvcached is {found}; supported: {KVCACHED_VERSION}"
""": "",
    }
)

CONSTRUCTION = instead(
    {
        "import Circumstances, is_enabled, kvcached_version, native_reason": (
            "import Circumstances, native_reason"
        ),
        "from sglang.srt.utils import is_hip\n": (
            "from sglang.srt.utils import is_hip\n\n"
            "from kvcached import utils\n"
            "from kvcached.integration.patch_base import enable_kvcached\n"
        ),
        "if not is_enabled(os.environ):": "if not enable_kvcached():",
        "        kvcached_version=kvcached_version(),\n": "",
        "contiguous_layout=contiguous_layout(),": (
            "contiguous_layout=bool(utils.CONTIGUOUS_LAYOUT),"
        ),
        """def contiguous_layout() -> bool | None:
    \"\"\"The layout of kvcached in this process; None without kvcached.\"\"\"
    try:
        from kvcached.utils import CONTIGUOUS_LAYOUT
    except ImportError:
        return None
    return bool(CONTIGUOUS_LAYOUT)


""": "",
    }
)

OWNERSHIP = instead(
    {
        "from importlib.metadata import entry_points\n": "",
        "A pool that an installed slice can manage; its": "A pool that can be managed; its",
        "Let a slice manage a pool from": "Have a pool managed from",
        "The pools that installed slices can manage; a copy.": (
            "The pools that are claimed; a copy."
        ),
        """CLAIMS = "kvcached.integration.sglang.exact_id.claims"
\"\"\"The group of entry points under which a slice lists its Claims for `installed_claims`.\"\"\"

""": "",
        """def installed_claims() -> Mapping[str, Claim]:
    \"\"\"The pools that slices of this environment would manage, loaded by SGLang or not.\"\"\"
    found: list[Claim] = [_OWN, *(entry.load() for entry in entry_points(group=CLAIMS))]
    return {each.pool: each for each in found}


""": "",
        """_OWN = Claim(SWA, IdSpace.SWA, "kvcached")
_claims = {SWA: _OWN}
""": """_claims = {SWA: Claim(SWA, IdSpace.SWA, "kvcached")}
""",
    }
)

# validate-exact-id has the long run.
FEWER_STEPS = instead({'"10000"': '"500"'})

GATING_TESTS = instead(
    {
        "import logging\nfrom dataclasses": "from dataclasses",
        "import Circumstances, is_enabled, native_reason": "import Circumstances, native_reason",
        'pp_size=1, kvcached_version="0.1.6", contiguous': "pp_size=1, contiguous",
        """@pytest.mark.parametrize("value", [None, "", "0", "false", "FALSE"])
def test_the_switch_is_off(value: str | None, caplog: pytest.LogCaptureFixture) -> None:
    assert not is_enabled({} if value is None else {"ENABLE_KVCACHED": value})
    assert caplog.messages == []


@pytest.mark.parametrize("value", ["1", "true", "TRUE"])
def test_the_switch_is_on(value: str) -> None:
    assert is_enabled({"ENABLE_KVCACHED": value})


@pytest.mark.parametrize("value", ["yes", "2", "on"])
def test_another_value_is_off_and_said_to_be(value: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        assert not is_enabled({"ENABLE_KVCACHED": value})

    assert [f"ENABLE_KVCACHED is {value!r}" in message for message in caplog.messages] == [True]


""": "",
        """    "no kvcached": ({"kvcached_version": None}, "kvcached is not installed"),
    "another kvcached": ({"kvcached_version": "0.1.7"}, "kvcached is 0.1.7; supported: 0.1.6"),
""": "",
        "only_where_a_slice_claims_it": "only_where_it_is_claimed",
    }
)

LAYER = Layer(
    subject="[SGLang] Lease exact page ids for DeepSeek-V4 pools, beginning with SWA",
    body="""
DeepSeek-V4 pools follow SGLang's own page ids, and a page may straddle two VMM pages. A lease on an
exact id maps what lies under the page when SGLang hands the id out, and unmaps it after the last
reader. SGLang's allocators stay in charge of ids; a miss leaves their free lists as they were.

The patches apply to SGLang 0.5.20. Pools stay SGLang's own with TP or PP, HiCache, PD
disaggregation, HiSparse, unified layouts, draft models and the contiguous layout.

New tests, all for the CPU manifest: tests/test_sglang_exact_id_gating.py,
tests/test_sglang_exact_id_patches.py, tests/test_sglang_exact_id_readiness.py.
""",
    names=Names(
        modules={
            "kvstrata.exact_id.plugin": f"{CHECKS}.plugin",
            "kvstrata.exact_id": PACKAGE,
            "kvstrata_host.leases": CHECKS,
        },
        words={
            "kvstrata_exact_id_pools": "__kvcached_exact_id_pools__",
            "kvstrata_exact_id_owners": "__kvcached_exact_id_owners__",
            "kvstrata-exact-id": "kvcached",
            "no installed slice manages it": "nothing manages it",
        },
        kept_lint=("F401", "F821", "E402", "SIM115"),
    ),
    style=STYLE,
    files=(
        *folder(
            "src/kvstrata/exact_id",
            HOME,
            "accounting.py allocator.py backing.py discovery.py errors.py geometry.py "
            "holders.py ledger.py limits.py physical.py pool.py readiness.py rows.py swa.py "
            "transaction.py whole_buffers.py",
            headed,
        ),
        File("src/kvstrata/exact_id/__init__.py", f"{HOME}/__init__.py", (FRONT, headed)),
        File("src/kvstrata/exact_id/gating.py", f"{HOME}/gating.py", (GATING, headed)),
        File(
            "src/kvstrata/exact_id/construction.py",
            f"{HOME}/construction.py",
            (CONSTRUCTION, headed),
        ),
        File("src/kvstrata/exact_id/ownership.py", f"{HOME}/ownership.py", (OWNERSHIP, headed)),
        File("upstream/patches.py", f"{HOME}/patches.py", (headed,)),
        File(
            "tests/test_gating.py", "tests/test_sglang_exact_id_gating.py", (GATING_TESTS, headed)
        ),
        File("tests/test_readiness.py", "tests/test_sglang_exact_id_readiness.py", (headed,)),
        File("upstream/test_patches.py", "tests/test_sglang_exact_id_patches.py", (headed,)),
    ),
    edits=registered(
        f"{PACKAGE}.patches",
        "DeepSeekV4AllocatorPatch",
        "DeepSeekV4HiCachePatch",
        "DeepSeekV4LinkerPatch",
        "DeepSeekV4PoolPatch",
        versions="SGLANG_RANGE",
        behind='(MambaRadixCacheLimitPatch(), ">=0.5.13")',
        imports=("SGLANG_RANGE",),
    ),
    left_out={
        "hooks.py, plugin.py": "patches.py stands in their place",
        "__main__.py, plan.py": "tools for operators",
    },
    unwanted=("kvstrata", "plugin", "seam", "slice manage"),
    helpers=(
        *folder(
            "/ci/host/src/kvstrata_host/leases",
            CHECKS,
            "__init__.py any_order.py fixtures.py frees.py gpu.py model.py owners.py pair.py "
            "prefix_cache.py reference.py switch.py",
        ),
        File("upstream/checks/plugin.py", f"{CHECKS}/plugin.py"),
        File("upstream/checks/test_autopatch.py", "tests/test_autopatch.py"),
        File("tests/test_any_order.py", "tests/test_any_order.py", (FEWER_STEPS,)),
        *folder(
            "tests",
            "tests",
            "conftest.py test_construction.py test_geometry.py test_gpu.py "
            "test_ledger.py test_limits.py test_runner.py test_swa.py test_transaction.py",
        ),
    ),
    upstream_tests=(
        "tests/test_sglang_autopatch_order.py",
        "tests/test_sglang_allocator_patch.py",
        "tests/test_sglang_local_pool_ownership.py",
        "tests/test_sglang_virtual_kv_capacity.py",
    ),
)
