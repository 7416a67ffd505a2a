//! A step's program, from the copy of its supervisor that becomes it.

use std::collections::BTreeSet;
use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::{env, fs};

use crate::frames::{Failure, FailureKind, Step};
use crate::os::{self, E2BIG, EACCES, ENOENT, ENOTDIR, Signals};

/// What `PATH` is where the container does not say.
const DEFAULT_PATH: &[u8] = b"/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// What is looked for to say what there is, if a program is missing.
const SHELLS: [&str; 8] = ["sh", "ash", "bash", "dash", "zsh", "pwsh", "python3", "node"];

/// The longest line of a script that says what runs it.
const INTERPRETER_BYTES: usize = 256;

/// The longest variable that every kernel takes, with its name and the end: 32 pages of the smallest size.
const VARIABLE_BYTES: usize = 32 * 4096;

/// Standard input, output and errors of the program.
pub enum Streams {
    Pipes([OwnedFd; 3]),
    Terminal(OwnedFd),
}

/// Becomes the program of a step; returns why not. Of all descriptors but the streams only this one is open
/// then.
pub fn become_step(step: &Step, streams: &Streams, report: BorrowedFd<'_>) -> Failure {
    match prepare(step, streams, report) {
        Ok(()) => execute(step),
        Err(failure) => failure,
    }
}

fn failure(kind: FailureKind, error: &io::Error, path: &[u8]) -> Failure {
    let errno = error.raw_os_error().unwrap_or_default();
    Failure { kind, errno, path: path.to_vec(), found: Vec::new() }
}

/// Makes everything of this process but its program as the step has it.
fn prepare(step: &Step, streams: &Streams, report: BorrowedFd<'_>) -> Result<(), Failure> {
    let what = |what: &'static str| {
        move |error: io::Error| failure(FailureKind::Setup, &error, what.as_bytes())
    };
    os::new_session();
    match streams {
        Streams::Pipes(pipes) => {
            for (number, pipe) in (0..).zip(pipes) {
                os::place(pipe.as_fd(), number).map_err(what("standard streams"))?;
            }
        }
        Streams::Terminal(terminal) => {
            for number in 0..3 {
                os::place(terminal.as_fd(), number).map_err(what("standard streams"))?;
            }
            os::control_terminal().map_err(what("terminal"))?;
        }
    }
    // Before the working directory, which could be one of them: `/proc/self/fd/N`.
    os::close_all_but(report);
    for limit in &step.rlimits {
        os::set_limit(limit).map_err(what("resource limit"))?;
    }
    if let Some(umask) = step.umask {
        os::set_umask(umask);
    }
    if let Some(user) = &step.user {
        os::set_groups(&user.groups).map_err(what("supplementary groups"))?;
        os::set_group(user.gid).map_err(what("group"))?;
        os::set_user(user.uid).map_err(what("user"))?;
    }
    // The first process may have it to end what `sudo` started; no step has.
    if !os::is_root() {
        os::drop_kill().map_err(what("capabilities"))?;
    }
    change_directory(&step.directory)?;
    os::close_on_execution();
    os::default_actions();
    os::restore_signals(Signals::NONE);
    Ok(())
}

fn change_directory(directory: &[u8]) -> Result<(), Failure> {
    if directory.is_empty() {
        return Ok(());
    }
    let result = os::change_directory(&c_string(directory.to_vec()));
    result.map_err(|error| {
        let path = Path::new(std::ffi::OsStr::from_bytes(directory));
        let deepest = path.ancestors().skip(1).find(|ancestor| ancestor.is_dir());
        let found = deepest.map(|deepest| deepest.as_os_str().as_bytes().to_vec());
        let found = found.into_iter().collect();
        Failure { found, ..failure(FailureKind::Directory, &error, directory) }
    })
}

/// Executes the program, looked for in the step's `PATH` and then in the container's: a step may have
/// one of its own that has no shells.
fn execute(step: &Step) -> Failure {
    let environment = Environment::of(step);
    let env = environment.entries();
    let args: Vec<CString> = step.args.iter().cloned().map(c_string).collect();
    let name = &step.args[0];
    let candidates =
        if name.contains(&b'/') { vec![name.clone()] } else { environment.candidates(name) };
    let mut refused: Option<(io::Error, Vec<u8>)> = None;
    for path in candidates {
        let error = os::execute(&c_string(path.clone()), &args, Some(&env));
        match error.raw_os_error() {
            // Before some kernels look whether there is such a file.
            Some(E2BIG) => {
                let found = environment.too_long().into_iter().collect();
                return Failure {
                    found,
                    ..failure(FailureKind::ProgramNotExecutable, &error, name)
                };
            }
            Some(ENOENT | ENOTDIR) if !is_program(&path) => {}
            Some(EACCES) if Path::new(std::ffi::OsStr::from_bytes(&path)).is_dir() => {}
            _ if refused.is_some() => {}
            _ => refused = Some((error, path)),
        }
    }
    let Some((error, path)) = refused else {
        let found = environment.shells();
        let missing = io::Error::from_raw_os_error(ENOENT);
        return Failure { found, ..failure(FailureKind::ProgramMissing, &missing, name) };
    };
    if error.raw_os_error() == Some(ENOENT) {
        let found = interpreter(&path).into_iter().collect();
        return Failure { found, ..failure(FailureKind::InterpreterMissing, &error, &path) };
    }
    failure(FailureKind::ProgramNotExecutable, &error, &path)
}

