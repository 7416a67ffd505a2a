//! Checks of the program's content: the kernel must know its format and find its interpreter.

use std::env::{consts::ARCH, split_paths};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::{fs, io};

use oci_hooks_files::spelling::closest_name;

use super::program::{HookProgram, ProgramProblem};
use super::repair::BYTE_ORDER_MARK;
use super::{AppliedFix, FixedText, Severity, rules};
use crate::hooks::trust::interpreter::{self, DEFAULT_PATH, EnvLookup};
use crate::hooks::trust::{MAX_INTERPRETERS, is_executable};

/// Directories where `env` most likely searches if the hook's environment is not known.
const USUAL_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// ELF machine numbers (`e_machine`) and the names of the architectures.
const MACHINES: [(u16, &str); 10] = [
    (3, "x86"),
    (8, "MIPS"),
    (20, "PowerPC"),
    (21, "PowerPC 64"),
    (22, "s390x"),
    (40, "ARM"),
    (62, "x86-64"),
    (183, "ARM64"),
    (243, "RISC-V"),
    (258, "LoongArch"),
];

/// Returns the problem of a program that cannot be run, or of a script that may not find its interpreter.
///
/// Programs that this user cannot read are not checked.
pub fn check(call: &HookProgram) -> Option<ProgramProblem> {
    let mut warning = None;
    let mut file = PathBuf::from(&call.path);
    for _ in 0..=MAX_INTERPRETERS {
        let Ok(Some(head)) = interpreter::head(&file) else { break };
        if !head.starts_with(b"#!") {
            return unknown_format(&file, &head).or(warning);
        }
        let shown = file.display();
        let line = head.split(|b| *b == b'\n').next().unwrap_or_default();
        if line.ends_with(b"\r") {
            let message = format!("the first line of `{shown}` ends in CRLF, not LF");
            let hint = format!("write line ends as LF, e.g. with `sed -i 's/\\r$//' {shown}`");
            return Some(ProgramProblem::new(&rules::CRLF_SCRIPT, message).hint(hint));
        }
        let Some(script) = interpreter::parse(&head) else {
            let message = format!("`{shown}` begins with #! but names no interpreter");
            return Some(ProgramProblem::new(&rules::UNKNOWN_FORMAT, message));
        };
        if let Some(problem) = interpreter_file(&file, &script.program) {
            return Some(problem);
        }
        if !script.is_env() {
            file = script.program;
            continue;
        }
        let is_unknown = call.search.is_none() && !call.has_env;
        let search = call.search.as_deref().or(is_unknown.then_some(USUAL_PATH));
        let Some(sought) = script.env_lookup(search.map(str::as_ref)) else { break };
        let Some(found) = find(&sought) else {
            let problem = not_found_problem(&file, &sought);
            let severity = if is_unknown { Severity::Warning } else { Severity::Error };
            return Some(ProgramProblem { severity, ..problem });
        };
        if call.has_env && call.search.is_none() && sought.path == DEFAULT_PATH {
            let message = format!(
                "`hook.env` has no PATH, in which `env` looks for the interpreter of `{shown}`"
            );
            let hint = format!("add PATH to `hook.env`, e.g. \"PATH={USUAL_PATH}\"");
            warning = Some(ProgramProblem::new(&rules::NO_SEARCH_PATH, message).hint(hint));
        }
        file = found;
    }
    warning
}

/// Returns the problem of an interpreter: a relative path, a missing file, or one that is not
/// executable.
fn interpreter_file(script: &Path, program: &Path) -> Option<ProgramProblem> {
    let (script, shown) = (script.display(), program.display());
    if program.is_relative() {
        let message = format!("the interpreter `{shown}` of `{script}` is not an absolute path");
        return Some(ProgramProblem::new(&rules::RELATIVE_INTERPRETER, message).hint(
            "PATH is not searched: write the whole path, or `#!/usr/bin/env` before the name",
        ));
    }
    match fs::metadata(program) {
        Err(error)
            if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) =>
        {
            let message = format!("the interpreter `{shown}` of `{script}` does not exist");
            let problem = ProgramProblem::new(&rules::MISSING_INTERPRETER, message);
            Some(problem.hint(match find_similar(program) {
                Some(path) => format!("did you mean `{}`?", path.display()),
                None => format!("install it, or correct {script}"),
            }))
        }
        Ok(_) if !is_executable(program) => {
            let message = format!("the interpreter `{shown}` of `{script}` is not executable");
            Some(ProgramProblem::new(&rules::INTERPRETER_NOT_EXECUTABLE, message))
        }
        _ => None,
    }
}

