"""What the outputs of a node and the inputs of its subgraphs are computed from, with the rules for If, Loop and Scan."""

from jquant.onnx.graphs.graph import Node

CONTROL_FLOW = frozenset({"If", "Loop", "Scan"})  # their results are static if those of their subgraphs are


def output_sources(node: Node, index: int) -> list[str]:
    """The values that must be known for an output of a node to be known."""
    if node.qualified_operator not in CONTROL_FLOW:
        return list(node.inputs)
    bodies = [[value.name for value in body.outputs] for body in node.subgraphs.values()]
    if node.qualified_operator == "Scan":
        states, first = _scan_states(node)
        initial = node.inputs[first + index : first + index + 1] if index < states else ()
        return [*initial, *bodies[0][index : index + 1]]
    if node.qualified_operator == "Loop":
        return [*node.inputs[:2], *node.inputs[index + 2 : index + 3], *bodies[0][:1], *bodies[0][index + 1 : index + 2]]
    return [node.inputs[0], *(body[index] for body in bodies if index < len(body))]


def decide_sizes(node: Node) -> tuple[str, ...]:
    """The operands on which the size of a result depends: a Loop's limit and condition, if it collects outputs, and the
    condition of an If that chooses a sequence."""
    if node.qualified_operator == "Loop" and len(node.outputs) > max(0, len(node.inputs) - 2):
        return node.inputs[:2]
    bodies = node.subgraphs.values()
    if node.qualified_operator == "If" and any(value.dtype is None for body in bodies for value in body.outputs):
        return node.inputs[:1]
    return ()


def body_input_sources(node: Node) -> dict[str, list[str]]:
    """For each input of a loop's body, the values that must be known for it to be known."""
    if node.qualified_operator not in ("Loop", "Scan") or "body" not in node.subgraphs:
        return {}
    body = node.subgraphs["body"]
    outputs = [value.name for value in body.outputs]
    if node.qualified_operator == "Loop":  # its body computes the condition, and receives it with the iteration number
        end = [*node.inputs[:2], *outputs[:1]]
        sources = [end, end, *([*end, name, *outputs[i + 1 : i + 2]] for i, name in enumerate(node.inputs[2:]))]
    else:
        states, first = _scan_states(node)
        sources = [[name, *outputs[i : i + 1]] for i, name in enumerate(node.inputs[first : first + states])]
        sources += [[name] for name in node.inputs[first + states :]]
    return {value.name: names for value, names in zip(body.inputs, sources, strict=False)}


def _scan_states(node: Node) -> tuple[int, int]:
    """How many states a Scan has, and the position of the first operand that is one."""
    first = 1 if node.version < 9 else 0
    scanned = node.attributes.get("num_scan_inputs", 0)
    return len(node.inputs) - first - (scanned if isinstance(scanned, int) else 0), first
