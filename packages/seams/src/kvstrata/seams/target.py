# SPDX-License-Identifier: Apache-2.0
"""Where a target is defined in upstream's source, and what is there in the running process."""

import ast
import importlib
import importlib.util
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import FunctionType, ModuleType

from .fingerprint import definitions, fingerprint


@dataclass(frozen=True)
class Target:
    """A definition found in upstream's source, without importing it."""

    dotted: str
    module: str
    qualname: str
    source: str = field(repr=False)

    @property
    def fingerprint(self) -> str:
        return fingerprint(self.source, self.qualname)

    @property
    def is_decorated(self) -> bool:
        """Whether a decorator may have put another object in the place of the function."""
        return any(
            not (
                isinstance(decorator, ast.Name) and decorator.id in ("classmethod", "staticmethod")
            )
            for node in definitions(self.source, self.qualname)
            for decorator in node.decorator_list
        )


@dataclass(frozen=True)
class Place:
    """The attribute of a module or class that a hook is put in."""

    owner: ModuleType | type
    name: str

    def read(self) -> object:
        """What is there now: the function under a classmethod or staticmethod; else as it is."""
        value: object = vars(self.owner).get(self.name)
        return value.__func__ if isinstance(value, classmethod | staticmethod) else value


def find(dotted: str) -> Target:
    """The definition of `dotted`; LookupError, with the reason in words, where there is none."""
    module, file, rest = _source_of(dotted)
    if not rest:
        raise LookupError(f"{dotted} is a module")
    qualname = ".".join(rest)
    try:
        with tokenize.open(file) as stream:
            source = stream.read()
        definitions(source, qualname)
    except LookupError:
        raise LookupError(f"{module} does not define {qualname}") from None
    except (OSError, SyntaxError) as error:
        raise LookupError(f"the source of {module} cannot be read: {error}") from error
    return Target(dotted, module, qualname, source)


def place_of(target: Target) -> Place:
    """Imports the target's module; LookupError where the target is not in it.

    Only what the module itself defined counts: a class that took the place of the target's class
    is reported as missing.
    """
    try:
        owner: object = importlib.import_module(target.module)
    except Exception as error:
        raise LookupError(f"importing {target.module} failed: {error!r}") from error
    *classes, name = target.qualname.split(".")
    for index, class_name in enumerate(classes, start=1):
        owner = vars(owner).get(class_name)
        if not isinstance(owner, type) or not _is_class(
            owner, target.module, ".".join(classes[:index])
        ):
            raise LookupError(f"{describe(owner)} in the place of its class {class_name}")
    if not isinstance(owner, ModuleType | type) or name not in vars(owner):
        raise LookupError(f"{target.module} without an attribute {target.qualname}")
    return Place(owner, name)


def is_original(target: Target, value: object) -> bool:
    """Whether `value` is what the target's source defined, wrapped by its own decorators alone."""
    if isinstance(value, type):
        return _is_class(value, target.module, target.qualname)
    if not target.is_decorated:
        return _is_defined_by(target, value) and not hasattr(value, "__wrapped__")
    return any(
        _is_defined_by(target, item) for layer in layers(value) for item in (layer, *cells(layer))
    )


def layers(value: object) -> Iterator[object]:
    """`value` and all that it wraps, outermost first."""
    seen: set[int] = set()
    while value is not None and id(value) not in seen:
        seen.add(id(value))
        yield value
        value = getattr(value, "__wrapped__", None)


def cells(value: object) -> list[object]:
    """The objects that a function closes over."""
    found: list[object] = []
    for cell in getattr(value, "__closure__", None) or ():
        try:
            found.append(cell.cell_contents)
        except ValueError:  # an empty cell
            continue
    return found


def describe(value: object) -> str:
    """`value` by its own module, even where functools.wraps made it look like what it wraps."""
    if isinstance(value, FunctionType):
        return f"{value.__code__.co_name} of {value.__globals__.get('__name__', 'unknown module')}"
    if isinstance(value, type):
        return f"class {value.__qualname__} of {value.__module__}"
    return "nothing" if value is None else f"a {type(value).__name__} object"


def _is_class(value: type, module: str, qualname: str) -> bool:
    return value.__module__ == module and value.__qualname__ == qualname


def _is_defined_by(target: Target, value: object) -> bool:
    return (
        isinstance(value, FunctionType)
        and value.__globals__.get("__name__") == target.module
        and value.__code__.co_name == target.qualname.rpartition(".")[2]
    )


# The import system would import every parent of a dotted name, which for SGLang means torch.
def _source_of(dotted: str) -> tuple[str, Path, list[str]]:
    """The innermost module of `dotted`, its source file, and the rest of the name."""
    module, *rest = dotted.split(".")
    try:
        spec = importlib.util.find_spec(module)
    except ValueError:  # in sys.modules, without a spec
        spec = None
    if spec is None:
        raise LookupError(f"no module named {module}")
    origin = Path(spec.origin) if spec.has_location and spec.origin else None
    folders = [Path(each) for each in spec.submodule_search_locations or ()]
    while rest and folders:
        candidates = [folder / rest[0] for folder in folders]
        files = [path for each in candidates for path in (each / "__init__.py", _module_file(each))]
        file = next(filter(Path.is_file, files), None)
        folders = [each for each in candidates if each.is_dir()]
        if file is None and not folders:
            break
        if file is not None:
            folders = [file.parent] if file.name == "__init__.py" else []
        origin, module, rest = file, f"{module}.{rest[0]}", rest[1:]
    if origin is None or origin.suffix != ".py":
        raise LookupError(f"{module} has no Python source that defines {'.'.join(rest)}")
    return module, origin, rest


def _module_file(path: Path) -> Path:
    return path.with_name(f"{path.name}.py")