/// Finds the interpreter of the same name in another directory, or of a similar name in the same one.
fn find_similar(program: &Path) -> Option<PathBuf> {
    let (directory, name) = (program.parent()?, program.file_name()?);
    let elsewhere = split_paths(USUAL_PATH).map(|directory| directory.join(name));
    elsewhere.into_iter().find(|path| is_executable(path)).or_else(|| {
        let entries = fs::read_dir(directory).ok()?;
        let names = entries.flatten().filter_map(|entry| entry.file_name().into_string().ok());
        let names: Vec<_> = names.collect();
        Some(directory.join(closest_name(name.to_str()?, names.iter().map(String::as_str))?))
            .filter(|path| is_executable(path))
    })
}

/// Finds an executable program as `env` does.
fn find(sought: &EnvLookup) -> Option<PathBuf> {
    if sought.name.as_os_str().as_bytes().contains(&b'/') {
        return is_executable(&sought.name).then(|| sought.name.clone());
    }
    let mut paths = split_paths(&sought.path).map(|directory| directory.join(&sought.name));
    paths.find(|path| path.is_absolute() && is_executable(path))
}

fn not_found_problem(script: &Path, sought: &EnvLookup) -> ProgramProblem {
    let (script, name, path) = (script.display(), sought.name.display(), sought.path.display());
    let message = format!("`env` does not find the interpreter `{name}` of `{script}` in {path}");
    ProgramProblem::new(&rules::MISSING_ENV_PROGRAM, message).hint(
        if sought.name.as_os_str().as_bytes().contains(&b' ') {
            "`env` takes the rest of the line as one name: write `#!/usr/bin/env -S` before several words"
                .into()
        } else {
            format!("install it, correct {script}, or add its directory to PATH in `hook.env`")
        },
    )
}

/// Checks a program that is not a script.
fn unknown_format(file: &Path, head: &[u8]) -> Option<ProgramProblem> {
    let shown = file.display();
    let machine = match head {
        [0x7f, b'E', b'L', b'F', _, order, ..] if head.len() >= 20 => {
            let bytes = [head[18], head[19]];
            Some(if *order == 2 { u16::from_be_bytes(bytes) } else { u16::from_le_bytes(bytes) })
        }
        _ => None,
    };
    let problem = match machine {
        Some(machine) if host_runs(machine) => return None,
        Some(machine) => {
            let name = MACHINES.iter().find(|(number, _)| *number == machine);
            let name = name.map_or("another architecture", |(_, name)| name);
            let message = format!("`{shown}` is a program for {name}, and this host is {ARCH}");
            ProgramProblem::new(&rules::FOREIGN_ARCHITECTURE, message)
        }
        None if head.is_empty() => {
            ProgramProblem::new(&rules::UNKNOWN_FORMAT, format!("`{shown}` is empty"))
        }
        None if head.strip_prefix(BYTE_ORDER_MARK).is_some_and(|rest| rest.starts_with(b"#!")) => {
            let message = format!("`{shown}` has a byte order mark before #!");
            let hint = format!("remove the three bytes: sed -i '1s/^\\xef\\xbb\\xbf//' {shown}");
            ProgramProblem::new(&rules::UNKNOWN_FORMAT, message).hint(hint)
        }
        None => {
            let message = format!("`{shown}` is neither an ELF program nor a script with #!");
            ProgramProblem::new(&rules::UNKNOWN_FORMAT, message)
                .hint("begin a script with the interpreter's path, such as #!/bin/sh")
        }
    };
    (!has_handler(file, head)).then_some(problem)
}

/// Returns whether this host runs programs with an ELF machine number; `true` if the host's
/// architecture is not known to this function.
fn host_runs(machine: u16) -> bool {
    let known: &[u16] = match ARCH {
        "x86" | "x86_64" => &[3, 62],
        "arm" | "aarch64" => &[40, 183],
        "riscv64" => &[243],
        "s390x" => &[22],
        _ => return true,
    };
    known.contains(&machine)
}

