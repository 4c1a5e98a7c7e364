"""Draws the rooms in layers, lowest first, from the imports there are."""

from .modules import Module, dependencies


def room_graph(modules: dict[str, Module], top: str) -> dict[str, set[str]]:
    """The rooms of an import package, each with those of the same package that it imports."""
    rooms = {m.room for m in modules.values() if m.name.startswith(f"{top}.")}
    graph: dict[str, set[str]] = {room: set() for room in rooms if not room.endswith(".__main__")}
    for module in modules.values():
        if module.room in graph:
            used = {modules[t].room for t in dependencies(module, modules)}
            graph[module.room] |= {r for r in used if r in graph and r != module.room}
    return graph


def ranks(graph: dict[str, set[str]]) -> list[list[str]]:
    """Layers of rooms: each room stands just above the highest that it imports.

    Raises:
        ValueError: The rooms import each other in a circle.
    """
    left, layers = dict(graph), []
    while left:
        free = sorted(room for room, used in left.items() if not used & left.keys())
        if not free:
            raise ValueError(f"these rooms import each other in a circle: {sorted(left)}")
        layers.append(free)
        left = {room: used for room, used in left.items() if room not in free}
    return layers


def layers(modules: dict[str, Module]) -> str:
    """The layers of both import packages as text, highest first."""
    lines = []
    for top in ("jaxeff_export", "jaxeff"):
        lines.append(f"{top}/")
        for layer in reversed(ranks(room_graph(modules, top))):
            lines.append("    " + "  ".join(room.partition(".")[2] for room in layer))
    return "\n".join(lines)
