# SPDX-License-Identifier: Apache-2.0
import tempfile
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from stackkit import load

Edges = dict[int, set[int]]


@st.composite
def graphs(draw: st.DrawFn) -> Edges:
    """Acyclic by construction: an edge leads to a smaller number. Declared in any order."""
    nodes = draw(st.permutations(range(draw(st.integers(1, 7)))))
    return {node: draw(st.sets(st.sampled_from(range(node)))) if node else set() for node in nodes}


def write(folder: Path, edges: Edges) -> None:
    lines = ['title = "A stack"']
    for node, requires in edges.items():
        names = ", ".join(f'"s{each}"' for each in sorted(requires))
        lines += ["[[slices]]", f'id = "s{node}"', f'package = "packages/s{node}"']
        lines += [f"requires = [{names}]", "pins = []", "[[slices.gates]]", f'id = "s{node}-cpu"']
        lines += ['kind = "cpu"', f'session = "validate-s{node}"', "required = true"]
        lines += ["min_tests = 1"]
    (folder / "stack.toml").write_text("\n".join(lines), encoding="utf-8")


def reachable(edges: Edges, node: int) -> set[int]:
    return {node}.union(*(reachable(edges, below) for below in edges[node]))


@given(graphs())
@settings(max_examples=60, deadline=None)
def test_every_slice_follows_its_predecessors_and_its_closure_is_what_it_reaches(
    edges: Edges,
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        write(Path(folder), edges)
        stacks = load(Path(folder))

    order = list(stacks.slices)
    for node, requires in edges.items():
        assert all(order.index(f"s{below}") < order.index(f"s{node}") for below in requires)
        closure = [entry.id for entry in stacks.closure(f"s{node}")]
        assert set(closure) == {f"s{below}" for below in reachable(edges, node)}
        assert closure == [each for each in order if each in closure]
        assert {entry.id for entry in stacks.outsiders(f"s{node}")} == set(order) - set(closure)
