"""The view of nereus.h is that of the C compiler; a library that is missing or old is an
error that says what to do."""

import ctypes
import os
import re
import shutil
import subprocess
import sys

import pytest

import nereus
from nereus import _native, errors
from nereus.options import Options, native_options

STRUCTS = {"nereus_client_options": _native.ClientOptions, "nereus_layer": _native.Layer,
           "nereus_step": _native.Step, "nereus_traits": _native.Traits,
           "nereus_factors": _native.Factors, "nereus_setting": _native.Setting}
COMPILER = shutil.which("cc")
needs_compiler = pytest.mark.skipif(not COMPILER, reason="there is no C compiler, cc")


def header(root):
    with open(os.path.join(root, "worker/c_api/nereus.h"), encoding="utf-8") as file:
        return file.read()


def compile_c(root, folder, text, *flags):
    source, program = folder / "source.c", folder / "program"
    source.write_text('#include <stddef.h>\n#include <stdio.h>\n#include "nereus.h"\n' + text)
    subprocess.run([COMPILER, "-std=c99", f"-I{root}/worker/c_api", *flags, str(source),
                    "-o", str(program)], check=True)
    return str(program)


@needs_compiler
def test_structs_are_those_of_the_header(root, tmp_path):
    lines, expected = [], []
    for name, struct in STRUCTS.items():
        lines.append(f'printf("{name} %zu\\n", sizeof({name}));')
        expected.append(f"{name} {ctypes.sizeof(struct)}")
        for field, _ in struct._fields_:
            lines.append(f'printf("{name}.{field} %zu %zu\\n", offsetof({name}, {field}), '
                         f"sizeof((({name}*)0)->{field}));")
            place = getattr(struct, field)
            expected.append(f"{name}.{field} {place.offset} {place.size}")
    program = compile_c(root, tmp_path, "int main(void) {" + "".join(lines) + "}")
    result = subprocess.run([program], capture_output=True, text=True, check=True)
    assert result.stdout.splitlines() == expected


# Types of nereus.h, without const, and of ctypes. Values are addresses, so float* is a number.
TYPES = {"int32_t": ctypes.c_int32, "uint32_t": ctypes.c_uint32, "int64_t": ctypes.c_int64,
         "float": ctypes.c_float, "double": ctypes.c_double, "char*": ctypes.c_char_p,
         "float*": ctypes.c_void_p,
         "void*": ctypes.c_void_p, "nereus_client*": ctypes.c_void_p,
         "nereus_lobby*": ctypes.c_void_p, "nereus_code": ctypes.c_int32}


def type_of(text):
    """Returns the type of ctypes for a declaration such as "const float* input"."""
    text = re.sub(r"\bconst\b|\w+$", "", text).replace(" ", "")
    if text in TYPES:
        return TYPES[text]
    name = text[:-1]
    assert text.endswith("*"), text
    return ctypes.POINTER(STRUCTS.get(name) or TYPES[name])


def test_fields_of_structs_are_those_of_the_header(root):
    for name, struct in STRUCTS.items():
        body = re.search(rf"typedef struct {name} {{(.*?)}} {name};", header(root), re.S)[1]
        fields = re.sub(r"//.*", "", body).split(";")[:-1]
        assert [(field.split()[-1], type_of(field.strip())) for field in fields] == (
            struct._fields_)


def test_constants_are_those_of_the_header(root):
    constants = {name: int(value) for name, value in
                 re.findall(r"(NEREUS_\w+)(?: =)? (\d+)", header(root))}
    assert constants["NEREUS_ABI_VERSION"] == _native.ABI_VERSION
    assert constants["NEREUS_MEMORY_CUDA"] == _native.MEMORY_CUDA
    for name, value in _native.OPTIMIZERS.items():
        assert constants["NEREUS_OPTIMIZER_" + name.upper()] == value
    kinds = {"vector": "VECTOR", "fc": "FULLY_CONNECTED", "conv": "CONVOLUTION",
             "embedding": "EMBEDDING"}
    for name, value in _native.LAYER_KINDS.items():
        assert constants["NEREUS_LAYER_" + kinds[name]] == value
    codes = [name for name in vars(errors) if name.isupper() and name[0] != "_"]
    assert len(codes) == 7
    for name in codes:
        assert constants["NEREUS_" + name] == getattr(errors, name)


