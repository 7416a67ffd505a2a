//! From the bytes of a hook file and of a configuration to a new configuration.

#![no_main]

use std::ffi::OsStr;
use std::path::PathBuf;

use libfuzzer_sys::fuzz_target;
use oci_hooks::hooks::consumer::SchemaRule;
use oci_hooks::hooks::json::{Document, Member, Value};
use oci_hooks::hooks::migrate::{MigrateOptions, migrate};
use oci_hooks::hooks::{
    Command, Config, Consumer, Definition, HookFile, HookSet, InjectOptions, PathCheck,
    SchemaOptions, Selection, Target, Version,
};

// A hook file and a configuration, with a zero byte between them.
fuzz_target!(|input: &[u8]| {
    let at = input.iter().position(|&byte| byte == 0).unwrap_or(input.len());
    let (hook, config) = (&input[..at], input.get(at + 1..).unwrap_or_default());

    let strict = Definition::parse(hook, options(SchemaRule::Strict));
    let definition = match Definition::parse(hook, options(SchemaRule::Go)) {
        Ok(definition) => definition,
        Err(fault) => {
            assert!(strict.is_err(), "the strict schema accepts what the lax one refuses");
            assert!(migrate(OsStr::new("a.json"), hook, MigrateOptions::default()).is_err());
            let _ = (fault.error.to_string(), fault.error.hint());
            return;
        }
    };
    check_migration(hook, &definition);

    let hooks: HookSet = [HookFile::new(PathBuf::from("a.json"), definition)].into_iter().collect();
    let parsed = Config::parse(config);
    for consumer in &Consumer::ALL {
        let target = match &parsed {
            Ok(config) => config.target(consumer.bind_mounts),
            Err(error) => {
                let _ = (error.to_string(), error.location());
                Ok(target_from(config))
            }
        };
        let Ok(target) = target else { continue };
        hooks.evaluate(&target, consumer.matching).for_each(|verdict| {
            if let Ok(outcome) = verdict.outcome {
                let _ = outcome.reason.to_string();
            }
        });
        if let (Ok(config), Ok(selection)) = (&parsed, hooks.select(&target, consumer)) {
            check_injection(config, &selection, consumer);
        }
    }
});

fn options(schema: SchemaRule) -> SchemaOptions<'static> {
    SchemaOptions { path_check: PathCheck::Skip, schema, ..SchemaOptions::default() }
}

/// Makes a container of text that is no configuration.
fn target_from(text: &[u8]) -> Target {
    let text = String::from_utf8_lossy(text);
    let mut words = text.split('\n').map(str::to_owned);
    let command = words.next().map_or(Command::NoProcess, Command::Program);
    let mut annotations = std::collections::BTreeMap::new();
    while let (Some(key), Some(value)) = (words.next(), words.next()) {
        annotations.insert(key, value);
    }
    Target { command, annotations, has_bind_mounts: text.len() % 2 == 1 }
}

/// What is migrated loads as the new schema, with the same hook.
fn check_migration(text: &[u8], old: &Definition) {
    let migration = migrate(OsStr::new("a.json"), text, MigrateOptions::default())
        .expect("a file that loads can be migrated");
    assert_eq!(migration.is_none(), old.version == Version::V1_0_0);
    for file in migration.iter().flat_map(|migration| &migration.files) {
        let new = Definition::parse(file.text.as_bytes(), options(SchemaRule::Go))
            .expect("a migrated file loads");
        assert_eq!((new.version, &new.hook), (Version::V1_0_0, &old.hook));
        assert_eq!(new.stages, old.stages);
    }
}

/// What is injected is valid, keeps all that was there, and with `once` does not grow.
fn check_injection(config: &Config<'_>, selection: &Selection<'_>, consumer: &Consumer) {
    let Ok(text) = config.inject(selection, InjectOptions::default()) else { return };
    let new = Config::parse(&text).expect("the new configuration is JSON");
    new.target(consumer.bind_mounts).expect("the new configuration is as good as the old one");
    assert_kept(config.document(), new.document());

    let once = InjectOptions { once: true };
    let first = config.inject(selection, once).expect("as without `once`");
    let first = Config::parse(&first).expect("the new configuration is JSON");
    let second = first.inject(selection, once).expect("what was injected can be injected again");
    assert_eq!(second, first.document().text());
}

fn assert_kept(old: &Document<'_>, new: &Document<'_>) {
    assert!(all_but_hooks(old).eq(all_but_hooks(new)), "something else than hooks has changed");

    let Some(old_hooks) = old.root().get("hooks") else { return };
    let new_hooks = new.root().get("hooks").expect("hooks are still there");
    for old in old_hooks.members() {
        let key = old.key.as_str().expect("a key is a string");
        let new = new_hooks.get(&key).expect("each stage is still there");
        let kept = old.value.elements().map(Value::raw);
        let found = new.elements().take(old.value.elements().count()).map(Value::raw);
        assert!(kept.eq(found), "{key} has lost a hook");
    }
}

/// Returns what the members of a configuration say, as bytes.
fn all_but_hooks<'d>(document: &'d Document<'_>) -> impl Iterator<Item = [&'d [u8]; 2]> {
    let others = document.root().members().filter(|member| !member.is_named("hooks"));
    others.map(|member: Member<'d>| [member.key.raw(), member.value.raw()])
}
