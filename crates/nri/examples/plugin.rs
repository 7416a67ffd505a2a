//! An NRI plugin for containerd and CRI-O: prints each container that is about to be created, and adds an
//! environment variable to it. Ends with the runtime.
//!
//! ```text
//! cargo run -p oci-hooks-nri --example plugin -- /var/run/nri/nri.sock
//! ```
//!
//! Limits: it does not wait for a runtime, as `SocketWatch` does, and runtimes cannot start it: they pass a
//! connected socket in `NRI_PLUGIN_SOCKET`.

use std::env;
use std::error::Error;
use std::io::{self, Read as _, Write};
use std::os::unix::net::UnixStream;

use oci_hooks_nri::wire::nri::{ContainerAdjustment, CreateContainerRequest, KeyValue};
use oci_hooks_nri::{NriSession, PluginIdentity, PluginService, container_name};

fn main() -> Result<(), Box<dyn Error>> {
    let path = env::args_os().nth(1).unwrap_or_else(|| "/var/run/nri/nri.sock".into());
    serve(UnixStream::connect(path)?, ExamplePlugin(io::stdout()))
}

/// Registers the plugin, and answers the runtime's calls until the connection is closed.
pub(crate) fn serve(
    mut socket: UnixStream,
    mut plugin: impl PluginService,
) -> Result<(), Box<dyn Error>> {
    let (mut session, registration) = NriSession::new(PluginIdentity::new("example", "90")?);
    socket.write_all(&registration)?;
    let mut buffer = vec![0; 64 << 10];
    loop {
        match socket.read(&mut buffer)? {
            0 => return Ok(()),
            count => socket.write_all(&session.receive(&buffer[..count], &mut plugin)?)?,
        }
    }
}

/// Prints containers to a stream.
pub(crate) struct ExamplePlugin<W>(pub W);

impl<W: Write> PluginService for ExamplePlugin<W> {
    fn create_container(
        &mut self,
        request: &CreateContainerRequest,
    ) -> Result<ContainerAdjustment, String> {
        let container = request.container.as_ref().ok_or("the request has no container")?;
        let name = container_name(request.pod.as_ref(), container);
        // An error would reject the container, and the reader of the output may be gone.
        let _ = writeln!(self.0, "{name}: {}", container.args.join(" "));
        let variable = KeyValue { key: "SEEN_BY".to_owned(), value: "example".to_owned() };
        Ok(ContainerAdjustment { env: vec![variable], ..Default::default() })
    }
}