def test_functions_are_those_of_the_header(root):
    text = re.sub(r"//.*", "", header(root))
    declared = {name: tuple(type_of(argument.strip()) for argument in arguments.split(","))
                for name, arguments in
                re.findall(r"NEREUS_API nereus_code (\w+)\((.*?)\);", text, re.S)}
    # The package reads the error of the thread instead.
    assert declared.pop("nereus_client_error")
    assert _native.FUNCTIONS == declared


def test_the_version_is_that_of_nereus_and_loads_no_library(root, monkeypatch):
    with open(os.path.join(root, "common/base/version.h"), encoding="utf-8") as file:
        version = re.search(r'kVersion\[\] = "(.*)"', file.read())[1]
    monkeypatch.setattr(_native, "load", lambda file: pytest.fail("it loads " + file))
    monkeypatch.setattr(_native, "_loaded", None)
    assert nereus.__version__ == version


def test_a_missing_library_names_all_places(monkeypatch):
    monkeypatch.delenv("NEREUS_LIBRARY", raising=False)
    with pytest.raises(nereus.LibraryError) as error:
        _native.load("libnereus_that_is_nowhere.so")
    text = str(error.value)
    assert "Set NEREUS_LIBRARY to its path" in text
    beside = os.path.join(os.path.dirname(nereus.__file__), "libnereus_that_is_nowhere.so")
    assert f"\n  {beside}: " in text
    assert "\n  libnereus_that_is_nowhere.so: " in text


def test_a_chosen_library_is_the_only_one(monkeypatch, tmp_path):
    wrong = tmp_path / "libnereus.so"
    wrong.write_text("no library")
    monkeypatch.setenv("NEREUS_LIBRARY", str(wrong))
    with pytest.raises(nereus.LibraryError) as error:
        _native.load("libnereus.so")
    assert str(error.value).count("\n") == 1 and f"\n  {wrong}: " in str(error.value)


@needs_compiler
def test_a_library_of_another_kind_is_refused(monkeypatch, root, tmp_path):
    other = compile_c(root, tmp_path, "int unused;", "-shared", "-fPIC")
    monkeypatch.setenv("NEREUS_LIBRARY", other)
    with pytest.raises(nereus.LibraryError, match="nereus_abi_version"):
        _native.load("libnereus.so")


@needs_compiler
def test_an_old_library_is_refused_with_both_versions(monkeypatch, root, tmp_path):
    old = compile_c(root, tmp_path, "int32_t nereus_abi_version(void) { return 0; }",
                    "-shared", "-fPIC")
    monkeypatch.setenv("NEREUS_LIBRARY", old)
    with pytest.raises(nereus.LibraryError, match="has version 0 .* needs at least 4"):
        _native.load("libnereus.so")


@pytest.mark.parametrize("code, joining, kind", [
    (1, False, nereus.WorkerLost), (3, False, nereus.InvalidArgument),
    (4, False, nereus.Stalled), (9, False, nereus.NereusError),
    (11, False, nereus.JobWentBack), (14, False, nereus.NereusError),
    (9, True, nereus.ModelMismatch), (11, True, nereus.JobFinished),
    (14, True, nereus.Unreachable), (3, True, nereus.InvalidArgument)])
def test_codes_are_classes(code, joining, kind):
    error = errors.error_of(code, "why", joining)
    assert type(error) is kind
    assert (error.outcome, str(error)) == (code, "why")


@pytest.mark.parametrize("kind, code", [(nereus.JobFinished, 0), (nereus.WorkerLost, 75),
                                        (nereus.Unreachable, 1)])
def test_exit_code_of_a_program_that_does_not_catch_an_error(kind, code):
    program = f"import nereus; raise nereus.{kind.__name__}('why it ends', 11)"
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False,
        env={**os.environ, "PYTHONPATH": os.path.dirname(os.path.dirname(nereus.__file__))})
    assert ended.returncode == code
    assert "why it ends" in ended.stderr


