"""Runs jobs by the server at a socket, as any program with Python's gRPC library would.

Arguments: the descriptors of the messages, the socket, a directory, and the authority to name, if any.
"""

import sys

import grpc
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

descriptors, socket, directory, *authority = sys.argv[1:]

pool = descriptor_pool.DescriptorPool()
with open(descriptors, "rb") as file:
    for proto in descriptor_pb2.FileDescriptorSet.FromString(file.read()).file:
        pool.Add(proto) if hasattr(pool, "Add") else pool.AddSerializedFile(proto.SerializeToString())


def message(name):
    descriptor = pool.FindMessageTypeByName("proto." + name)
    if hasattr(message_factory, "GetMessageClass"):
        return message_factory.GetMessageClass(descriptor)
    return message_factory.MessageFactory(pool).GetPrototype(descriptor)


options = [("grpc.default_authority", name) for name in authority]
channel = grpc.insecure_channel("unix:" + socket, options=options)


def call(name, **fields):
    """Calls a method and returns its answer, or the answers of one that has many."""
    make = channel.unary_stream if name == "FollowLogs" else channel.unary_unary
    method = make(
        "/proto.StepRunner/" + name,
        request_serializer=lambda request: request.SerializeToString(),
        response_deserializer=message(name + "Response").FromString,
    )
    answer = method(message(name + "Request")(**fields), timeout=600)
    return list(answer) if name == "FollowLogs" else answer


def steps(script):
    return "{}\n---\nrun: [{name: a, script: '" + script + "'}]\n"


print("grpc", grpc.__version__)
health = channel.unary_unary("/grpc.health.v1.Health/Check")(b"", timeout=600)
print("healthy", str(health == b"\x08\x01").lower())

call("Run", id="1", work_dir=directory, steps=steps("echo hello; exit 3"))
log = b"".join(answer.data for answer in call("FollowLogs", id="1"))
print("log", str(log.endswith(b"hello\n")).lower())
print("status", call("Status", id="1").jobs[0].message)
call("Close", id="1")
print("jobs", len(call("Status").jobs))

call("Run", id="2", work_dir=directory, steps=steps("echo up; sleep 1000"))
call("Cancel", id="2")
call("FollowLogs", id="2")
print("cancelled", call("Status", id="2").jobs[0].status)
call("Close", id="2")
try:
    call("FollowLogs", id="2")
except grpc.RpcError as error:
    print("error", error.code().name, error.details())
