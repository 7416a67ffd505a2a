//! Matching 1000 loaded hooks against one configuration, in process: the first time, when patterns
//! are compiled, and after that.
//!
//! `cargo bench --bench matching`

#![expect(clippy::print_stdout, clippy::unwrap_used, reason = "prints figures; what fails panics")]

use std::hint::black_box;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use oci_hooks::hooks::consumer::PODMAN;
use oci_hooks::hooks::{Command, Definition, HookFile, HookSet, PathCheck, SchemaOptions, Target};

const HOOKS: usize = 1000;

fn main() {
    let target = Target {
        command: Command::Program("/usr/bin/python3".to_owned()),
        annotations: [("io.container.manager", "podman"), ("org.example.stage", "ci")]
            .map(|(key, value)| (key.to_owned(), value.to_owned()))
            .into(),
        has_bind_mounts: true,
    };
    println!("{HOOKS} hooks against one configuration with 2 annotations");
    let hooks = hooks();
    let first = time(|| evaluate(&hooks, &target));
    println!("first time, patterns compiled as needed: {first:?}");
    let mut later: Vec<_> = (0..1001).map(|_| time(|| evaluate(&hooks, &target))).collect();
    later.sort_unstable();
    println!("after that, median of {}: {:?}", later.len(), later[later.len() / 2]);
}

fn evaluate(hooks: &HookSet, target: &Target) {
    for verdict in hooks.evaluate(target, PODMAN.matching) {
        black_box(verdict.matches());
    }
}

fn time(work: impl FnOnce()) -> Duration {
    let start = Instant::now();
    work();
    start.elapsed()
}

fn hooks() -> HookSet {
    let schema = SchemaOptions { path_check: PathCheck::Skip, ..SchemaOptions::default() };
    let file = |number| {
        let when = match number % 4 {
            0 => format!(r#""commands": [".*/tool-{number}$"]"#),
            1 => format!(r#""annotations": {{"^com\\.example\\.hook-{number}$": "^(true|yes)$"}}"#),
            2 => format!(r#""commands": ["^/usr/(local/)?bin/.*-{number}$"]"#),
            _ => format!(
                r#""hasBindMounts": true, "annotations": {{"example": "^[a-z]+{number}$"}}"#
            ),
        };
        let text = format!(
            r#"{{"version":"1.0.0","hook":{{"path":"/bin/true"}},"when":{{{when}}},"stages":["poststop"]}}"#
        );
        let definition = Definition::parse(text.as_bytes(), schema).unwrap();
        HookFile::new(PathBuf::from(format!("{number}.json")), definition)
    };
    (0..HOOKS).map(file).collect()
}
