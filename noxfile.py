# SPDX-License-Identifier: Apache-2.0
# /// script
# requires-python = ">=3.11,<3.14"
# dependencies = ["nox>=2025.5", "msgspec>=0.21,<1", "packaging>=24", "virtualenv>=20.26"]
# [tool.nox]
# script-venv-backend = "virtualenv"
# ///
"""Sessions: stacks/*.toml says which slices are built and validated, and in which order."""

import argparse
import dataclasses
import functools
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import nox

ROOT = Path(__file__).resolve().parent
sys.path.insert(0, str(ROOT / "ci"))

import stackkit  # noqa: E402

try:
    WORKSPACE = stackkit.Workspace.open(ROOT)
except stackkit.StackError as fault:
    raise SystemExit(str(fault)) from fault

SLICES = WORKSPACE.stacks.slices
COMBINATIONS = WORKSPACE.stacks.combinations
BASE = stackkit.Recipe(
    tuple(WORKSPACE.lock(name) for name in ("runtime", "tests", "demo")), ("torch==2.13.0",)
)
TOOLS = stackkit.Recipe((WORKSPACE.lock("tools"), WORKSPACE.lock("tests")))
DOCS = stackkit.Recipe((WORKSPACE.lock("docs"),))
PEERS = stackkit.Recipe((WORKSPACE.lock("bench"),))
SOURCES = [
    *(f"{entry.package}/src" for entry in SLICES.values()),
    "ci",
    "ci/host/src",
    "tests/e2e",
    "tests/faults",
    "tests/bench",
    "tests/elastic",
    "tests/combined",
]
RELEASES = WORKSPACE.stacks.releases
EXPORTED = [
    slice_id
    for slice_id, entry in SLICES.items()
    if entry.upstream and (ROOT / entry.package / "upstream" / "layer.py").is_file()
]
# Each of these applies the patches of all slices below it too; the others run when asked for.
WHOLE_SERIES = [
    each for each in EXPORTED if not any(each in SLICES[other].requires for other in EXPORTED)
]
BUILD_KVCACHED = "build-kvcached-host"
DEMO_SLICE = "kvcr"
TUNED_SLICE = "kvcr-tuning"
TUNING = "--tuning"
ELASTIC_SLICE = "packed-indexer"
PROGRAMS = {
    "PYTHONPATH": os.pathsep.join(
        str(ROOT / "tests" / each) for each in ("e2e", "faults", "bench", "elastic")
    )
}
BENCHMARKS = {
    "bench-kvcr-overhead": ("overhead", DEMO_SLICE, "what kvcr adds to SGLang and to KVCR"),
    "bench-serving": (
        "serving",
        TUNED_SLICE,
        "two servers with shared prefixes, by storage and by option",
    ),
    "bench-exact-id": ("leases", ELASTIC_SLICE, "leases beside SGLang and kvcached"),
    "bench-dsv4": ("dsv4", ELASTIC_SLICE, "managed pools beside native ones"),
}
TESTS = {
    "tests-e2e": (TUNED_SLICE, "that the demo proves its own claims, without its servers"),
    "tests-faults": (
        DEMO_SLICE,
        "that the fault loop makes its faults and counts what came of them",
    ),
    "tests-bench": (TUNED_SLICE, "that the benchmarks compute what they print"),
    "tests-elastic": (ELASTIC_SLICE, "that the demo of elastic pools proves its own claims"),
}
COMBINED = {
    "PYTHONPATH": os.pathsep.join(
        str(ROOT / each) for each in ("ci", "tests/combined", "tests/e2e")
    )
}
RUNS = [
    stackkit.Run("tests-stack"),
    *(stackkit.Run("tests-host", release) for release in RELEASES),
    stackkit.Run("tests-kvcached-host", RELEASES[0]),
    *(
        stackkit.Run(entry.validation, release)
        for entry in SLICES.values()
        for release in entry.releases or RELEASES[:1]
    ),
    *(
        stackkit.Run(combination.validation, release)
        for combination in COMBINATIONS.values()
        for release in combination.releases
    ),
    *(stackkit.Run(name, RELEASES[0]) for name in TESTS),
    stackkit.Run("tests-export", RELEASES[0]),
    *(stackkit.Run(SLICES[slice_id].application) for slice_id in WHOLE_SERIES),
]
TESTED = list(dict.fromkeys(run.session for run in RUNS))

nox.needs_version = ">=2025.5"
nox.options.default_venv_backend = "virtualenv"
nox.options.sessions = ["lint", "typecheck", "docs", *TESTED, "summary"]


