"""Counts the fields and methods of C++ classes, from their declarations.

Made for sources that clang-format has formatted, and for style_test.py alone.
"""

import re

TOKEN = re.compile(
    r'//[^\n]*|/\*.*?\*/|R"(\w*)\(.*?\)\1"|"(?:\\.|[^"\\\n])*"'
    r"|'(?:\\.|[^'\\\n])+'", re.S)
CLASS = re.compile(
    r"\b(class|struct)\s+([A-Z][\w:]*)(\s+final)?\s*(:[^{;()]*)?\{")
# Declarations that are neither fields nor methods.
OTHER = re.compile(
    r"(using|friend|typedef|static_assert|template\s*<[^>]*>\s*(class|struct)"
    r"|class|struct|enum|union|static constexpr|constexpr)\b")


def without_comments(text):
    """The code alone: no comments, strings are empty."""
    text = re.sub(r"(?<=[0-9])'(?=[0-9])", "", text)
    return TOKEN.sub(
        lambda found: ("" if found[0][0] == "/" else '""') +
        "\n" * found[0].count("\n"), text)


def declarations(body):
    """The declarations in a class's body."""
    found, text, depth = [], "", 0
    for index, letter in enumerate(body):
        text += letter
        if letter == "{":
            depth += 1
        elif letter == "}":
            depth -= 1
            head = text.split("{")[0]
            is_method = ("(" in head and not head.rstrip().endswith("=")
                         and not re.match(r"\s*(class|struct|enum|union)\b", head)
                         and not body[index + 1:].lstrip().startswith((";", ",")))
            if depth == 0 and is_method:
                found.append(text)
                text = ""
        elif depth == 0 and letter == ";":
            found.append(text[:-1])
            text = ""
        elif depth == 0 and re.fullmatch(
                r"\s*(public|private|protected)\s*:", text):
            text = ""
    return [each.strip() for each in found if each.strip()]


def without_arguments(text):
    """A declaration without the arguments of its templates."""
    while True:
        shorter = re.sub(r"<[^<>]*>", "", text)
        if shorter == text:
            return text
        text = shorter


def kind(declaration):
    """"field", "method", or None."""
    if OTHER.match(declaration):
        return None
    text = without_arguments(declaration)
    head = re.sub(r"\b(ABSL_\w+|alignas)\s*\([^)]*\)", "",
                  text.split("{")[0].split("=")[0])
    if "operator" in text:
        return None if "delete" in text else "method"
    if "(" in head:
        return None if re.search(r"= delete$", declaration) else "method"
    return None if head.startswith("static") else "field"


def class_sizes(text):
    """For each class: its name, its line, its fields and its methods."""
    code = re.sub(r"(?m)^#.*$", "", without_comments(text))
    for found in CLASS.finditer(code):
        if re.search(r"enum\s*$", code[:found.start()]):
            continue
        depth, end = 1, found.end()
        while depth and end < len(code):
            depth += {"{": 1, "}": -1}.get(code[end], 0)
            end += 1
        kinds = [kind(each)
                 for each in declarations(code[found.end():end - 1])]
        yield (found[2], code[:found.start()].count("\n") + 1,
               kinds.count("field"), kinds.count("method"))
