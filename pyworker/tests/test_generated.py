"""The generated code that is checked in is that of the contracts."""

from __future__ import annotations

from pathlib import Path

import pytest
from google.protobuf.descriptor_pb2 import DescriptorProto, FileDescriptorProto, FileDescriptorSet
from grpc_tools import protoc
from pelton.rpc import pelton_pb2, pelton_pb2_grpc, worker_pb2, worker_pb2_grpc

PROTOS = Path(__file__).resolve().parents[2] / "proto"


@pytest.mark.parametrize(("name", "messages"), [("pelton", pelton_pb2), ("worker", worker_pb2)])
def test_generated_messages_are_current(tmp_path: Path, name: str, messages: object) -> None:
    out = tmp_path / "descriptors"
    assert protoc.main(["protoc", f"-I{PROTOS}", f"-o{out}", f"pelton/v1/{name}.proto"]) == 0
    (expected,) = FileDescriptorSet.FromString(out.read_bytes()).file
    for message in expected.message_type:
        forget_json_names(message)
    assert FileDescriptorProto.FromString(messages.DESCRIPTOR.serialized_pb) == expected  # type: ignore[attr-defined]


def forget_json_names(message: DescriptorProto) -> None:
    """They follow from the names, and generated code leaves them out."""
    for field in message.field:
        field.ClearField("json_name")
    for nested in message.nested_type:
        forget_json_names(nested)


def test_generated_services_have_every_call() -> None:
    for file, servicer in (
        (pelton_pb2.DESCRIPTOR, pelton_pb2_grpc.PeltonServicer),
        (worker_pb2.DESCRIPTOR, worker_pb2_grpc.WorkerServicer),
    ):
        (service,) = file.services_by_name.values()
        assert {method.name for method in service.methods} == {name for name in vars(servicer) if name[0].isupper()}
