"""Finds the public names in the source of the package, like a reference generator, and reports
what is missing from their documentation.

Nothing is imported, so no framework needs to be installed. A module is public if it has `__all__`.
"""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple, Union

Function = Union[ast.FunctionDef, ast.AsyncFunctionDef]
SECTIONS = ("Args", "Returns", "Yields", "Raises", "Example")


class Found(NamedTuple):
    """A name and where it is defined."""

    module: str
    node: ast.AST


class Package:
    """The syntax trees of a package's modules, by module name."""

    def __init__(self, folder: Path) -> None:
        self.trees: dict[str, ast.Module] = {}
        for path in sorted(folder.rglob("*.py")):
            parts = path.relative_to(folder.parent).with_suffix("").parts
            name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
            self.trees[name] = ast.parse(path.read_text())

    def public_modules(self) -> list[str]:
        """Modules that define `__all__` and have no private part in their name."""
        names = [name for name in self.trees if not re.search(r"\._", name)]
        return [name for name in names if self._all(name) is not None]

    def exports(self, module: str) -> list[str]:
        """The names in a module's `__all__`, including lists that it takes from other modules."""
        listed = self._all(module)
        names: list[str] = []
        for item in listed.elts if listed is not None else ():
            if isinstance(item, ast.Starred) and isinstance(item.value, ast.Attribute):
                assert isinstance(item.value.value, ast.Name)
                other = self.resolve(module, item.value.value.id)
                assert other is not None, f"{module}: {ast.unparse(item)}"
                names += self.exports(other.module)
            else:
                names.append(ast.literal_eval(item))
        return names

    def resolve(self, module: str, name: str) -> Found | None:
        """Where a name of a module is defined, followed through any number of imports."""
        for node in _statements(self.trees[module]):
            if isinstance(node, ast.FunctionDef) and _is(node, "overload"):
                continue  # only a signature: the function with the docstring comes last
            if isinstance(node, (ast.FunctionDef, ast.ClassDef)) and node.name == name:
                return Found(module, node)
            if isinstance(node, (ast.Assign, ast.AnnAssign)) and name in _targets(node):
                return Found(module, node)
            if isinstance(node, ast.ImportFrom):
                found = self._imported(node, name)
                if found is not None:
                    return found
        return None

    def functions(self) -> Iterator[tuple[str, str, ast.FunctionDef | ast.ClassDef]]:
        """Every public function, class and method once: its module, its name and its node."""
        seen = set()
        for module in self.public_modules():
            for name in self.exports(module):
                found = self.resolve(module, name)
                if found is None or id(found.node) in seen:
                    continue
                seen.add(id(found.node))
                if isinstance(found.node, ast.FunctionDef):
                    yield found.module, name, found.node
                elif isinstance(found.node, ast.ClassDef):
                    yield found.module, name, found.node
                    for method, place in methods_of(self, found).items():
                        assert isinstance(place.node, ast.FunctionDef)
                        yield place.module, f"{name}.{method}", place.node

    def bases(self, found: Found) -> Iterator[Found]:
        """A class and its base classes within the package, nearest first."""
        assert isinstance(found.node, ast.ClassDef)
        yield found
        for base in found.node.bases:
            place: Found | None = None
            if isinstance(base, ast.Name):
                place = self.resolve(found.module, base.id)
            elif isinstance(base, ast.Attribute) and isinstance(base.value, ast.Name):
                outer = self.resolve(found.module, base.value.id)
                place = outer and self.resolve(outer.module, base.attr)
            if place is not None and isinstance(place.node, ast.ClassDef):
                yield from self.bases(place)

    def _all(self, module: str) -> ast.List | None:
        for node in self.trees[module].body:
            if isinstance(node, (ast.Assign, ast.AnnAssign)) and "__all__" in _targets(node):
                assert isinstance(node.value, ast.List), f"{module}: __all__ is not a plain list"
                return node.value
        return None

    def _imported(self, node: ast.ImportFrom, name: str) -> Found | None:
        origin = node.module or ""
        for alias in node.names:
            if alias.name == "*" and origin in self.trees and name in self.exports(origin):
                return self.resolve(origin, name)
            if name != (alias.asname or alias.name):
                continue
            inner = f"{origin}.{alias.name}"
            if inner in self.trees:
                return Found(inner, self.trees[inner])
            return self.resolve(origin, alias.name) if origin in self.trees else None
        return None


def faults_of(package: Package, found: Found) -> list[str]:
    """What is wrong with the documentation of a name."""
    node = found.node
    if isinstance(node, (ast.Assign, ast.AnnAssign)):
        return _text_faults(value_doc(package.trees[found.module], node))
    if isinstance(node, ast.FunctionDef):
        return function_faults(node, is_method=False)
    if isinstance(node, ast.ClassDef):
        return _class_faults(package, found)
    return _text_faults(ast.get_docstring(node))  # type: ignore[arg-type]


def function_faults(node: Function, is_method: bool) -> list[str]:
    """What is wrong with the documentation of a function."""
    text = ast.get_docstring(node)
    faults = _text_faults(text)
    if _is(node, "property", "cached_property") or text is None:
        return faults
    returns = None if node.returns is None else ast.unparse(node.returns)
    sections = sections_of(text)
    gives = returns not in ("None", "NoReturn")
    if gives and not sections.keys() & {"Returns", "Yields"}:
        faults.append("no `Returns:`")
    if not gives and "Returns" in sections:
        faults.append("`Returns:`, but it returns nothing")
    return faults + _argument_faults(_parameters(node, is_method), sections)


