//! Execution of a step's program, in a forked child of its supervisor.

use std::collections::BTreeSet;
use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::FileExt as _;
use std::{env, fs, iter};

use oci_hooks_init::frames::{ContainerStep, FailureKind, StepFailure};
use oci_hooks_init::launch::is_executable;
use rustix::fs::Mode;
use rustix::process::{chdir, getuid, ioctl_tiocsctty, setsid, umask};
use rustix::thread::{Gid, Uid, set_thread_gid, set_thread_groups, set_thread_uid};

use crate::os::{self, E2BIG, EACCES, ENOENT, ENOTDIR, SignalSet, path_of};

/// `PATH` of containers that set none.
pub const DEFAULT_PATH: &[u8] = b"/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Shells and interpreters that the error for a missing program lists if they exist.
const SHELLS: [&str; 8] = ["sh", "ash", "bash", "dash", "zsh", "pwsh", "python3", "node"];

/// Longest interpreter line of a script, and longest path of a dynamic linker.
const INTERPRETER_BYTES: usize = 256;

/// Number of interpreters that the kernel runs for one program.
const INTERPRETERS: usize = 5;

/// Largest number of program headers that are searched for a dynamic linker.
const PROGRAM_HEADERS: u64 = 64;

/// Size of a program header of a 64-bit file.
const PROGRAM_HEADER_BYTES: usize = 56;

/// Longest variable that every kernel accepts, with name and NUL: 32 pages of the smallest size.
const VARIABLE_BYTES: usize = 32 * 4096;

/// Standard input, output and errors of the program.
pub enum StepStreams {
    Pipes([OwnedFd; 3]),
    Terminal(OwnedFd),
}

/// Executes the program of a step; returns the error if that fails. Of all descriptors, only the
/// streams and `report` stay open.
pub fn become_step(
    step: &ContainerStep,
    streams: &StepStreams,
    report: BorrowedFd<'_>,
) -> StepFailure {
    match prepare(step, streams, report) {
        Ok(()) => execute(step),
        Err(failure) => failure,
    }
}

/// Returns the failure of a step because of an error.
pub fn failure(kind: FailureKind, error: &io::Error, path: impl AsRef<[u8]>) -> StepFailure {
    StepFailure::new(kind, error.raw_os_error().unwrap_or_default(), path.as_ref())
}

/// Returns a function that converts an error of applying a setting.
fn setup<E: Into<io::Error>>(what: &str) -> impl FnOnce(E) -> StepFailure {
    move |error| failure(FailureKind::Setup, &error.into(), what)
}

/// Applies the settings of a step to this process.
fn prepare(
    step: &ContainerStep,
    streams: &StepStreams,
    report: BorrowedFd<'_>,
) -> Result<(), StepFailure> {
    // Fails only for the leader of a group.
    let _ = setsid();
    match streams {
        StepStreams::Pipes(pipes) => {
            for (number, pipe) in (0..).zip(pipes) {
                os::duplicate_to(pipe.as_fd(), number).map_err(setup("standard streams"))?;
            }
        }
        StepStreams::Terminal(terminal) => {
            for number in 0..3 {
                os::duplicate_to(terminal.as_fd(), number).map_err(setup("standard streams"))?;
            }
            ioctl_tiocsctty(io::stdin()).map_err(setup("terminal"))?;
        }
    }
    // Before the working directory is changed, which may be a descriptor: `/proc/self/fd/N`.
    os::close_all_but(report);
    for limit in &step.rlimits {
        os::set_limit(limit).map_err(setup("resource limit"))?;
    }
    if let Some(mask) = step.umask {
        umask(Mode::from_raw_mode(mask));
    }
    if let Some(user) = &step.user {
        let groups: Vec<_> = user.groups.iter().map(|gid| Gid::from_raw(*gid)).collect();
        set_thread_groups(&groups).map_err(setup("supplementary groups"))?;
        set_thread_gid(Gid::from_raw(user.gid)).map_err(setup("group"))?;
        // Root loses its capabilities by that.
        set_thread_uid(Uid::from_raw(user.uid)).map_err(setup("user"))?;
    }
    // The first process may have `CAP_KILL` to kill processes that `sudo` started; steps must not.
    if !getuid().is_root() {
        os::drop_kill().map_err(setup("capabilities"))?;
    }
    change_directory(&step.directory)?;
    os::close_on_execution();
    os::default_actions();
    os::restore_signals(SignalSet::none());
    Ok(())
}

