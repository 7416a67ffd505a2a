//! The example plugin with a real containerd.

use std::io::{self, Write};
use std::os::unix::net::UnixStream;
use std::sync::mpsc::{Sender, channel};
use std::thread;

use oci_hooks_testsupport::program::{DEADLINE, wait_until};

use crate::containerd::{ContainerParams, Containerd};

#[path = "../../examples/plugin.rs"]
#[expect(dead_code, reason = "nobody calls its main")]
mod plugin;

/// Sends each write to a channel.
struct ChannelWriter(Sender<String>);

impl Write for ChannelWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.send(String::from_utf8_lossy(bytes).into_owned()).map_err(io::Error::other)?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn a_container_gets_the_variable_of_the_example_plugin() {
    let containerd = Containerd::start();
    let (sender, printed) = channel();
    let socket = UnixStream::connect(containerd.path("nri.sock")).unwrap();
    let plugin = thread::spawn(|| {
        plugin::serve(socket, plugin::ExamplePlugin(ChannelWriter(sender)))
            .map_err(|error| error.to_string())
    });
    wait_until("the connection of the plugin", || {
        containerd.log().contains("example\\\" connected")
    });

    let pod = containerd.pod("runc", &[]);
    let command = &["/bin/sh", "-c", "test $SEEN_BY$OF_THE_IMAGE = example1"];
    let id = containerd
        .create(&pod, "main", &ContainerParams { command, ..ContainerParams::default() })
        .unwrap();
    assert_eq!(containerd.run(&id), 0);

    let mut line = String::new();
    while !line.ends_with('\n') {
        line += &printed.recv_timeout(DEADLINE).unwrap();
    }
    assert_eq!(line, format!("tests/pod-0/main: {}\n", command.join(" ")));
    drop(containerd);
    assert_eq!(plugin.join().unwrap(), Ok(()));
}