def sections_of(text: str) -> dict[str, str]:
    """The sections of a docstring in Google's style, by their headings."""
    parts = re.split(rf"^({'|'.join(SECTIONS)}):\n", text, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2]))


def arguments_of(text: str) -> dict[str, str]:
    """A docstring's description of each argument, joined into one line."""
    body = sections_of(text).get("Args", "")
    entries = re.split(r"^    (\*{0,2}\w+): ", body, flags=re.MULTILINE)
    return {name: " ".join(entry.split()) for name, entry in zip(entries[1::2], entries[2::2])}


def examples_of(text: str) -> list[str]:
    """The code of the examples in a docstring."""
    blocks = re.findall(r"```python\n(.*?)```", sections_of(text).get("Example", ""), re.DOTALL)
    return [inspect.cleandoc(f"\n{block}") for block in blocks]


def value_doc(tree: ast.Module | ast.ClassDef, node: ast.AST) -> str | None:
    """The docstring that follows an assignment."""
    statements = list(_statements(tree))
    after = statements[statements.index(node) + 1 :][:1]  # type: ignore[arg-type]
    if after and isinstance(after[0], ast.Expr) and isinstance(after[0].value, ast.Constant):
        return str(after[0].value.value)
    return None


def methods_of(package: Package, found: Found) -> dict[str, Found]:
    """The public methods of a class, including those inherited within the package."""
    methods: dict[str, Found] = {}
    for place in package.bases(found):
        assert isinstance(place.node, ast.ClassDef)
        for node in place.node.body:
            if isinstance(node, ast.FunctionDef) and not node.name.startswith("_"):
                methods.setdefault(node.name, Found(place.module, node))
    return methods


def initializer(package: Package, found: Found) -> ast.FunctionDef | None:
    """The `__init__` that a call of the class runs, if the package defines it."""
    for place in package.bases(found):
        assert isinstance(place.node, ast.ClassDef)
        for node in place.node.body:
            if isinstance(node, ast.FunctionDef) and node.name == "__init__":
                return node
    return None


def _class_faults(package: Package, found: Found) -> list[str]:
    assert isinstance(found.node, ast.ClassDef)
    text = ast.get_docstring(found.node)
    faults = _text_faults(text)
    init = initializer(package, found)
    parameters = [] if init is None else _parameters(init, is_method=True)
    if any("dataclass" in ast.unparse(each) for each in found.node.decorator_list):
        fields = [each for each in found.node.body if isinstance(each, ast.AnnAssign)]
        parameters = [(ast.unparse(each.target), _field_default(each)) for each in fields]
    if text is not None:
        faults += _argument_faults(parameters, sections_of(text))
    for name, method in methods_of(package, found).items():
        assert isinstance(method.node, ast.FunctionDef)
        is_static = _is(method.node, "staticmethod")
        faults += [f"{name}: {each}" for each in function_faults(method.node, not is_static)]
    return faults


def _field_default(field: ast.AnnAssign) -> ast.expr | None:
    """The default of a dataclass field; `field(...)` may not set one."""
    value = field.value
    if isinstance(value, ast.Call) and not any(
        "default" in str(each.arg) for each in value.keywords
    ):
        return None
    return value


def _text_faults(text: str | None) -> list[str]:
    if text is None:
        return ["no docstring"]
    first = text.strip().partition("\n")[0]
    # One word does not say what a thing does.
    if not first.endswith(".") or len(first.split()) < 2:
        return [f"the first line is not a sentence: {first!r}"]
    return []


def _argument_faults(
    parameters: list[tuple[str, ast.expr | None]], sections: dict[str, str]
) -> list[str]:
    described = arguments_of("Args:\n" + sections["Args"]) if "Args" in sections else {}
    faults = [f"no description of `{name}`" for name, _ in parameters if name not in described]
    faults += [f"`{name}` is not an argument" for name in described if name not in dict(parameters)]
    if not faults and list(described) != [name for name, _ in parameters]:
        faults.append("`Args:` is not in the order of the signature")
    for name, default in parameters:
        description = described.get(name, "default")
        if (
            default is not None
            and "default" not in description
            and not description.startswith("Deprecated")
        ):
            faults.append(f"no description of the default of `{name}`")
    return faults


def _parameters(node: Function, is_method: bool) -> list[tuple[str, ast.expr | None]]:
    """The parameters of a function with their defaults."""
    given = node.args
    places = [*given.posonlyargs, *given.args]
    defaults = [None] * (len(places) - len(given.defaults)) + list(given.defaults)
    pairs = [(each.arg, default) for each, default in zip(places, defaults)][int(is_method) :]
    if given.vararg is not None:
        pairs.append((f"*{given.vararg.arg}", None))
    pairs += [(each.arg, value) for each, value in zip(given.kwonlyargs, given.kw_defaults)]
    if given.kwarg is not None:
        pairs.append((f"**{given.kwarg.arg}", None))
    return pairs


def _is(node: Function, *decorators: str) -> bool:
    return any(ast.unparse(each) in decorators for each in node.decorator_list)


def _statements(tree: ast.Module | ast.ClassDef) -> Iterator[ast.stmt]:
    """The statements of a module, including those under a top-level `if` or `try`."""
    for node in tree.body:
        if isinstance(node, (ast.If, ast.Try)):
            yield from node.body
        else:
            yield node


def _targets(node: ast.Assign | ast.AnnAssign) -> list[str]:
    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
    return [target.id for target in targets if isinstance(target, ast.Name)]