/// Returns whether a handler of `binfmt_misc`, such as QEMU, runs a file.
fn has_handler(file: &Path, head: &[u8]) -> bool {
    let Ok(handlers) = fs::read_dir("/proc/sys/fs/binfmt_misc") else { return false };
    let texts = handlers.flatten().filter_map(|entry| fs::read_to_string(entry.path()).ok());
    texts.into_iter().any(|handler| matches_handler(&handler, file, head))
}

fn matches_handler(handler: &str, file: &Path, head: &[u8]) -> bool {
    let field = |name| handler.lines().find_map(|line| line.strip_prefix(name));
    if let Some(extension) = field("extension .") {
        return handler.starts_with("enabled") && file.extension().is_some_and(|e| e == extension);
    }
    let hex = |digits: &str| -> Option<Vec<u8>> {
        let bytes = (0..digits.len()).step_by(2);
        bytes.map(|at| u8::from_str_radix(digits.get(at..at + 2)?, 16).ok()).collect()
    };
    let offset = field("offset ").and_then(|offset| offset.parse().ok()).unwrap_or(0);
    let Some(magic) = field("magic ").and_then(hex) else { return false };
    let mask = field("mask ").and_then(hex).unwrap_or_else(|| vec![0xff; magic.len()]);
    let matches = |part: &[u8]| {
        part.len() >= magic.len()
            && part
                .iter()
                .zip(&magic)
                .zip(&mask)
                .all(|((byte, magic), mask)| (byte ^ magic) & mask == 0)
    };
    handler.starts_with("enabled") && head.get(offset..).is_some_and(matches)
}

/// Converts CRLF to LF in a script whose lines all end in CRLF; returns other texts unchanged.
///
/// The program in [`HookFinding::program_fix`](super::HookFinding::program_fix) is such a script.
pub fn fix_program(text: &[u8]) -> FixedText {
    let ends = text.split_inclusive(|b| *b == b'\n').filter(|line| line.ends_with(b"\n"));
    let is_crlf = text.starts_with(b"#!")
        && !text.contains(&0)
        && ends.clone().all(|line| line.ends_with(b"\r\n"))
        && ends.count() > 0;
    let mut fixed = FixedText { text: text.to_vec(), applied: Vec::new() };
    if is_crlf {
        let lines = text.split_inclusive(|b| *b == b'\n');
        fixed.text = lines.fold(Vec::with_capacity(text.len()), |mut fixed, line| {
            match line.strip_suffix(b"\r\n") {
                Some(content) => fixed.extend([content, b"\n"].concat()),
                None => fixed.extend(line),
            }
            fixed
        });
        fixed.applied.push(AppliedFix {
            rule: &rules::CRLF_SCRIPT,
            description: "write line ends as LF".to_owned(),
            line: Some(1),
        });
    }
    fixed
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_scripts_with_crlf_on_every_line_are_fixed() {
        let fixed = |text: &[u8]| fix_program(text).text;
        assert_eq!(fixed(b"#!/bin/sh\r\necho \r\r\n\r\nexit"), b"#!/bin/sh\necho \r\n\nexit");
        for text in ["#!/bin/sh\r\nexit\n", "#!/bin/sh\n", "#!/bin/sh\r", "a\r\n", "#!a\r\n\0", ""]
        {
            assert_eq!(fixed(text.as_bytes()), text.as_bytes(), "{text:?}");
        }
    }

    #[test]
    fn handlers_match_by_magic_and_mask_or_extension() {
        let handler =
            "enabled\ninterpreter /usr/bin/qemu\nflags: F\noffset 1\nmagic 4c46\nmask fffe\n";
        let handles = |handler: &str, file: &str, head: &[u8]| {
            matches_handler(handler, Path::new(file), head)
        };
        assert!(handles(handler, "/a", b"ELF.") && handles(handler, "/a", b"ELG."));
        assert!(
            !handles(handler, "/a", b"ELH.")
                && !handles(handler, "/a", b"EL")
                && !handles(handler, "/a", b"")
        );
        assert!(!handles(&handler.replace("enabled", "disabled"), "/a", b"ELF."));
        let handler = "enabled\ninterpreter /usr/bin/jexec\nflags: \nextension .jar\n";
        assert!(handles(handler, "/a.jar", b"PK") && !handles(handler, "/ajar", b"PK"));
        assert!(!handles("enabled", "/a", b""));
    }
}
