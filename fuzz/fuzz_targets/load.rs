//! From the bytes of a hook file and of a configuration to a new configuration.

#![no_main]

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use libfuzzer_sys::fuzz_target;
use oci_hooks::hooks::consumer::PODMAN;
use oci_hooks::hooks::lint::{self, LintOptions, Severity};
use oci_hooks::hooks::migrate::{MigrateOptions, migrate};
use oci_hooks::hooks::{
    ConfigDocument, Consumer, HookDefinition, HookFile, HookSelection, HookSet, InjectOptions,
    MatchTarget, PathCheck, ParseOptions, SchemaVersion, TargetCommand,
};
use oci_hooks::json::{JsonDocument, JsonMember, JsonValue};

// A hook file and a configuration, separated by a zero byte.
fuzz_target!(|input: &[u8]| {
    let at = input.iter().position(|&byte| byte == 0).unwrap_or(input.len());
    let (hook, config) = (&input[..at], input.get(at + 1..).unwrap_or_default());

    let stages: Vec<_> = PODMAN.extension_stages.iter().map(|&stage| stage.to_owned()).collect();
    let parse = |text: &[u8]| {
        let options = ParseOptions::new(&stages).with_path_check(PathCheck::Skip);
        HookDefinition::parse(text, options)
    };

    let findings = lint::lint_text(Path::new("a.json"), hook, &LintOptions::default());
    let definition = match parse(hook) {
        Ok(definition) => definition,
        Err(fault) => {
            let class = fault.error.class();
            assert!(migrate_text(hook, &stages).is_none(), "can be migrated in spite of {class}");
            let is_error = |finding: &lint::HookFinding| finding.severity == Severity::Error;
            assert!(findings.iter().any(is_error), "the linter has no error for {class}");
            let _ = (fault.error.to_string(), fault.error.hint());
            return;
        }
    };
    check_migration(hook, &definition, &stages);
    let fixed = lint::fix_text(Path::new("a.json"), hook, &LintOptions::default());
    parse(&fixed.text).expect("a fixed file loads as it did before");

    let hooks: HookSet = [HookFile::new(PathBuf::from("a.json"), definition)].into_iter().collect();
    let parsed = ConfigDocument::parse(config);
    for consumer in &Consumer::ALL {
        let target = match &parsed {
            Ok(config) => config.target(consumer.bind_mounts),
            Err(error) => {
                let _ = (error.to_string(), error.location());
                Ok(target_from(config))
            }
        };
        let Ok(target) = target else { continue };
        hooks.evaluate(&target).for_each(|verdict| {
            if let Ok(outcome) = verdict.outcome {
                let _ = outcome.reason.to_string();
            }
        });
        if let (Ok(config), Ok(selection)) = (&parsed, hooks.select(&target, consumer)) {
            check_injection(config, &selection, consumer);
        }
    }
});

/// Migrates a file; `None` if it is rejected, an empty list if it has the new schema.
fn migrate_text(text: &[u8], stages: &[String]) -> Option<Vec<String>> {
    let mut options = MigrateOptions::default();
    options.extension_stages = stages;
    let migration = migrate(OsStr::new("a.json"), text, options).ok()?;
    let files = migration.map(|migration| migration.files).unwrap_or_default();
    Some(files.into_iter().map(|file| file.text).collect())
}

/// Derives a target from a text that is no configuration.
fn target_from(text: &[u8]) -> MatchTarget {
    let text = String::from_utf8_lossy(text);
    let mut words = text.split('\n').map(str::to_owned);
    let command = words.next().map_or(TargetCommand::NoProcess, TargetCommand::Program);
    let mut annotations = std::collections::BTreeMap::new();
    while let (Some(key), Some(value)) = (words.next(), words.next()) {
        annotations.insert(key, value);
    }
    MatchTarget { command, annotations, has_bind_mounts: text.len() % 2 == 1 }
}

/// Checks that migrated files load as the new schema, with the same hook.
fn check_migration(text: &[u8], old: &HookDefinition, stages: &[String]) {
    let files = migrate_text(text, stages).expect("a file that loads can be migrated");
    assert_eq!(files.is_empty(), old.version == SchemaVersion::V1_0_0);
    for text in files {
        let options = ParseOptions::new(stages).with_path_check(PathCheck::Skip);
        let new = HookDefinition::parse(text.as_bytes(), options).expect("a migrated file loads");
        assert_eq!((new.version, &new.hook), (SchemaVersion::V1_0_0, &old.hook));
        assert_eq!(new.stages, old.stages);
    }
}

/// Checks that the new configuration is valid, keeps all existing content, and does not grow with `once`.
fn check_injection(
    config: &ConfigDocument<'_>,
    selection: &HookSelection<'_>,
    consumer: &Consumer,
) {
    let Ok(text) = config.inject(selection, InjectOptions::default()) else { return };
    let new = ConfigDocument::parse(&text).expect("the new configuration is JSON");
    let target = |config: &ConfigDocument<'_>| config.target(consumer.bind_mounts);
    assert_eq!(
        target(&new).ok(),
        target(config).ok(),
        "the new configuration is matched in another way"
    );
    assert_kept(config.document(), new.document());

    let once = InjectOptions::once();
    let first = config.inject(selection, once).expect("as without `once`");
    let first = ConfigDocument::parse(&first).expect("the new configuration is JSON");
    let second = first.inject(selection, once).expect("what was injected can be injected again");
    assert_eq!(second, first.document().text());
}

fn assert_kept(old: &JsonDocument<'_>, new: &JsonDocument<'_>) {
    assert!(members_except_hooks(old).eq(members_except_hooks(new)), "something else than hooks has changed");

    let Some(old_hooks) = old.root().get("hooks") else { return };
    let new_hooks = new.root().get("hooks").expect("hooks are still there");
    for old in old_hooks.members() {
        let key = old.key.as_str().expect("a key is a string");
        let new = new_hooks.get(&key).expect("each stage is still there");
        let kept = old.value.elements().map(JsonValue::raw);
        let found = new.elements().take(old.value.elements().count()).map(JsonValue::raw);
        assert!(kept.eq(found), "{key} has lost a hook");
    }
}

/// Returns the members of a configuration except `hooks`, as bytes.
fn members_except_hooks<'d>(document: &'d JsonDocument<'_>) -> impl Iterator<Item = [&'d [u8]; 2]> {
    let others = document.root().members().filter(|member| !member.is_named("hooks"));
    others.map(|member: JsonMember<'d>| [member.key.raw(), member.value.raw()])
}