def reported(run: Callable[[nox.Session], None]) -> Callable[[nox.Session], None]:
    """End the session with the one line of a fault."""

    @functools.wraps(run)
    def reporting(session: nox.Session) -> None:
        try:
            run(session)
        except stackkit.StackkitError as fault:
            session.error(str(fault))

    return reporting


def make(session: nox.Session, name: str, recipe: stackkit.Recipe) -> stackkit.Environment:
    return recipe.make(WORKSPACE.environments / name, session.log)


def layer(session: nox.Session, release: str) -> stackkit.Layer:
    """The session's own environment over a release of SGLang over the base."""
    own = stackkit.Environment(Path(session.bin).parent)
    bases = [make(session, "base", BASE)]
    if release != RELEASES[0]:
        bases.insert(0, release_environment(session, release))
    return stackkit.Layer(own, tuple(bases), release)


def release_environment(session: nox.Session, release: str) -> stackkit.Environment:
    """The environment of another release of SGLang, to be laid over the base."""
    recipe = stackkit.Recipe((WORKSPACE.release_lock(release),))
    return make(session, f"{stackkit.HOST}-{release}", recipe)


def layers(session: nox.Session, releases: Sequence[str]) -> Iterator[stackkit.Layer]:
    """The session's environment over each release in turn, or over the one of `--sglang` alone."""
    asked, _ = arguments(session)
    if asked is not None and asked not in releases:
        session.error(f"--{stackkit.HOST} {asked}: supported are {', '.join(releases)}")
    return (layer(session, each) for each in releases if asked in {None, each})


def arguments(session: nox.Session) -> tuple[str | None, list[str]]:
    """The release of SGLang that was asked for behind `--`, if any, and the other arguments."""
    parser = argparse.ArgumentParser(
        f"nox -s {session.name} --", allow_abbrev=False, add_help=False
    )
    parser.add_argument(f"--{stackkit.HOST}", dest="release", choices=RELEASES)
    known, others = parser.parse_known_args(session.posargs)
    return known.release, others


def run_tool(session: nox.Session, tool: str, *arguments: str, **variables: str) -> None:
    program = make(session, "tools", TOOLS).bin / tool
    session.run(str(program), *arguments, env=variables, external=True)


def check_contracts(session: nox.Session, *folders: Path, tools: tuple[str, ...]) -> None:
    """Check that the slices, as they lie in `folders`, import only what they require."""
    config = ROOT / "build" / "import-contracts.ini"
    stackkit.contracts.write(WORKSPACE.stacks, config, tools=tools)
    path = os.pathsep.join(map(str, folders))
    run_tool(session, "lint-imports", "--no-cache", "--no-logo", str(config), PYTHONPATH=path)


def conclude(session: nox.Session, results: Iterable[stackkit.SessionResult]) -> None:
    """Write each result as soon as it is there; end the session as failed unless all succeeded."""
    known = []
    for result in results:
        result.write(WORKSPACE.results)
        known.append(result)
    session.log("\n" + stackkit.table(known))
    if not known or not all(result.succeeded for result in known):
        session.error(f"{session.name}: {stackkit.closing_line(known)}")


@nox.session(python=False)
@reported
def base(session: nox.Session) -> None:
    """Make the environment of SGLang, KVCR and NIXL, once."""
    stackkit.check_compiler()
    make(session, "base", BASE)


@nox.session(python=False)
@reported
def tools(session: nox.Session) -> None:
    """Make the environment that builds, lints and checks types, once."""
    make(session, "tools", TOOLS)


def add_build(package: stackkit.Package) -> str:
    into = WORKSPACE.wheels(package)

    @nox.session(name=f"build-{into.name}", python=False, requires=["tools"])
    @reported
    def build(session: nox.Session) -> None:
        """Build the wheel twice, which must give the same bytes."""
        python = make(session, "tools", TOOLS).python
        wheel = stackkit.Wheel.build(package, into, python=python)
        session.log(f"{wheel.path.name} sha256 {wheel.sha256}")

    return f"build-{into.name}"


def add_validate(slice_id: str, builds: list[str]) -> None:
    @nox.session(name=SLICES[slice_id].validation, requires=["base", *builds])
    @reported
    def validate(session: nox.Session) -> None:
        """Test the slice from the built wheels of its closure alone, on each release of SGLang."""
        over = layers(session, SLICES[slice_id].releases or RELEASES[:1])
        conclude(session, (stackkit.validate(WORKSPACE, slice_id, each) for each in over))


