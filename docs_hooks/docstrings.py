"""The API reference: names that modules share with their content, and bare examples."""

import re
from typing import Any

from griffe import (
    Alias,
    Attribute,
    Class,
    Docstring,
    Extension,
    Function,
    GriffeLoader,
    Module,
    Object,
)

# A doctest that stands alone in a docstring, up to the next empty line.
DOCTEST = re.compile(r"^>>> .*(?:\n.+)*", re.MULTILINE)


class Docstrings(Extension):
    """What mkdocstrings needs to show `calibrant.losses.focal`, a function in a module `focal`."""

    def on_instance(self, *, obj: Object, **_: Any) -> None:
        """Mark doctests as code; Markdown would take `>>>` for a quotation."""
        if obj.docstring:
            obj.docstring.value = DOCTEST.sub(r"```pycon\n\g<0>\n```", obj.docstring.value)

    def on_attribute_instance(self, *, attr: Attribute, **_: Any) -> None:
        """Show dicts such as `METRICS`; fields of classes are in the signature already."""
        if isinstance(attr.parent, Module) and attr.name.isupper() and not attr.docstring:
            attr.docstring = Docstring("All members by name.", parent=attr)

    def on_package(self, *, pkg: Module, loader: GriffeLoader, **_: Any) -> None:
        """Let a public name be what the package imports under it, not the module of that name."""
        loader.resolve_aliases()
        for package in [pkg, *pkg.modules.values()]:
            for name in package.exports or ():
                module = package.members.get(str(name))
                if isinstance(module, Module) and str(name) in package.imports:
                    inside = module.members.get(package.imports[str(name)].rpartition(".")[2])
                    if isinstance(inside, (Class, Function)):
                        package.members[str(name)] = Alias(str(name), inside, parent=package)
