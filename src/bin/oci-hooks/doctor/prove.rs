//! `doctor --prove`: a temporary hook and a container for it show whether an engine runs hooks.
//!
//! The container's image is empty, so its command does not exist, and the container fails to start after the runtime
//! has run the hook. No other container has that command, so the hook applies to no other container. If a call is
//! killed, the next call removes its hook, container and image.

use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::fd::AsFd as _;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf, absolute};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime};

use oci_hooks::hooks::consumer::PODMAN;
use oci_hooks::hooks::directories::read_configured;
use oci_hooks_cli::check::HostCheck;
use oci_hooks_files::error::chain;
use oci_hooks_files::fs::{
    Durability, ExpectedFile, FileAt, ReplaceError, ReplaceOptions, SymlinkPolicy, random_u64,
    read_bounded,
};
use rustix::fs::{AtFlags, Mode, OFlags, open, unlinkat};
use rustix::process::geteuid;
use serde_json::{Value, json};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::flag;
use signal_hook::low_level::pipe;

use super::docker::DockerInfo;
use super::host::DoctorHost;
use super::{native, wrapper};

/// Time limit for each call of an engine.
const TIMEOUT: Duration = Duration::from_secs(60);

/// Size limit of a hook file, larger than any that this program writes.
const MAX_HOOK_BYTES: u64 = 64 << 10;

/// Signals that would end this program. The first signal interrupts the engine, so that nothing is left. A second
/// SIGINT ends the program, but a second SIGTERM does not, because timeout(1) sends SIGTERM twice.
struct StopSignals {
    /// Readable after a signal.
    stop: UnixStream,
    is_stopping: Arc<AtomicBool>,
}

impl StopSignals {
    fn catch() -> io::Result<Self> {
        let (stop, sender) = UnixStream::pair()?;
        let is_stopping = Arc::new(AtomicBool::new(false));
        flag::register_conditional_default(SIGINT, Arc::clone(&is_stopping))?;
        for signal in [SIGHUP, SIGINT, SIGTERM] {
            flag::register(signal, Arc::clone(&is_stopping))?;
            pipe::register(signal, sender.try_clone()?)?;
        }
        Ok(StopSignals { stop, is_stopping })
    }

    fn is_stopping(&self) -> bool {
        self.is_stopping.load(Ordering::SeqCst)
    }
}

/// Returns the prefix of the names of hooks for an engine.
fn prefix(engine: &Path) -> String {
    format!("oci-hooks-prove-{}-", engine.file_name().unwrap_or_default().display())
}

/// Archive of the image, in the private directory.
const IMAGE: &str = "image.tar";

/// File in the private directory whose modification time the hook changes.
const OUTPUT: &str = "ran";

/// A hook with the files that it needs, removed on drop.
struct TemporaryHook {
    /// Name of the hook, the container and the image; the container's command is `/NAME`.
    name: String,
    /// The hook file.
    file: PathBuf,
    is_installed: bool,
    /// Private directory with the image and the hook's output.
    dir: PathBuf,
    /// The open directory `dir`, locked as long as a process uses the hook; `None` if the directory
    /// no longer exists.
    own: Option<File>,
}

impl TemporaryHook {
    /// Installs a hook in a hook directory.
    fn install(hooks_dir: &Path, engine: &Path, host: &DoctorHost) -> io::Result<Self> {
        let touch = host.program("touch");
        let touch = touch.ok_or_else(|| io::Error::other("the program touch is not installed"))?;
        let name = format!("{}{:016x}", prefix(engine), random_u64());
        let dir = absolute(std::env::temp_dir())?.join(&name);
        DirBuilder::new().mode(0o700).create(&dir)?;
        let file = hooks_dir.join(format!("{name}.json"));
        let mut hook = TemporaryHook { name, file, is_installed: false, own: open_own(&dir), dir };
        let own = hook.own.as_ref();
        own.ok_or_else(|| io::Error::other("the temporary directory cannot be opened"))?
            .try_lock()?;
        // An empty archive is 1024 zeros.
        fs::write(hook.dir.join(IMAGE), [0; 1024])?;
        let output = hook.dir.join(OUTPUT);
        File::create_new(&output)?.set_modified(SystemTime::UNIX_EPOCH)?;
        let (Some(touch), Some(output)) = (touch.to_str(), output.to_str()) else {
            return Err(io::Error::other("the path of the temporary directory is not UTF-8"));
        };
        // The hook creates no file and follows no link: the hook file stays if this process is killed, and another user
        // could then create the directory.
        let text = json!({
            "version": "1.0.0",
            "hook": {"path": touch, "args": ["touch", "-c", "-h", output], "env": [], "timeout": 10},
            "when": {"commands": [format!("^/{}$", hook.name)]},
            "stages": ["createRuntime"],
        });
        // Engines that start other containers meanwhile see the whole file or none.
        let written = write_new(&hook.file, &text.to_string());
        written.map_err(|error| io::Error::other(chain(&error)))?;
        hook.is_installed = true;
        Ok(hook)
    }