def add_combination(name: str, builds: list[str]) -> None:
    combination = COMBINATIONS[name]

    @nox.session(name=combination.validation, requires=["base", "tools", *builds])
    @reported
    def validate(session: nox.Session) -> None:
        """Test all slices together, from their built wheels in one environment."""
        results = []
        for each in layers(session, combination.releases):
            over = dataclasses.replace(each, variables=COMBINED)
            results.append(stackkit.validate_combination(WORKSPACE, name, over))
            check_contracts(session, over.environment.site_packages, tools=("kvstrata_host",))
        conclude(session, results)


@nox.session(name=BUILD_KVCACHED, python=False, requires=["base"])
@reported
def build_kvcached_host(session: nox.Session) -> None:
    """Build kvcached's released sources over host memory, once."""
    for wheel in WORKSPACE.kvcached_host.build(make(session, "base", BASE), session.log):
        session.log(wheel.name)


BUILD_HOST = add_build(WORKSPACE.host)
BUILDS = {slice_id: add_build(WORKSPACE.package(slice_id)) for slice_id in SLICES}


def foundations_of(name: str) -> list[str]:
    """The builds below the slices that a slice or a combination needs."""
    kvcached = [BUILD_KVCACHED] if "kvcached" in WORKSPACE.stacks.pinned(name) else []
    return [BUILD_HOST, *kvcached]


def builds_of(name: str) -> list[str]:
    """The builds that a slice or a combination needs."""
    return [
        *foundations_of(name),
        *(BUILDS[entry.id] for entry in WORKSPACE.stacks.closure(name)),
    ]


for each in SLICES:
    add_validate(each, builds_of(each))
for each in COMBINATIONS:
    add_combination(each, builds_of(each))


def demo_layer(
    session: nox.Session, slice_id: str = DEMO_SLICE
) -> tuple[stackkit.Layer, list[str]]:
    """The session's environment with a slice's closure, and the arguments that are the demo's."""
    release, others = arguments(session)
    supported = SLICES[slice_id].releases
    if release is not None and release not in supported:
        session.error(f"--{stackkit.HOST} {release}: supported are {', '.join(supported)}")
    over = layer(session, release or RELEASES[0])
    packages = [WORKSPACE.package(entry.id) for entry in WORKSPACE.stacks.closure(slice_id)]
    stackkit.install(WORKSPACE, [WORKSPACE.host, *packages], over)
    if "kvcached" in WORKSPACE.stacks.pinned(slice_id):
        stackkit.install_kvcached(WORKSPACE, over)
    return over, others


def tuned_if_asked(session: nox.Session) -> str:
    """The slice that a demo of kvcr runs with: with its options where `-- --tuning` asks for it."""
    return TUNED_SLICE if TUNING in session.posargs else DEMO_SLICE


@nox.session(name="tests-host", requires=["base", BUILD_HOST])
@reported
def tests_host(session: nox.Session) -> None:
    """Test what runs the real SGLang without a GPU, on each release of it."""
    over = layers(session, RELEASES)
    conclude(session, (stackkit.validate_host(WORKSPACE, each) for each in over))


@nox.session(name="tests-kvcached-host", requires=["base", BUILD_HOST, BUILD_KVCACHED])
@reported
def tests_kvcached_host(session: nox.Session) -> None:
    """Test kvcached over host memory, and what stands in for CUDA there."""
    over = layer(session, RELEASES[0])
    conclude(session, [stackkit.validate_kvcached_host(WORKSPACE, over)])


@nox.session(name="tests-stack", python=False, requires=["tools"])
@reported
def tests_stack(session: nox.Session) -> None:
    """Test the stack files and the sessions themselves."""
    made = make(session, "tools", TOOLS)
    over = stackkit.Layer(made, (made,), variables={"PYTHONPATH": str(ROOT / "ci")})
    conclude(session, [stackkit.run_repository_tests(WORKSPACE, "stack", over)])


def run_export(session: nox.Session, command: str, slice_id: str) -> None:
    """Call `python -m stackkit.export`, and tell it where the releases of the upstream are."""
    places = {}
    base = make(session, "base", BASE)
    if SLICES[slice_id].upstream == stackkit.HOST:
        others = [each for each in RELEASES[1:] if each in session.posargs]
        places = {each: release_environment(session, each).site_packages for each in others}
        places[RELEASES[0]] = base.site_packages
    elif "kvcached" in WORKSPACE.stacks.pinned(slice_id):
        archive = WORKSPACE.kvcached_host.sources_as_released(base, ROOT / "build" / "upstreams")
        places[archive.name.removeprefix("kvcached-").removesuffix(".tar.gz")] = archive
    options = [word for release, at in places.items() for word in ("--source", f"{release}={at}")]
    options += ["--root", str(ROOT), *session.posargs]
    arguments = ["-m", "stackkit.export", command, slice_id, *options]
    run_tool(session, "python", *arguments, PYTHONPATH=str(ROOT / "ci"))