def test_a_failed_call_has_the_text_of_the_library(library_path):
    library = _native.library()
    with pytest.raises(nereus.InvalidArgument, match="level is 7, must be 0 to 3"):
        _native.check(library.nereus_set_log_level(7))


def test_options_come_from_the_environment(monkeypatch):
    for variable in [name for name in os.environ if name.startswith("NEREUS_")]:
        monkeypatch.delenv(variable)
    assert Options.from_environment() == Options()
    for variable, value in {"COORDINATOR": "h:1", "JOB_NAME": "j", "NAME": "w", "HOST": "a",
                            "NODE": "n", "RANK": "3", "CONTROL_PORT": "7", "DATA_PORT": "8",
                            "SHARED_MEMORY": "off"}.items():
        monkeypatch.setenv("NEREUS_" + variable, value)
    assert Options.from_environment() == Options(
        coordinator="h:1", job="j", name="w", rank=3, host="a", node="n", control_port=7,
        data_port=8, shared_memory=False)
    assert Options.from_environment(name="x", data_port=0).name == "x"
    monkeypatch.setenv("NEREUS_NAME", "")
    assert Options.from_environment().name == ""
    monkeypatch.setenv("NEREUS_DATA_PORT", "many")
    with pytest.raises(nereus.InvalidArgument, match='NEREUS_DATA_PORT is "many"'):
        Options.from_environment()
    assert Options.from_environment(data_port=5).data_port == 5
    monkeypatch.setenv("NEREUS_SHARED_MEMORY", "on")
    with pytest.raises(nereus.InvalidArgument, match='"on", must be auto or off'):
        Options.from_environment(data_port=5)


@pytest.mark.parametrize("variables, rank", [
    ({}, None),
    ({"NEREUS_LOCAL_RANK": "2"}, 2),
    ({"RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "NEREUS_LOCAL_RANK": "1"}, 5),
    ({"NEREUS_RANK": "7", "RANK": "5", "WORLD_SIZE": "8", "NEREUS_LOCAL_RANK": "1"}, 7)])
def test_the_rank_is_that_of_the_launcher(monkeypatch, variables, rank):
    for variable in [name for name in os.environ if name.startswith(("NEREUS_", "SLURM_"))]:
        monkeypatch.delenv(variable)
    for variable, value in variables.items():
        monkeypatch.setenv(variable, value)
    options = Options.from_environment()
    assert options.rank == rank
    native = native_options(options)
    assert (native.has_rank, native.rank) == (rank is not None, rank or 0)
    assert Options.from_environment(rank=0).rank == 0


def test_options_become_those_of_the_library():
    native = native_options(Options(
        coordinator="h:1", job="j", optimizer="any", settings={"batch": 4, "seed": "x"},
        shared_memory=False, means_apart=True, scales_loss=True, optimizer_has_state=False,
        connect_timeout=1.5, round_timeout=2, stall_threshold=0.0001, control_port=7, data_port=8))
    assert (native.coordinator_address, native.job, native.name) == (b"h:1", b"j", None)
    assert [(native.settings[i].name, native.settings[i].value) for i in range(2)] == [
        (b"batch", b"4"), (b"seed", b"x")]
    assert (native.optimizer, native.settings_count, native.without_shared_memory,
            native.means_apart, native.scales_loss, native.without_state,
            native.connect_timeout_ms,
            native.round_timeout_ms, native.stall_threshold_ms, native.control_port,
            native.data_port) == (2, 2, 1, 1, 1, 1, 1500, 2000, 1, 7, 8)
    assert native_options(Options()).connect_timeout_ms == 0


def test_an_unknown_option_is_named():
    with pytest.raises(nereus.InvalidArgument, match="there is no option bacth"):
        Options.from_environment(bacth=4)


def test_a_fork_before_the_first_client_may_use_the_library(library_path):
    code = ("import os, nereus; nereus._native.library()\n"
            "child = os.fork()\n"
            "if not child: nereus._native.check_not_forked(); os._exit(7)\n"
            "print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))")
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True,
                            check=True, env={**os.environ, "PYTHONPATH": os.path.dirname(
                                os.path.dirname(nereus.__file__))})
    assert result.stdout == "7\n"
