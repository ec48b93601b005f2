"""Every message that a user can meet is listed with its remedy."""

import ast
import pathlib

ROOT = pathlib.Path(__file__).parent.parent
LISTED = (ROOT / "docs" / "what_goes_wrong.md").read_text().replace("`", "")
GAP = "\0"
# What holds another message only, or is for whoever writes an engine.
NOT_OF_USERS = (
    "not a whole checkpoint",
    "has no operations",
    "has no attribute",
    "changes all variables",
)


def template(node):
    """The text of an expression, with a gap where a value goes."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(template(value) for value in node.values)
    if isinstance(node, ast.BinOp):
        return template(node.left) + template(node.right)
    return GAP


def messages():
    for path in sorted([*(ROOT / "tfdist").rglob("*.py"), *(ROOT / "callbacks").rglob("*.py")]):
        for node in ast.walk(ast.parse(path.read_text())):
            call = node.exc if isinstance(node, ast.Raise) else node
            is_log = (
                isinstance(call, ast.Call)
                and isinstance(call.func, ast.Attribute)
                and call.func.attr in ("warning", "warn", "error")
            )
            if isinstance(call, ast.Call) and call.args and (isinstance(node, ast.Raise) or is_log):
                yield f"{path.relative_to(ROOT)}:{node.lineno}", template(call.args[0])


def words(text):
    """The first part without a value that is long enough to be known again, or as much of it as tells it from others."""
    for mark in ("%s", "%d", "%g"):
        text = text.replace(mark, GAP)
    parts = [part.strip(" .:,;") for part in text.replace("`", "").split(GAP)]
    return next((part for part in parts if len(part) >= 12), "")[:24].strip(" .:,")


def test_each_message_is_listed():
    missing = {}
    for place, text in messages():
        part = words(text)
        if part.endswith("must be one of"):
            part = "must be one of"  # each argument that takes a name
        if part and not part.startswith(NOT_OF_USERS) and part not in LISTED:
            missing[place] = text.replace(GAP, "...")
    assert not missing, "\n".join(f"{place}: {text}" for place, text in missing.items())


def test_messages_are_found():
    assert len(list(messages())) > 100
    assert words(f"`{GAP}` must be 0 or more, since it is a size. Received: {GAP}.") == "must be 0 or more, since"
    assert words("Rank %d has waited %g s for other ranks, about to: %s.") == "s for other ranks, about"