def add_export(slice_id: str) -> None:
    @nox.session(name=f"export-{slice_id}", python=False, requires=["base", "tools"])
    @reported
    def export(session: nox.Session) -> None:
        """The slice and those below it as commits on their upstream; see build/export/."""
        run_export(session, "export", slice_id)

    wheels = foundations_of(slice_id)

    @nox.session(name=SLICES[slice_id].application, requires=["base", "tools", *wheels])
    @reported
    def apply(session: nox.Session) -> None:
        """Apply the exported patches to a clean tree, and test that tree; see build/apply/."""
        run_export(session, "apply", slice_id)
        over = layer(session, RELEASES[0])
        conclude(session, [stackkit.validate_applied(WORKSPACE, slice_id, over)])


for each in EXPORTED:
    add_export(each)


@nox.session(name="tests-export", python=False, requires=["base", "tools"])
@reported
def tests_export(session: nox.Session) -> None:
    """Test how slices are exported, on small upstreams and on the released SGLang."""
    made, released = make(session, "tools", TOOLS), make(session, "base", BASE)
    variables = {
        "PYTHONPATH": str(ROOT / "ci"),
        "RELEASED_SGLANG": f"{RELEASES[0]}={released.site_packages}",
    }
    over = stackkit.Layer(made, (made,), RELEASES[0], variables)
    conclude(session, [stackkit.run_repository_tests(WORKSPACE, "export", over)])


def add_tests(name: str, slice_id: str, about: str) -> None:
    def tests(session: nox.Session) -> None:
        over, _ = demo_layer(session, slice_id)
        over = dataclasses.replace(over, variables=PROGRAMS)
        kind = name.removeprefix("tests-")
        conclude(session, [stackkit.run_repository_tests(WORKSPACE, kind, over)])

    tests.__doc__ = f"Test {about}."
    nox.session(name=name, requires=["base", *builds_of(slice_id)])(reported(tests))


for each, tested in TESTS.items():
    add_tests(each, *tested)


def run_program(session: nox.Session, over: stackkit.Layer, *arguments: str) -> None:
    """Run a module under tests/."""
    if dataclasses.replace(over, variables=PROGRAMS).run("-m", *arguments, cwd=ROOT) != 0:
        session.error(f"{session.name} failed, or what it checks does not hold")


def output(name: str) -> list[str]:
    return ["--output", str(ROOT / "build" / name)]


@nox.session(requires=["base", *builds_of(TUNED_SLICE)])
@reported
def demo(session: nox.Session) -> None:
    """Two real SGLang servers share a prefix through KVCR; see build/demo/."""
    over, others = demo_layer(session, tuned_if_asked(session))
    run_program(session, over, "demo", *output("demo"), *others)


@nox.session(requires=["base", *builds_of(TUNED_SLICE)])
@reported
def faults(session: nox.Session) -> None:
    """Make faults on a peer while a server restores from it; see build/faults/."""
    over, others = demo_layer(session, tuned_if_asked(session))
    run_program(session, over, "faults", *output("faults"), *others)


@nox.session(name="demo-elastic", requires=["base", *builds_of(ELASTIC_SLICE)])
@reported
def demo_elastic(session: nox.Session) -> None:
    """Memory of DeepSeek-V4 pools follows the load and a limit; see build/demo-elastic/."""
    over, others = demo_layer(session, ELASTIC_SLICE)
    run_program(session, over, "elastic", *output("demo-elastic"), *others)


@nox.session(name="bench-kvcr", requires=["base", *builds_of(TUNED_SLICE)])
@reported
def bench_kvcr(session: nox.Session) -> None:
    """Measure KVCR beside raw KVCR, NIXL, UCX and other storage backends; see build/bench/."""
    over, others = demo_layer(session, TUNED_SLICE)
    over = dataclasses.replace(over, bases=(*over.bases, make(session, "peers", PEERS)))
    over.lay()
    options = output("bench")
    if verbs := stackkit.unpack_verbs(WORKSPACE.environments / "verbs", session.log):
        options += ["--verbs", str(verbs)]
    run_program(session, over, "stores", *options, *others)


def add_benchmark(name: str, module: str, slice_id: str, about: str) -> None:
    def measure(session: nox.Session) -> None:
        over, others = demo_layer(session, slice_id)
        run_program(session, over, module, *output("bench"), *others)

    measure.__doc__ = f"Measure {about}, as ratios of one run; see build/bench/."
    nox.session(name=name, requires=["base", *builds_of(slice_id)])(reported(measure))


