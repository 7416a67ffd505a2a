//! Measures matching in process: 1000 loaded hooks against one configuration, first with the
//! compilation of patterns and then without it; and single patterns.
//!
//! `cargo bench --bench matching`

#![expect(clippy::print_stdout, clippy::unwrap_used, reason = "prints figures; what fails panics")]

use std::hint::black_box;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use oci_hooks::hooks::{
    HookDefinition, HookFile, HookSet, MatchTarget, ParseOptions, PathCheck, Pattern, TargetCommand,
};

const HOOKS: usize = 1000;

fn main() {
    let target = MatchTarget {
        command: TargetCommand::Program("/usr/bin/python3".to_owned()),
        annotations: [("io.container.manager", "podman"), ("org.example.stage", "ci")]
            .map(|(key, value)| (key.to_owned(), value.to_owned()))
            .into(),
        has_bind_mounts: true,
    };
    println!(
        "{HOOKS} hooks against one configuration with 2 annotations, first time and after that"
    );
    println!(
        "most patterns answered by literals: {}",
        measure_first_and_later(&hooks(usual_condition), &target)
    );
    println!(
        "all patterns compiled and matching: {}",
        measure_first_and_later(&hooks(compiled), &target)
    );
    measure_patterns();
}

fn measure_first_and_later(hooks: &HookSet, target: &MatchTarget) -> String {
    let first = time(|| evaluate(hooks, target));
    let later = median(1001, || time(|| evaluate(hooks, target)));
    format!("{first:?}, {later:?}")
}

fn measure_patterns() {
    println!("{:<48} {:>12} {:>12} {:>12}", "pattern", "made, once", "again", "100 kB");
    for (source, text) in [
        ("^(true|yes)$", "true"),
        (r"^/usr/(local/)?bin/.*-hook$", "/usr/local/bin/my-hook"),
        (r"^com\.example\..*/.*$", "com.example.hooks/debug"),
        (r"(?i)perl", "/usr/bin/PERL"),
        (r"^/usr/(s?bin|lib)/[^/]+(python|perl)[0-9.]*$", "/usr/bin/my-python3.11"),
    ] {
        let make = || Pattern::new(source).unwrap();
        let once = median(1001, || time(|| assert!(make().is_match(text))));
        let pattern = make();
        let again = median(101, || {
            time(|| (0..100).for_each(|_| assert!(black_box(&pattern).is_match(text)))) / 100
        });
        let long = format!("{text}{}", "/usr/lib/x com.example".repeat(4545)) + text;
        let long = median(101, || time(|| black_box(pattern.is_match(black_box(&long)))));
        println!("{source:<48} {once:>12?} {again:>12?} {long:>12?}");
    }
}

fn median(runs: usize, work: impl FnMut() -> Duration) -> Duration {
    let mut times: Vec<_> = std::iter::repeat_with(work).take(runs).collect();
    times.sort_unstable();
    times[times.len() / 2]
}

fn evaluate(hooks: &HookSet, target: &MatchTarget) {
    for verdict in hooks.evaluate(target) {
        black_box(verdict.matches());
    }
}

fn time<R>(work: impl FnOnce() -> R) -> Duration {
    let start = Instant::now();
    black_box(work());
    start.elapsed()
}

fn usual_condition(number: usize) -> String {
    match number % 4 {
        0 => format!(r#""commands": [".*/tool-{number}$"]"#),
        1 => format!(r#""annotations": {{"^com\\.example\\.hook-{number}$": "^(true|yes)$"}}"#),
        2 => format!(r#""commands": ["^/usr/(local/)?bin/.*-{number}$"]"#),
        _ => format!(r#""hasBindMounts": true, "annotations": {{"example": "^[a-z]+{number}$"}}"#),
    }
}

fn compiled(number: usize) -> String {
    format!(r#""annotations": {{"example": "^(ci|test|[a-c]{number})$"}}"#)
}

fn hooks(when: fn(usize) -> String) -> HookSet {
    let schema = ParseOptions::default().with_path_check(PathCheck::Skip);
    let file = |number| {
        let when = when(number);
        let text = format!(
            r#"{{"version":"1.0.0","hook":{{"path":"/bin/true"}},"when":{{{when}}},"stages":["poststop"]}}"#
        );
        let definition = HookDefinition::parse(text.as_bytes(), schema).unwrap();
        HookFile::new(PathBuf::from(format!("{number}.json")), definition)
    };
    (0..HOOKS).map(file).collect()
}
