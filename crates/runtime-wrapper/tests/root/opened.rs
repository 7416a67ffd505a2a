//! Hooks must be in the configuration that a runtime opens, according to a trace of system calls.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use oci_hooks_testsupport::bundle::BusyboxBundle;
use oci_hooks_testsupport::program::{self, FinishedCommand};
use oci_hooks_testsupport::runtime::{RuntimeContainer, TestRuntime};
use serde_json::json;

use crate::hooks_dir::HooksDir;
use crate::setup::{WrapperSetup, text};

/// The runtime opens this configuration and fails, because the root file system does not exist.
const CONFIG: &str = r#"{"ociVersion":"1.0.2","process":{"args":["/bin/sh"],"cwd":"/"},"root":{"path":"/nonexistent"}}"#;

/// The existing configurations, relative to the directory of the test.
const CONFIGS: [&str; 5] = [
    "here/config.json",
    "here/other.json",
    "here/b/config.json",
    "bundle/config.json",
    "bundle/other.json",
];

/// Arguments after the command, and the configuration that they name; `{}` is the directory of the test,
/// in whose `here` the wrapper is called.
const LINES: [(&str, &str); 23] = [
    ("id", "here/config.json"),
    ("-- id", "here/config.json"),
    ("--bundle {}/bundle id", "bundle/config.json"),
    ("--bundle ../bundle id", "bundle/config.json"),
    ("--bundle=../bundle id", "bundle/config.json"),
    ("-b ../bundle id", "bundle/config.json"),
    ("-b../bundle id", "bundle/config.json"),
    ("-bb id", "here/b/config.json"),
    ("-b=../bundle id", "bundle/config.json"),
    ("-bundle ../bundle id", "bundle/config.json"),
    ("-bundle=../bundle id", "bundle/config.json"),
    ("id --bundle=../bundle", "bundle/config.json"),
    ("--bundle=../bundle -- id", "bundle/config.json"),
    ("--bundle=. --bundle ../bundle id", "bundle/config.json"),
    ("--bundle={}/bundle -b . id", "here/config.json"),
    ("--bundle=../bundle --bundle= id", "here/config.json"),
    ("--pid-file --bundle=. --bundle=../bundle id", "bundle/config.json"),
    ("--config other.json --bundle ../bundle id", "here/other.json"),
    ("--bundle ../bundle --config={}/bundle/other.json id", "bundle/other.json"),
    ("-f config.json --bundle ../bundle id", "bundle/config.json"),
    ("--config ./config.json --bundle ../bundle id", "here/config.json"),
    ("--config=/proc/self/cwd/other.json -b ../bundle id", "here/other.json"),
    ("-f other.json --config ../bundle/other.json id", "bundle/other.json"),
];

struct TracedSetup {
    hooks: HooksDir,
    temp: tempfile::TempDir,
}

impl TracedSetup {
    fn new() -> Self {
        let place = TracedSetup { hooks: HooksDir::new(), temp: program::temporary_directory() };
        // Every runtime runs hooks of this stage for a restored container.
        place.hooks.hook("a.json", "true", json!({"commands": ["/sh$"]}), &["poststop"]);
        place
    }

    fn path(&self, name: &str) -> PathBuf {
        self.temp.path().canonicalize().unwrap().join(name)
    }

    /// Rewrites all configurations without hooks.
    fn reset(&self) {
        for name in CONFIGS {
            fs::create_dir_all(self.path(name).parent().unwrap()).unwrap();
            fs::write(self.path(name), CONFIG).unwrap();
        }
    }

    fn line(&self, command: &str, line: &str) -> Vec<String> {
        let line = line.replace("{}", self.path("").to_str().unwrap().trim_end_matches('/'));
        let root = self.path("root").into_os_string().into_string().unwrap();
        let words = ["--root", &root, command].into_iter().chain(line.split(' '));
        words.map(str::to_owned).collect()
    }

    /// Calls a program in `here` with the wrapper's variables.
    fn call(&self, command: &mut Command, runtime: &Path) -> FinishedCommand {
        self.reset();
        program::run(
            command
                .current_dir(self.path("here"))
                .env_clear()
                .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
                .env("OCI_HOOKS_DIRS", self.hooks.path())
                .env("OCI_HOOKS_RUNTIME", runtime),
        )
    }

    /// Returns the configurations with hooks.
    fn injected(&self) -> BTreeSet<&'static str> {
        let read = |name| fs::read_to_string(self.path(name)).unwrap();
        CONFIGS.into_iter().filter(|name| read(name).contains("\"poststop\"")).collect()
    }

    /// Returns the configurations that the runtime opened, identified by its `execve` in the trace.
    fn opened_configs(&self, trace: &str, runtime: &Path) -> BTreeSet<&'static str> {
        let start = format!("execve(\"{}\"", runtime.display());
        let Some((_, trace)) = trace.split_once(&start) else { return BTreeSet::new() };
        let results = trace.lines().filter_map(|line| line.rsplit_once(" = "));
        let found: Vec<_> = results
            .filter_map(|(_, result)| result.split_once('<')?.1.strip_suffix('>'))
            .map(PathBuf::from)
            .collect();
        CONFIGS.into_iter().filter(|name| found.contains(&self.path(name))).collect()
    }
}

