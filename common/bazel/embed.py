"""Writes a C++ file that holds text files, for a Bazel genrule.

  embed.py OUTPUT HEADER TYPE FUNCTION FILE...

OUTPUT defines `absl::Span<const TYPE> nereus::FUNCTION()`, which HEADER declares: one
TYPE{name, text} per FILE, sorted by name, which is the file's name without its suffix.
"""

import pathlib
import sys

ESCAPES = {"\\": "\\\\", '"': '\\"', "\n": "\\n", "\t": "\\t", "\r": "\\r", "?": "\\?"}


def literal(text):
    """`text` as adjacent C++ string literals, one per line of it."""
    lines = text.splitlines(keepends=True) or [""]
    for character in set(text):
        if character not in ESCAPES and not " " <= character <= "~":
            sys.exit(f"embed.py: character {character!r} is not plain ASCII")
    return "\n".join(
        '        "' + "".join(ESCAPES.get(character, character) for character in line) + '"'
        for line in lines
    )


def main(output, header, type_name, function, *files):
    entries = sorted((pathlib.Path(file).stem, pathlib.Path(file).read_text()) for file in files)
    table = "".join(f"    {{\"{name}\",\n{literal(text)}}},\n" for name, text in entries)
    pathlib.Path(output).write_text(
        f'#include "{header}"\n\n'
        "namespace nereus {\nnamespace {\n\n"
        f"constexpr {type_name} kFiles[] = {{\n{table}}};\n\n"
        "}  // namespace\n\n"
        f"absl::Span<const {type_name}> {function}() {{ return kFiles; }}\n\n"
        "}  // namespace nereus\n"
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