fn change_directory(directory: &[u8]) -> Result<(), StepFailure> {
    if directory.is_empty() {
        return Ok(());
    }
    chdir(directory).map_err(|error| {
        let deepest = path_of(directory).ancestors().skip(1).find(|ancestor| ancestor.is_dir());
        let found = deepest.map(|deepest| deepest.as_os_str().as_bytes().to_vec());
        let found = found.into_iter().collect();
        StepFailure { found, ..failure(FailureKind::Directory, &error.into(), directory) }
    })
}

/// Executes the program, searched for in the step's `PATH` and then in the container's: the step's
/// own may contain no shells.
fn execute(step: &ContainerStep) -> StepFailure {
    let environment = StepEnvironment::of(step);
    let env = environment.entries();
    let args = os::to_c_strings(step.args.iter().cloned());
    let name = &step.args[0];
    let candidates =
        if name.contains(&b'/') { vec![name.clone()] } else { environment.candidates(name) };
    let mut refused: Option<(io::Error, Vec<u8>)> = None;
    for path in candidates {
        let error = os::execute(&path, &args, Some(&env));
        match error.raw_os_error() {
            // Some kernels return this before they look up the file.
            Some(E2BIG) => {
                let found = environment.too_long_variable().into_iter().collect();
                return StepFailure {
                    found,
                    ..failure(FailureKind::ProgramNotExecutable, &error, name)
                };
            }
            Some(ENOENT | ENOTDIR) if !is_executable(path_of(&path)) => {}
            Some(EACCES) if path_of(&path).is_dir() => {}
            _ if refused.is_some() => {}
            _ => refused = Some((error, path)),
        }
    }
    let Some((error, path)) = refused else {
        let found = environment.shells();
        let missing = io::Error::from_raw_os_error(ENOENT);
        return StepFailure { found, ..failure(FailureKind::ProgramMissing, &missing, name) };
    };
    if error.raw_os_error() == Some(ENOENT) {
        let found = missing_interpreter(&path).into_iter().collect();
        return StepFailure { found, ..failure(FailureKind::InterpreterMissing, &error, &path) };
    }
    failure(FailureKind::ProgramNotExecutable, &error, &path)
}

/// Returns the missing interpreter of a program, or of its interpreter.
fn missing_interpreter(path: &[u8]) -> Option<Vec<u8>> {
    let mut chain = iter::successors(interpreter(path), |path| interpreter(path));
    chain.by_ref().take(INTERPRETERS).find(|interpreter| !is_executable(path_of(interpreter)))
}

/// Returns the interpreter that the first line of a script or the header of an ELF file names.
fn interpreter(path: &[u8]) -> Option<Vec<u8>> {
    let file = fs::File::open(path_of(path)).ok()?;
    let start = read_at(&file, 0, INTERPRETER_BYTES)?;
    if start.starts_with(b"\x7fELF") {
        return elf_interpreter(&file, &start);
    }
    let is_blank = |byte: &u8| matches!(byte, b' ' | b'\t');
    let line = start.strip_prefix(b"#!")?.split(|byte| *byte == b'\n').next()?;
    // A carriage return is part of the name, as in the kernel.
    line.split(is_blank).find(|word| !word.is_empty()).map(<[u8]>::to_vec)
}

