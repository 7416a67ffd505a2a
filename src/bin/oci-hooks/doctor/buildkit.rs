//! A standalone buildkitd. The BuildKit inside dockerd is checked as `docker build`.

use std::path::PathBuf;

use oci_hooks_cli::check::HostCheck;

use super::config_file::ConfigFile;
use super::host::DoctorHost;
use super::wrapper;

const NAME: &str = "BuildKit";
const FILE: &str = "/etc/buildkit/buildkitd.toml";

/// Section and key of each worker's program.
const WORKERS: [(&str, &[&str]); 2] = [
    ("worker.oci", &["worker", "oci", "binary"]),
    ("worker.containerd.runtime", &["worker", "containerd", "runtime", "options", "BinaryName"]),
];

/// Checks the program with which buildkitd runs containers, if buildkitd is installed.
pub fn checks(host: &DoctorHost) -> Option<HostCheck> {
    host.program("buildkitd")?;
    let own = host.user_config().filter(|_| host.is_rootless());
    let path = own.map_or_else(|| PathBuf::from(FILE), |dir| dir.join("buildkit/buildkitd.toml"));
    let seen = host.root.join(&path);
    let file = match ConfigFile::read(&path, host) {
        Ok(file) => file,
        Err(found) => {
            return Some(host.unreadable(NAME, "buildkitd", found));
        }
    };
    let is_enabled = |worker: &str, usually: bool| {
        let enabled = file.as_ref().and_then(|file| file.boolean(&["worker", worker, "enabled"]));
        enabled.map_or(usually, |enabled| enabled.value)
    };
    // The first enabled worker is the default; the containerd worker is disabled by default.
    let (section, keys) = match (is_enabled("oci", true), is_enabled("containerd", false)) {
        (false, true) => WORKERS[1],
        _ => WORKERS[0],
    };
    let binary = file.as_ref().and_then(|file| file.string(keys));
    let line = match section {
        "worker.oci" => format!("[worker.oci]\n  binary = {:?}", wrapper::path(host)),
        section => format!("[{section}]\n  options = {{ BinaryName = {:?} }}", wrapper::path(host)),
    };
    let hint = wrapper::with_install_hint(&format!("in {}, write\n{line}", seen.display()), host);
    Some(match binary {
        Some(binary) if wrapper::is_wrapper(&binary.value, host) => {
            wrapper::check(NAME, &binary.value, &binary.at.to_string(), host)
        }
        Some(binary) => {
            let found = format!("calls {:?} ({}), which adds no hooks", binary.value, binary.at);
            HostCheck::fail(NAME, found, hint)
        }
        None => HostCheck::fail(
            NAME,
            format!("calls runc, which adds no hooks: {} names no other program", seen.display()),
            hint,
        ),
    })
}
