# Runs jobs by the server at a socket, as any program with Ruby's gRPC library would.
#
# Arguments: the descriptors of the messages, the socket, a directory, and the authority to name, if any.

require "grpc"
require "google/protobuf/descriptor_pb"

descriptors, socket, @directory, authority = ARGV

POOL = Google::Protobuf::DescriptorPool.generated_pool
Google::Protobuf::FileDescriptorSet.decode(File.binread(descriptors)).file.each do |file|
  POOL.add_serialized_file(Google::Protobuf::FileDescriptorProto.encode(file))
end

def message(name)
  POOL.lookup("proto.#{name}").msgclass
end

# The library makes the class of a field only if somebody asked for the class by name.
%w[Status].each { |name| message(name) }

options = authority ? { "grpc.default_authority" => authority } : {}
STUB = GRPC::ClientStub.new("unix:#{socket}", :this_channel_is_insecure, channel_args: options)

# Calls a method and returns its answer, or the answers of one that has many.
def call(name, **fields)
  arguments = [
    "/proto.StepRunner/#{name}",
    message("#{name}Request").new(**fields),
    ->(request) { request.class.encode(request) },
    ->(bytes) { message("#{name}Response").decode(bytes) },
  ]
  return STUB.server_streamer(*arguments, deadline: Time.now + 600).to_a if name == "FollowLogs"

  STUB.request_response(*arguments, deadline: Time.now + 600)
end

def run(id, script)
  steps = "{}\n---\nrun: [{name: a, script: '#{script}'}]\n"
  call("Run", id: id, work_dir: @directory, steps: steps)
end

puts "grpc #{GRPC::VERSION}"
same = ->(bytes) { bytes }
health = STUB.request_response("/grpc.health.v1.Health/Check", "", same, same, deadline: Time.now + 600)
puts "healthy #{health == "\x08\x01"}"

run("1", "echo hello; exit 3")
puts "log #{call("FollowLogs", id: "1").map(&:data).join.end_with?("hello\n")}"
puts "status #{call("Status", id: "1").jobs[0].message}"
call("Close", id: "1")
puts "jobs #{call("Status").jobs.length}"

run("2", "echo up; sleep 1000")
call("Cancel", id: "2")
call("FollowLogs", id: "2")
puts "cancelled #{call("Status", id: "2").jobs[0].status}"
call("Close", id: "2")
begin
  call("FollowLogs", id: "2")
rescue GRPC::BadStatus => error
  puts "error #{error.class.name.split("::").last.upcase} #{error.details}"
end
