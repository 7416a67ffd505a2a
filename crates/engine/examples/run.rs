//! Pulls an image and runs a command in a container of it, without a daemon. Leaves nothing behind.
//!
//! ```text
//! cargo run -p oci-hooks-engine --example run -- docker.io/library/busybox echo hello
//! ```
//!
//! It needs runc or crun. Root and ordinary users can call it; users get more than one id if `/etc/subuid`
//! and `/etc/subgid` have ranges for them and `newuidmap` is installed.
//!
//! Limits: the container has no network but loopback, only public images are pulled, each time anew, and Ctrl-C does
//! not clean up. Programs that can be interrupted keep their directories and call `Engine::remove_orphans`.

use std::env;
use std::error::Error;
use std::ffi::OsStr;
use std::mem;
use std::process::{ExitCode, ExitStatus};

use oci_hooks_engine::container::{ContainerRole, ContainerSpec, Engine, MonitorProgram};
use oci_hooks_engine::runtime::{CONFINING, OciRuntime};
use oci_hooks_files::find::find;
use oci_hooks_host::privilege::{ForkSide, IdMaps, PauseProcess, Privilege, host_network};
use oci_hooks_image::{
    ClientOptions, Credentials, Platform, PullPolicy, PullRequest, SilentProgress,
};
use oci_hooks_image::{ImageStore, RegistryClient, StoreOptions, pull};

fn main() -> Result<ExitCode, Box<dyn Error>> {
    if Privilege::is_root_of_host() {
        return run(Privilege::Root);
    }
    // User, mount, PID and network namespaces, which end with this process. A copy of this process continues inside.
    let pause_process = PauseProcess::make(&IdMaps::of_process()?, None, None)?;
    match pause_process.pause_process().enter()? {
        ForkSide::Outside(copy) => Ok(exit_code(copy.wait(None, |_| ())?)),
        ForkSide::Inside(inside) => {
            // The outer process ends the pause process.
            mem::forget(pause_process);
            run(inside.privilege)
        }
    }
}

fn run(privilege: Privilege) -> Result<ExitCode, Box<dyn Error>> {
    let mut arguments = env::args().skip(1);
    let reference = arguments.next().ok_or("usage: run IMAGE [COMMAND [ARGUMENT...]]")?.parse()?;
    let dir = tempfile::tempdir()?;
    let (disk, run) = (dir.path().join("lib"), dir.path().join("run"));
    let store = ImageStore::open(StoreOptions { privilege, ..StoreOptions::new(&disk, &run) })?;

    let request = PullRequest {
        reference: &reference,
        platform: &Platform::host(),
        credentials: &Credentials::default(),
        policy: PullPolicy::Missing,
        progress: &SilentProgress,
    };
    let client = RegistryClient::new(ClientOptions::default())?;
    let image = host_network::run(|| pull(&store, &client, &request))?;

    let program = find(&CONFINING.map(OsStr::new), env::var_os("PATH").as_deref(), None)?;
    let runtime = OciRuntime::new(program, run.join("runtime"));
    // Started only for containers whose output is kept; this container writes to our streams.
    let monitor = MonitorProgram { path: env::current_exe()?, arguments: Vec::new() };
    let engine = Engine { store, runtime, run, disk, monitor, privilege };
    let mut spec = ContainerSpec::new(ContainerRole::Step, "example", &image);
    spec.options.args = arguments.collect();
    let ran = engine.prepare(spec)?.run(|_| ())?;

    dir.close()?;
    Ok(exit_code(ran.status))
}

/// Converts a program's status to its exit code.
fn exit_code(status: ExitStatus) -> ExitCode {
    status.code().and_then(|code| u8::try_from(code).ok()).map_or(ExitCode::FAILURE, ExitCode::from)
}
