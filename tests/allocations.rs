//! Matching loaded hooks allocates nothing, so its cost stays constant in long-running programs; compiling a
//! pattern takes memory in proportion to its size.

#![expect(clippy::unwrap_used, reason = "a failed test is a panic")]

use std::path::PathBuf;
use std::sync::Mutex;

use oci_hooks::hooks::{
    HookDefinition, HookFile, HookSet, MatchTarget, ParseOptions, PathCheck, Pattern, TargetCommand,
};

#[global_allocator]
static ALLOCATOR: dhat::Alloc = dhat::Alloc;

/// A process has one profiler.
static PROFILED: Mutex<()> = Mutex::new(());

#[test]
fn non_matching_hooks_allocate_nothing() {
    let hooks = hooks();
    let target = MatchTarget {
        command: TargetCommand::Program("/usr/bin/python3".to_owned()),
        annotations: [("com.example.a".to_owned(), "value".to_owned())].into(),
        has_bind_mounts: false,
    };
    let matches = || hooks.evaluate(&target).filter(|v| v.matches()).count();
    // Patterns are compiled on first use.
    assert_eq!(matches(), 0);

    let _one = PROFILED.lock().unwrap();
    let profiler = dhat::Profiler::builder().testing().build();
    assert_eq!(matches(), 0);
    let blocks = dhat::HeapStats::get().total_blocks;
    drop(profiler);
    assert_eq!(blocks, 0);
}

/// A capture for each inner repetition would take gigabytes.
#[test]
fn nested_repetitions_take_no_memory_for_captures() {
    for source in [format!("(?:{}){{1000}}", "(?:a+)?".repeat(20)), "(?:[ab]?){1000}".repeat(20)] {
        let _one = PROFILED.lock().unwrap();
        let profiler = dhat::Profiler::builder().testing().build();
        assert!(Pattern::new(source).unwrap().is_match("ab"));
        let peak = dhat::HeapStats::get().max_bytes;
        drop(profiler);
        assert!(peak < 100 << 20, "{peak}");
    }
}

/// Returns hooks with each kind of condition and pattern.
fn hooks() -> HookSet {
    let whens = [
        r#""always": false"#,
        r#""hasBindMounts": true"#,
        r#""commands": ["/bash$", "^/bin/.*", "^sh$"]"#,
        r#""commands": ["^/usr/(local/)?bin/[a-z]+-hook$", "(?i)PERL"]"#,
        r#""annotations": {"^com\\.example\\.[a-z]$": "^(true|yes)$"}"#,
        r#""annotations": {"^com\\.example\\.b$": ".*"}"#,
        r#""annotations": {"example": "v[a-z]*x"}"#,
    ];
    let schema = ParseOptions::default().with_path_check(PathCheck::Skip);
    let file = |(number, when): (usize, &&str)| {
        let text = format!(
            r#"{{"version":"1.0.0","hook":{{"path":"/bin/true"}},"when":{{{when}}},"stages":["poststop"]}}"#
        );
        let definition = HookDefinition::parse(text.as_bytes(), schema).unwrap();
        HookFile::new(PathBuf::from(format!("{number}.json")), definition)
    };
    whens.iter().enumerate().map(file).collect()
}
