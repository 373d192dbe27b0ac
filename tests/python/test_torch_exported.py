"""load_exported with files of this test. test_torch.py loads what a real job has exported."""

import json
import zlib

import pytest

torch = pytest.importorskip("torch")
import nereus.torch as nt  # pylint: disable=wrong-import-position

STATISTICS = ["1.running_mean", "1.running_var"]


def make_model():
    return torch.nn.Sequential(
        torch.nn.Conv2d(1, 64, 8), torch.nn.BatchNorm2d(64), torch.nn.Flatten(),
        torch.nn.Linear(64, 70), torch.nn.Linear(70, 2))


def values_of(model):
    """Returns the tensors that `nereusctl export` writes for a model, by their names."""
    state = model.state_dict()
    small = [name for name, each in model.named_parameters() if each.numel() < 4096]
    return {
        "nereus.torch": torch.zeros(9),
        "0.weight": state["0.weight"].reshape(64, 64),
        "3.weight": state["3.weight"],
        shared_name(small, state): torch.cat([state[name].flatten() for name in small]),
        shared_name(STATISTICS, state): torch.cat([state[name] for name in STATISTICS])}


def shared_name(names, state, called=""):
    """Returns the name of the layer of several parameters, which are called so in the job."""
    parts = "".join(f"{called}{name} {tuple(state[name].shape)}\n" for name in names)
    return (f"{called}{names[0]} to {called}{names[-1]} "
            f"#{zlib.crc32(parts.encode()):08x}")


def write(path, tensors):
    """Writes tensors as a safetensors file."""
    header, place = {"__metadata__": {"job": "default", "round": "7"}}, 0
    for name, each in tensors.items():
        header[name] = {"dtype": "F32", "shape": list(each.shape),
                        "data_offsets": [place, place + 4 * each.numel()]}
        place += 4 * each.numel()
    text = json.dumps(header).encode()
    data = b"".join(each.contiguous().numpy().tobytes() for each in tensors.values())
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)


@pytest.fixture
def model():
    made = make_model()
    made[1].running_mean.normal_()
    made[1].running_var.uniform_()
    return made


def test_a_model_gets_its_parameters_and_statistics(model, tmp_path):
    write(tmp_path / "file", values_of(model))
    found = make_model()
    nt.load_exported(found, tmp_path / "file")
    expected = model.state_dict()
    assert all(torch.equal(each, expected[name]) for name, each in found.state_dict().items())


def test_frozen_parameters_are_no_part_of_the_file(model, tmp_path):
    for each in model[0].parameters():
        each.requires_grad_(False)
    tensors = values_of(model)
    del tensors["0.weight"]
    small = [name for name, each in model.named_parameters() if each.numel() < 4096]
    first = tensors.pop(shared_name(small, model.state_dict()))
    tensors[shared_name(small[1:], model.state_dict())] = first[64:]
    write(tmp_path / "file", tensors)
    found = make_model()
    with pytest.raises(nt.InvalidArgument, match="no tensor 0.weight.*frozen"):
        nt.load_exported(found, tmp_path / "file")
    for each in found[0].parameters():
        each.requires_grad_(False)
    nt.load_exported(found, tmp_path / "file")
    assert torch.equal(found[4].bias, model[4].bias)
    assert not torch.equal(found[0].bias, model[0].bias)


def test_names_may_be_those_of_the_training(model, tmp_path):
    names = {name: f"net.{name}" for name, _ in model.named_parameters()}
    tensors = values_of(model)
    state = model.state_dict()
    small = [name for name, each in model.named_parameters() if each.numel() < 4096]
    renamed = {"net.0.weight": tensors["0.weight"],
               "net.3.weight": tensors["3.weight"],
               shared_name(small, state, "net."): tensors[shared_name(small, state)],
               shared_name(STATISTICS, state): tensors[shared_name(STATISTICS, state)]}
    write(tmp_path / "file", renamed)
    found = make_model()
    nt.load_exported(found, tmp_path / "file", named_parameters=[
        (names[name], each) for name, each in found.named_parameters()])
    assert torch.equal(found[3].weight, model[3].weight)


def test_modules_in_another_order_are_refused(tmp_path):
    class Net(torch.nn.Module):
        def __init__(self, names):
            super().__init__()
            for name in names:
                setattr(self, name, torch.nn.Linear(8, 8))

    net = Net("abcd")
    names = [name for name, _ in net.named_parameters()]
    write(tmp_path / "file", {
        "nereus.torch": torch.zeros(9),
        shared_name(names, net.state_dict()): torch.cat(
            [each.flatten() for each in net.state_dict().values()])})
    same = Net("abcd")
    nt.load_exported(same, tmp_path / "file")
    assert torch.equal(same.b.weight, net.b.weight)
    with pytest.raises(nt.InvalidArgument, match="no tensor a.weight to d.bias #.*same order"):
        nt.load_exported(Net("acbd"), tmp_path / "file")


def test_a_file_in_another_memory_format_is_refused(tmp_path):
    def make(memory_format):
        return torch.nn.Sequential(torch.nn.Conv2d(8, 64, 3, bias=False),
                                   torch.nn.Conv2d(64, 2, 3, bias=False)).to(
                                       memory_format=memory_format)

    last = make(torch.channels_last)
    lines = last.state_dict()
    write(tmp_path / "file", {
        "nereus.torch": torch.zeros(9),
        "0.weight (72, 1, 24, 8).weight": lines["0.weight"].permute(0, 2, 3, 1),
        "1.weight (576, 1, 192, 64).weight": lines["1.weight"].permute(0, 2, 3, 1)})
    found = make(torch.channels_last)
    nt.load_exported(found, tmp_path / "file")
    assert torch.equal(found[0].weight, last[0].weight)
    assert torch.equal(found[1].weight, last[1].weight)
    with pytest.raises(nt.InvalidArgument, match="no tensor 0.weight, but"):
        nt.load_exported(make(torch.contiguous_format), tmp_path / "file")


def test_a_file_of_another_model_changes_nothing(model, tmp_path):
    found = make_model()
    before = {name: each.clone() for name, each in found.state_dict().items()}
    tensors = values_of(model)
    for change, text in (
            ({"3.weight": torch.zeros(70, 65)}, "3.weight has 4550 values.* 4480"),
            ({"5.weight": torch.zeros(3)}, "model has no layer for the tensor 5.weight")):
        write(tmp_path / "file", {**tensors, **change})
        with pytest.raises(nt.InvalidArgument, match=text):
            nt.load_exported(found, tmp_path / "file")
    assert all(torch.equal(each, before[name]) for name, each in found.state_dict().items())


@pytest.mark.parametrize("content", [b"", b"12345678", b"\x02\0\0\0\0\0\0\0[]",
                                     b"\xff\xff\xff\xff\xff\xff\xff\x7f{}"])
def test_a_file_of_another_kind_is_named(tmp_path, content):
    (tmp_path / "file").write_bytes(content)
    with pytest.raises(nt.InvalidArgument, match="file is no file of `nereusctl export`"):
        nt.load_exported(make_model(), tmp_path / "file")