    /// Returns the hooks for an engine that killed processes of this program left in a hook directory.
    fn leftovers(hooks_dir: &Path, engine: &Path) -> Vec<Self> {
        let entries = fs::read_dir(hooks_dir).into_iter().flatten().flatten();
        entries.filter_map(|entry| TemporaryHook::leftover(entry.path(), engine)).collect()
    }

    fn leftover(file: PathBuf, engine: &Path) -> Option<Self> {
        let name = file.file_name()?.to_str()?.strip_suffix(".json")?;
        let name = name.starts_with(&prefix(engine)).then(|| name.to_owned())?;
        let text = read_bounded(&file, MAX_HOOK_BYTES).ok()?;
        let hook: Value = serde_json::from_slice(&text).ok()?;
        let output = Path::new(hook["hook"]["args"].as_array()?.last()?.as_str()?);
        let dir = output.parent().filter(|dir| dir.ends_with(&name))?.to_owned();
        let own = open_own(&dir);
        // A directory of another user may belong to a process that still runs.
        let is_left = match &own {
            Some(own) => own.try_lock().is_ok(),
            None => !fs::exists(&dir).ok()?,
        };
        is_left.then(|| TemporaryHook { name, file, is_installed: true, dir, own })
    }

    fn image(&self) -> PathBuf {
        self.dir.join(IMAGE)
    }

    fn has_run(&self) -> bool {
        let output = fs::metadata(self.dir.join(OUTPUT)).and_then(|found| found.modified());
        output.is_ok_and(|time| time != SystemTime::UNIX_EPOCH)
    }
}

impl Drop for TemporaryHook {
    fn drop(&mut self) {
        // Errors have no remedy here; the hook applies to no other container.
        if self.is_installed {
            let _ = fs::remove_file(&self.file);
        }
        if let Some(own) = &self.own {
            let _ = unlinkat(own, IMAGE, AtFlags::empty());
            let _ = unlinkat(own, OUTPUT, AtFlags::empty());
            let _ = fs::remove_dir(&self.dir);
        }
    }
}

/// Opens a directory of this user; `None` if it no longer exists or belongs to another user.
fn open_own(dir: &Path) -> Option<File> {
    let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let own = File::from(open(dir, flags, Mode::empty()).ok()?);
    let owner = own.metadata().ok()?.uid();
    (owner == geteuid().as_raw()).then_some(own)
}

/// Creates a file with this text; fails if it exists.
fn write_new(path: &Path, text: &str) -> Result<(), ReplaceError> {
    let options = ReplaceOptions {
        expected: ExpectedFile::Absent,
        durability: Durability::Unsynced,
        ..ReplaceOptions::default()
    };
    FileAt::open(path, SymlinkPolicy::Refuse)?.replace(text.as_bytes(), &options)
}