for each, measured in BENCHMARKS.items():
    add_benchmark(each, *measured)


@nox.session(python=False)
@reported
def evidence(session: nox.Session) -> None:
    """Print what was validated of every slice at its present tree, and why the rest was not."""
    found = [each for entry in SLICES for each in stackkit.standings(WORKSPACE, entry)]
    session.log("\n" + stackkit.evidence_table(found))


@nox.session(name="evidence-record", python=False)
@reported
def evidence_record(session: nox.Session) -> None:
    """Write stacks/evidence/ from the results of the slices named behind `--`, or of all."""
    unknown = [name for name in session.posargs if name not in SLICES]
    if unknown:
        session.error(f"unknown {', '.join(unknown)}; slices are {', '.join(SLICES)}")
    for slice_id in session.posargs or SLICES:
        session.log(str(stackkit.record(WORKSPACE, slice_id).relative_to(ROOT)))


def add_describe(slice_id: str) -> None:
    @nox.session(name=f"describe-{slice_id}", python=False)
    @reported
    def describe(session: nox.Session) -> None:
        """Print the pull request's text, or check the edited one that `-- --check FILE` names."""
        parser = argparse.ArgumentParser(f"nox -s {session.name} --", allow_abbrev=False)
        parser.add_argument("--check", type=Path, metavar="FILE")
        edited = parser.parse_args(session.posargs).check
        if edited is None:
            signer = stackkit.Checkout(ROOT).signer()
            print(stackkit.describe(WORKSPACE, slice_id, signer=signer), end="")
        else:
            stackkit.check(WORKSPACE, slice_id, edited.read_text(encoding="utf-8"))


for each, entry in SLICES.items():
    if entry.pull_request is not None:
        add_describe(each)


@nox.session(python=False, requires=["tools"])
@reported
def lint(session: nox.Session) -> None:
    """Style, licences, layers and declared dependencies."""
    run_tool(session, "ruff", "check", ".")
    run_tool(session, "ruff", "format", "--check", ".")
    sources = [ROOT / source for source in SOURCES]
    check_contracts(session, *sources, tools=("kvstrata_host", "stackkit"))
    for entry in SLICES.values():
        folder = ROOT / entry.package
        options = ["--config", str(folder / "pyproject.toml"), "--no-ansi"]
        run_tool(session, "deptry", str(folder / "src"), *options)


@nox.session(python=False, requires=["base", "tools"])
@reported
def typecheck(session: nox.Session) -> None:
    """Check types as every supported Python version sees them."""
    python = str(make(session, "base", BASE).python)
    path = os.pathsep.join(str(ROOT / source) for source in SOURCES)
    for version in ("3.10", "3.11", "3.12", "3.13"):
        options = ["--python-executable", python, "--python-version", version]
        sources = [f"{entry.package}/src" for entry in SLICES.values()]
        others = ["--exclude", "^(ci/stackkit/export|tests/export)/"]
        run_tool(session, "mypy", *options, *others, "ci", "tests", *sources, MYPYPATH=path)
        # Each on its own: mypy names them by their folders, and exact-id is no name in Python.
        for entry in SLICES.values():
            tests = os.pathsep.join([path, str(ROOT / entry.package)])
            run_tool(session, "mypy", *options, f"{entry.package}/tests", MYPYPATH=tests)
    # What needs libcst, which is among the tools alone.
    layers = [f"{SLICES[each].package}/upstream/layer.py" for each in EXPORTED]
    for files in (["noxfile.py"], ["ci/stackkit/export", "tests/export"], *([f] for f in layers)):
        run_tool(session, "mypy", *files, MYPYPATH=path)


@nox.session(python=False)
@reported
def docs(session: nox.Session) -> None:
    """Build the documentation site into build/docs; a warning is an error."""
    made = make(session, "docs", DOCS)
    target = str(ROOT / "build" / "docs")
    session.run(str(made.python), "-m", "sphinx", "-W", "-b", "html", "docs", target, external=True)


@nox.session(python=False)
@reported
def summary(session: nox.Session) -> None:
    """Print what was tested at the present files; a session that is missing is a failure."""
    found = stackkit.gather(WORKSPACE, RUNS)
    line = stackkit.closing_line(found)
    (WORKSPACE.results / "summary.txt").write_text(f"{line}\n", encoding="utf-8")
    session.log("\n" + stackkit.table(found))
    session.log(line)
    if not all(result.succeeded for result in found):
        session.error("not everything passed")
