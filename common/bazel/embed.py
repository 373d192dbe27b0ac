"""Writes a C++ file that contains the text of other files. A Bazel genrule runs this.

  embed.py OUTPUT HEADER TYPE FUNCTION FILE...

OUTPUT defines `absl::Span<const TYPE> nereus::FUNCTION()`, which HEADER declares. The function
returns a TYPE{name, text} for each FILE, sorted by name. The name is the name of the file without
its suffix.
"""

import pathlib
import sys

ESCAPES = {"\\": "\\\\", '"': '\\"', "\n": "\\n", "\t": "\\t", "\r": "\\r", "?": "\\?"}


def literal(text):
    """Returns `text` as adjacent C++ string literals, one for each line of `text`."""
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