#[test]
fn configuration_opened_by_the_kernel_has_the_hooks() {
    program::require_root();
    let place = TracedSetup::new();
    let mut opened_by_any = BTreeSet::new();
    for runtime in TestRuntime::ALL {
        let real = PathBuf::from(runtime.command().get_program());
        for (command, (line, expected)) in
            ["create", "run", "restore"].into_iter().flat_map(|it| LINES.map(|line| (it, line)))
        {
            let trace = place.path("trace");
            let mut strace = Command::new(program::find("strace"));
            strace.args(["-f", "-qq", "-y", "-e", "trace=execve,open,openat,openat2", "-o"]);
            strace.arg(&trace).arg(env!("CARGO_BIN_EXE_oci-hooks-runtime"));
            let finished = place.call(strace.args(place.line(command, line)), &real);
            assert!(!finished.status.success(), "there is no root file system");
            let trace = String::from_utf8_lossy(&fs::read(trace).unwrap()).into_owned();
            let opened = place.opened_configs(&trace, &real);
            let case = format!("{runtime} {command} {line}: {}", finished.stderr);
            assert_eq!(place.injected(), [expected].into(), "{case}");
            assert!(opened.is_subset(&[expected].into()), "{case}: {opened:?}");
            // runc has no --config, nor has crun's `restore`, a command that Debian's crun 1.8 lacks.
            let has_config = line.contains("-f ") || line.contains("--config");
            let is_known = match runtime {
                TestRuntime::Runc => !has_config,
                TestRuntime::Crun if command == "restore" => {
                    !has_config && !finished.stderr.contains("unknown command")
                }
                TestRuntime::Crun => true,
            };
            assert_eq!(!opened.is_empty(), is_known, "{case}");
            opened_by_any.extend(opened);
        }
    }
    assert_eq!(opened_by_any, CONFIGS.into());
}

/// Returns youki's command line as declared in its `liboci-cli`, for the library that youki uses.
fn youki() -> clap::Command {
    let value = |name: &'static str| clap::Arg::new(name).long(name);
    let flag = |name: &'static str| value(name).action(clap::ArgAction::SetTrue);
    let command = |name| {
        clap::Command::new(name).args([
            value("bundle").short('b').default_value("."),
            value("console-socket").short('c'),
            value("pid-file").short('p'),
            value("preserve-fds"),
            flag("no-pivot"),
            flag("no-new-keyring"),
            clap::Arg::new("id").required(true),
        ])
    };
    let run = command("run").args([flag("detach").short('d'), flag("keep"), flag("no-subreaper")]);
    clap::Command::new("youki")
        .args([value("log").short('l').overrides_with("log"), value("root").short('r')])
        .args([value("log-format"), flag("debug"), flag("systemd-cgroup").short('s')])
        .subcommands([command("create"), run])
}

#[test]
fn youki_reads_the_configuration_with_the_hooks() {
    let place = TracedSetup::new();
    let recorder = place.path("recorder");
    let argv = place.path("argv");
    let script = format!("#!/bin/sh\nprintf '%s\\0' youki \"$@\" >{}\n", argv.display());
    program::write_program(&recorder, &script);
    for (command, (line, expected)) in
        ["create", "run"].into_iter().flat_map(|it| LINES.map(|line| (it, line)))
    {
        let mut wrapper = Command::new(env!("CARGO_BIN_EXE_oci-hooks-runtime"));
        place.call(wrapper.args(place.line(command, line)), &recorder).success();
        assert_eq!(place.injected(), [expected].into(), "{command} {line}");
        let argv = fs::read(&argv).unwrap();
        let argv = argv.strip_suffix(b"\0").unwrap().split(|&byte| byte == 0);
        let read = youki().try_get_matches_from(argv.map(|arg| OsString::from_vec(arg.to_vec())));
        let has_config = line.contains("-f ") || line.contains("--config");
        assert_eq!(read.is_err(), has_config, "{command} {line}: {:?}", read.err());
        if let Ok(read) = read {
            let bundle = read.subcommand().unwrap().1.get_one::<String>("bundle").unwrap();
            let opened = place.path("here").join(bundle).canonicalize().unwrap();
            assert_eq!(opened.join("config.json"), place.path(expected), "{command} {line}");
        }
    }
}

#[test]
fn options_that_may_name_another_bundle_are_rejected_with_a_reason() {
    let setup = WrapperSetup::new();
    setup.add_matching_hook();
    for line in
        ["create --bun . c", "create -xb. c", "create --conf=config.json c", "--x create state c"]
    {
        let ran = setup.run(line);
        let said = text(&ran.stderr);
        assert_eq!(ran.status.code(), Some(1), "{line}: {said}");
        assert!(said.contains("oci-hooks: ambiguous "), "{line}: {said}");
        assert!(!setup.was_called(), "{line}");
    }
    // Unambiguous command lines are left to the runtime.
    for line in ["create --help", "--x 1 state c", "create --new c", "--x=1 create c"] {
        assert_eq!(setup.run(line).status.code(), Some(7), "{line}");
    }
}

/// crun resolves a relative `--config` against the working directory, not the bundle.
#[test]
fn hooks_run_with_a_configuration_outside_of_the_bundle() {
    let hooks = HooksDir::new();
    hooks.keep_states(&["createRuntime"]);
    let bundle = BusyboxBundle::new("exit 5");
    let elsewhere = program::temporary_directory();
    fs::copy(bundle.path().join("config.json"), elsewhere.path().join("other.json")).unwrap();
    let container = RuntimeContainer::new(TestRuntime::Crun, &bundle);
    let options = ["--config", "other.json", "--bundle", bundle.path_str()];
    let crun = container.command("run", &options);
    let mut wrapper = Command::new(env!("CARGO_BIN_EXE_oci-hooks-runtime"));
    let finished = program::run(
        wrapper
            .args(crun.get_args())
            .current_dir(elsewhere.path())
            .env("OCI_HOOKS_DIRS", hooks.path())
            .env("OCI_HOOKS_RUNTIME", crun.get_program()),
    );
    assert_eq!(finished.status.code(), Some(5), "{}", finished.stderr);
    assert_eq!(hooks.state("createRuntime")["bundle"], bundle.path_str());
    assert!(bundle.config()["hooks"].is_null());
}