/// Returns whether there is a file that may be executed.
fn is_program(path: &[u8]) -> bool {
    let metadata = fs::metadata(std::ffi::OsStr::from_bytes(path));
    metadata.is_ok_and(|file| file.is_file() && file.permissions().mode() & 0o111 != 0)
}

/// Returns what the first line of a script names.
fn interpreter(path: &[u8]) -> Option<Vec<u8>> {
    use std::io::Read as _;
    let mut start = Vec::new();
    let file = fs::File::open(std::ffi::OsStr::from_bytes(path)).ok()?;
    file.take(INTERPRETER_BYTES as u64).read_to_end(&mut start).ok()?;
    let line = start.strip_prefix(b"#!")?.split(|byte| *byte == b'\n').next()?.trim_ascii();
    line.split(|byte| byte.is_ascii_whitespace()).next().map(<[u8]>::to_vec)
}

/// The environment of a step over that of the container.
struct Environment {
    entries: Vec<(Vec<u8>, Vec<u8>)>,
    /// The container's.
    path: Vec<u8>,
}

impl Environment {
    fn of(step: &Step) -> Self {
        let own = env::vars_os();
        let own = own.map(|(n, v)| (n.as_bytes().to_vec(), v.as_bytes().to_vec())).collect();
        let mut environment = Environment { entries: own, path: Vec::new() };
        environment.path = environment.path();
        for (name, value) in &step.env {
            environment.set(name, value.clone());
        }
        if !step.prepend_path.is_empty() {
            let mut path = step.prepend_path.join(&b':');
            path.push(b':');
            path.extend(environment.path());
            environment.set(b"PATH", path);
        }
        if step.terminal.is_some() && environment.get(b"TERM").is_none() {
            environment.set(b"TERM", b"xterm".to_vec());
        }
        environment
    }

    fn get(&self, name: &[u8]) -> Option<&Vec<u8>> {
        self.entries.iter().find(|entry| entry.0 == name).map(|entry| &entry.1)
    }

    fn set(&mut self, name: &[u8], value: Vec<u8>) {
        match self.entries.iter_mut().find(|entry| entry.0 == name) {
            Some(entry) => entry.1 = value,
            None => self.entries.push((name.to_vec(), value)),
        }
    }

    fn path(&self) -> Vec<u8> {
        let path = self.get(b"PATH").filter(|path| !path.is_empty());
        path.map_or_else(|| DEFAULT_PATH.to_vec(), Clone::clone)
    }

    fn entries(&self) -> Vec<CString> {
        let entries = self.entries.iter().map(|(name, value)| [name, &b"="[..], value].concat());
        entries.map(c_string).collect()
    }

    /// Returns the name of the longest variable if not every kernel takes it.
    fn too_long(&self) -> Option<Vec<u8>> {
        let length = |(name, value): &(Vec<u8>, Vec<u8>)| name.len() + value.len() + 2;
        let longest = self.entries.iter().max_by_key(|entry| length(entry))?;
        (length(longest) > VARIABLE_BYTES).then(|| longest.0.clone())
    }

    /// Returns where a program may be.
    fn candidates(&self, name: &[u8]) -> Vec<Vec<u8>> {
        let path = self.path();
        let directories =
            [&path, &self.path].into_iter().flat_map(|path| path.split(|b| *b == b':'));
        let mut seen = BTreeSet::new();
        let unique = directories.filter(|directory| seen.insert(directory.to_vec()));
        let directory = |directory: &[u8]| match directory {
            b"" => b".".to_vec(),
            directory => directory.to_vec(),
        };
        unique.map(|at| [&directory(at), &b"/"[..], name].concat()).collect()
    }

    /// Returns the shells and interpreters that there are.
    fn shells(&self) -> Vec<Vec<u8>> {
        let is_there =
            |name: &&&str| self.candidates(name.as_bytes()).iter().any(|p| is_program(p));
        SHELLS.iter().filter(is_there).map(|name| name.as_bytes().to_vec()).collect()
    }
}

/// Returns a string that is known to have no NUL: it comes out of a frame, or of the kernel.
fn c_string(bytes: Vec<u8>) -> CString {
    CString::new(bytes).unwrap_or_default()
}
