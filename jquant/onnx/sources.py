"""What a value is computed from, including through subgraphs of If, Loop and Scan."""

from jquant.onnx.graph import Node

CONTROL_FLOW = frozenset({"If", "Loop", "Scan"})  # as static as what their subgraphs compute


def of_output(node: Node, index: int) -> list[str]:
    """The values that must be known for an output of a node to be known."""
    if node.kind not in CONTROL_FLOW:
        return list(node.inputs)
    bodies = [[value.name for value in body.outputs] for body in node.subgraphs.values()]
    if node.kind == "Scan":
        states, first = _split(node)
        initial = node.inputs[first + index : first + index + 1] if index < states else ()
        return [*initial, *bodies[0][index : index + 1]]
    if node.kind == "Loop":
        return [*node.inputs[:2], *node.inputs[index + 2 : index + 3], *bodies[0][:1], *bodies[0][index + 1 : index + 2]]
    return [node.inputs[0], *(body[index] for body in bodies if index < len(body))]


def decide_sizes(node: Node) -> tuple[str, ...]:
    """The operands on which the size of a result depends: how often a Loop collects outputs, which sequence an If picks."""
    if node.kind == "Loop" and len(node.outputs) > max(0, len(node.inputs) - 2):
        return node.inputs[:2]
    if node.kind == "If" and any(value.dtype is None for body in node.subgraphs.values() for value in body.outputs):
        return node.inputs[:1]
    return ()


def of_body_inputs(node: Node) -> dict[str, list[str]]:
    """The inputs of a loop's body, with the values that must be known for them."""
    if node.kind not in ("Loop", "Scan") or "body" not in node.subgraphs:
        return {}
    body = node.subgraphs["body"]
    outputs = [value.name for value in body.outputs]
    if node.kind == "Loop":  # its body computes the condition, and receives it with the iteration number
        end = [*node.inputs[:2], *outputs[:1]]
        given = [end, end, *([*end, name, *outputs[i + 1 : i + 2]] for i, name in enumerate(node.inputs[2:]))]
    else:
        states, first = _split(node)
        given = [[name, *outputs[i : i + 1]] for i, name in enumerate(node.inputs[first : first + states])]
        given += [[name] for name in node.inputs[first + states :]]
    return {value.name: sources for value, sources in zip(body.inputs, given, strict=False)}


def _split(node: Node) -> tuple[int, int]:
    """How many states a Scan has, and the index of the operand where they begin."""
    first = 1 if node.version < 9 else 0
    scanned = node.attributes.get("num_scan_inputs", 0)
    return len(node.inputs) - first - (scanned if isinstance(scanned, int) else 0), first