/// Starts a container with each engine that `wants` selects and that can run one without a cluster.
pub fn checks(host: &DoctorHost, wants: impl Fn(&'static str) -> bool) -> Vec<HostCheck> {
    let signals = match StopSignals::catch() {
        Ok(signals) => signals,
        Err(error) => {
            let found = format!("not proved: cannot catch signals: {error}");
            return vec![HostCheck::fail("--prove", found, "run `oci-hooks doctor --prove` again")];
        }
    };
    let mut checks = Vec::new();
    if let Some(podman) = host.program("podman").filter(|_| wants("podman")) {
        let consumer = native::consumer_of(&podman, host).unwrap_or(PODMAN);
        let dirs = host.system(|system| read_configured(&consumer, system));
        let dirs = dirs.map(|configured| configured.dirs).unwrap_or_default();
        checks.push(check("podman --prove", &podman, &dirs, &signals, host));
    }
    let docker = host.program("docker").filter(|_| wants("docker"));
    if let (Some(docker), Some(_)) = (docker, DockerInfo::query(host)) {
        let dirs = wrapper::config(host).dirs;
        checks.push(check("Docker --prove", &docker, &dirs, &signals, host));
    }
    for (program, name) in [("crio", "CRI-O --prove"), ("containerd", "containerd --prove")] {
        if wants(program) && host.program(program).is_some() {
            let found = "not proved: only a kubelet starts containers of pods";
            let hint = "start a pod, and pass the id of its container to `oci-hooks explain`";
            checks.push(HostCheck::warn(name, found, hint));
        }
    }
    checks
}

/// Installs a hook in the directory of the highest precedence that exists, and starts a container for it.
fn check(
    name: &'static str,
    engine: &Path,
    dirs: &[PathBuf],
    signals: &StopSignals,
    host: &DoctorHost,
) -> HostCheck {
    let interrupted =
        || HostCheck::fail(name, "not proved: interrupted", "run `oci-hooks doctor --prove` again");
    if signals.is_stopping() {
        return interrupted();
    }
    let Some(dir) = dirs.iter().rev().find(|dir| dir.is_dir()) else {
        let found = "not proved: no hook directory exists";
        return HostCheck::fail(name, found, "create one; the checks above name them");
    };
    for leftover in TemporaryHook::leftovers(dir, engine) {
        // The hook file is removed last, on drop: its name is that of the container and the image.
        let _ = remove_container(&leftover.name, engine, host);
    }
    let hook = match TemporaryHook::install(dir, engine, host) {
        Ok(hook) => hook,
        Err(error) => {
            let found = format!("not proved: cannot install a hook in {}: {error}", dir.display());
            let hint = "correct this error, or run `oci-hooks doctor --prove` as root if only root can write there";
            return HostCheck::warn(name, found, hint);
        }
    };
    let (id, file) = (hook.name.clone(), hook.file.display().to_string());
    let image = hook.image().display().to_string();
    let call = |args: &[&str]| call(engine, args, Some(signals), host);
    let imported = call(&["import", &image, &id]);
    let is_imported = imported.is_ok();
    let command = format!("/{id}");
    let run: [&str; 8] = ["run", "--rm", "--network", "none", "--name", &id, &id, &command];
    let ended = imported.and_then(|_| call(&run));
    let has_run = hook.has_run();
    // The hook is removed before the calls that an engine may delay.
    drop(hook);
    let left = match remove_container(&id, engine, host) {
        Err(reason) if is_imported => format!("; the image {id} could not be removed: {reason}"),
        _ => String::new(),
    };
    if has_run {
        let found = format!("ran the hook {file} for a container{left}");
        return match left.is_empty() {
            true => HostCheck::ok(name, found),
            false => HostCheck::warn(name, found, format!("{} rmi --force {id}", engine.display())),
        };
    }
    if signals.is_stopping() && left.is_empty() {
        return interrupted();
    }
    let reason = ended.err().unwrap_or_else(|| "the container started without it".to_owned());
    let found = format!("did not run the hook {file}: {reason}{left}");
    HostCheck::fail(name, found, "see the checks above")
}

/// Removes the container of a hook and its image, also after an interruption.
fn remove_container(id: &str, engine: &Path, host: &DoctorHost) -> Result<String, String> {
    // Usually the container does not exist any more.
    let _ = call(engine, &["rm", "--force", id], None, host);
    call(engine, &["rmi", "--force", id], None, host)
}

fn call(
    engine: &Path,
    args: &[&str],
    signals: Option<&StopSignals>,
    host: &DoctorHost,
) -> Result<String, String> {
    let interrupt = signals.map(|signals| signals.stop.as_fd());
    let ended = host.output_within(TIMEOUT, interrupt, engine, args);
    ended.unwrap_or_else(|| {
        let (engine, command) = (engine.display(), args[0]);
        Err(format!(
            "`{engine} {command}` could not be run, was killed, or did not end within 60 s"
        ))
    })
}