/// Returns the dynamic linker that an ELF file of this machine's byte order names.
fn elf_interpreter(file: &fs::File, header: &[u8]) -> Option<Vec<u8>> {
    const CLASS: usize = 4;
    const INTERP: u64 = 3;
    // Offsets and sizes in headers of 64-bit files, else of 32-bit files.
    let is_wide = *header.get(CLASS)? == 2;
    let word = if is_wide { 8 } else { 4 };
    let [table, size, count] = if is_wide { [32, 54, 56] } else { [28, 42, 44] };
    let [offset, length] = if is_wide { [8, 32] } else { [4, 16] };
    let table = number(header, table, word)?;
    let (size, count) = (number(header, size, 2)?, number(header, count, 2)?);
    for index in 0..count.min(PROGRAM_HEADERS) {
        let at = table.checked_add(index * size)?;
        let entry = read_at(file, at, PROGRAM_HEADER_BYTES)?;
        if number(&entry, 0, 4)? == INTERP {
            let length = usize::try_from(number(&entry, length, word)?).ok()?;
            let name = read_at(file, number(&entry, offset, word)?, length.min(INTERPRETER_BYTES))?;
            return name.split(|byte| *byte == 0).next().map(<[u8]>::to_vec);
        }
    }
    None
}

/// Reads at most this many bytes of a file.
fn read_at(file: &fs::File, offset: u64, length: usize) -> Option<Vec<u8>> {
    let mut bytes = vec![0; length];
    let read = file.read_at(&mut bytes, offset).ok()?;
    bytes.truncate(read);
    Some(bytes)
}

/// Returns the number of this many bytes at an offset.
fn number(bytes: &[u8], at: usize, length: usize) -> Option<u64> {
    let bytes = bytes.get(at..at + length)?;
    Some(match length {
        2 => u16::from_ne_bytes(bytes.try_into().ok()?).into(),
        4 => u32::from_ne_bytes(bytes.try_into().ok()?).into(),
        _ => u64::from_ne_bytes(bytes.try_into().ok()?),
    })
}

/// Environment of a step, on top of the container's.
struct StepEnvironment {
    entries: Vec<(Vec<u8>, Vec<u8>)>,
    /// `PATH` of the container.
    path: Vec<u8>,
}

impl StepEnvironment {
    fn of(step: &ContainerStep) -> Self {
        let own = env::vars_os();
        let own = own.map(|(n, v)| (n.as_bytes().to_vec(), v.as_bytes().to_vec())).collect();
        let mut environment = StepEnvironment { entries: own, path: Vec::new() };
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
        let entries = self.entries.iter();
        os::to_c_strings(entries.map(|(name, value)| [name, &b"="[..], value].concat()))
    }

    /// Returns the name of the longest variable if not every kernel accepts it.
    fn too_long_variable(&self) -> Option<Vec<u8>> {
        let length = |(name, value): &(Vec<u8>, Vec<u8>)| name.len() + value.len() + 2;
        let longest = self.entries.iter().max_by_key(|entry| length(entry))?;
        (length(longest) > VARIABLE_BYTES).then(|| longest.0.clone())
    }

    /// Returns the paths at which a program may be.
    fn candidates(&self, name: &[u8]) -> Vec<Vec<u8>> {
        let (path, mut seen) = (self.path(), BTreeSet::new());
        let all = [&path, &self.path].into_iter().flat_map(|path| search_paths(path, name));
        all.filter(|path| seen.insert(path.clone())).collect()
    }

    /// Returns the shells and interpreters that exist.
    fn shells(&self) -> Vec<Vec<u8>> {
        let is_there = |name: &&&str| {
            self.candidates(name.as_bytes()).iter().any(|path| is_executable(path_of(path)))
        };
        SHELLS.iter().filter(is_there).map(|name| name.as_bytes().to_vec()).collect()
    }
}

/// Returns the paths at which a program may be, given the value of `PATH`.
pub fn search_paths(path: &[u8], name: &[u8]) -> impl Iterator<Item = Vec<u8>> {
    let directories = path.split(|byte| *byte == b':');
    directories.map(move |directory| {
        let directory = if directory.is_empty() { &b"."[..] } else { directory };
        [directory, b"/", name].concat()
    })
}
