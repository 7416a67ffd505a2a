//! Properties of all hooks, configurations and containers.

use std::collections::BTreeMap;
use std::path::PathBuf;

use oci_hooks::hooks::consumer::PODMAN;
use oci_hooks::hooks::{
    ConfigDocument, HookDefinition, HookFile, HookSet, InjectOptions, MatchTarget, OciStage,
    ParseOptions, PathCheck, TargetCommand,
};
use oci_hooks::json::{JsonDocument, JsonKind, JsonValue};
use proptest::prelude::*;

/// Generates JSON with unusual whitespace, escapes, numbers and repeated keys.
fn json() -> impl Strategy<Value = String> {
    let scalar = prop_oneof![
        Just("null".to_owned()),
        Just("true".to_owned()),
        Just("-0".to_owned()),
        Just("1.50e400".to_owned()),
        Just(r#""\ud800 \u0041\/""#.to_owned()),
        "[0-9]{1,3}".prop_map(|number| number.parse::<u32>().unwrap().to_string()),
        string(),
    ];
    scalar.prop_recursive(5, 40, 5, |inner| {
        prop_oneof![
            (space(), prop::collection::vec(with_spaces(inner.clone()), 0..5))
                .prop_map(|(space, items)| format!("[{space}{}]", items.join(","))),
            (space(), prop::collection::vec(member(key(), inner), 0..5))
                .prop_map(|(space, members)| format!("{{{space}{}}}", members.join(","))),
        ]
    })
}

fn string() -> impl Strategy<Value = String> {
    r#"[a-c/.é😀"\\\n]{0,6}"#.prop_map(|text| serde_json::to_string(&text).unwrap())
}

fn key() -> impl Strategy<Value = String> {
    prop_oneof![
        string(),
        prop::sample::select(vec!["hooks", "poststop", "process", "a", "x-vendor"])
            .prop_map(|key| format!("\"{key}\"")),
    ]
}

fn space() -> impl Strategy<Value = &'static str> {
    prop::sample::select(vec!["", "", " ", "\n\t", "\r\n   "])
}

fn with_spaces(inner: impl Strategy<Value = String>) -> impl Strategy<Value = String> {
    (space(), inner, space()).prop_map(|(before, text, after)| format!("{before}{text}{after}"))
}

fn member(
    key: impl Strategy<Value = String>,
    value: impl Strategy<Value = String>,
) -> impl Strategy<Value = String> {
    (with_spaces(key), with_spaces(value)).prop_map(|(key, value)| format!("{key}:{value}"))
}

/// Generates a `config.json` with unknown fields, and any state of `hooks`.
fn config() -> impl Strategy<Value = String> {
    let hooks = prop_oneof![
        Just(None),
        Just(Some("null".to_owned())),
        prop::collection::btree_map(stage(), existing_hooks(), 0..4).prop_map(|stages| {
            let members: Vec<_> =
                stages.iter().map(|(s, list)| format!("\"{s}\" :{list}")).collect();
            Some(format!("{{ {} }}", members.join(" ,")))
        }),
    ];
    let other = member(string().prop_map(|key| key.replacen('"', "\"x", 1)), json());
    (prop::collection::vec(other, 0..4), hooks, any::<prop::sample::Index>(), space()).prop_map(
        |(mut members, hooks, at, space)| {
            if let Some(hooks) = hooks {
                members.insert(at.index(members.len() + 1), format!("\"hooks\" : {hooks}"));
            }
            format!("{space}{{{space}{}{space}}}{space}", members.join(","))
        },
    )
}

fn stage() -> impl Strategy<Value = &'static str> {
    prop::sample::select(OciStage::ALL.map(OciStage::name).to_vec())
}

fn existing_hooks() -> impl Strategy<Value = String> {
    prop::sample::select(vec![
        "null",
        "[]",
        "[ ]",
        r#"[{"path":"/h1"}]"#,
        r#"[{ "path": "/h2", "args": ["a"], "x": 1.0 } , {}]"#,
    ])
    .prop_map(str::to_owned)
}

/// Path, conditions and stages of a hook file.
type HookSource = (u8, String, Vec<&'static str>);

fn when_objects() -> impl Strategy<Value = String> {
    let pattern = prop::sample::select(vec!["a", "^a$", "", ".*", "[^b]", "(?i)B|c", "\\\\d+"]);
    prop_oneof![
        Just(r#""always":true"#.to_owned()),
        any::<bool>().prop_map(|value| format!("\"always\":{value}")),
        any::<bool>().prop_map(|value| format!("\"hasBindMounts\":{value}")),
        pattern.clone().prop_map(|pattern| format!("\"commands\":[\"{pattern}\"]")),
        (pattern.clone(), pattern)
            .prop_map(|(key, value)| format!("\"annotations\":{{\"{key}\":\"{value}\"}}")),
        Just(String::new()),
    ]
}

fn hooks() -> impl Strategy<Value = Vec<HookSource>> {
    prop::collection::vec((0..4_u8, when_objects(), prop::collection::vec(stage(), 0..4)), 0..8)
}

fn target() -> impl Strategy<Value = MatchTarget> {
    let command = prop_oneof![
        Just(TargetCommand::NoProcess),
        Just(TargetCommand::NoArgs),
        "[a-c0-9]{0,3}".prop_map(TargetCommand::Program),
    ];
    let annotations = prop::collection::btree_map("[a-c0-9]{0,2}", "[a-c0-9]{0,2}", 0..4);
    (command, annotations, any::<bool>()).prop_map(|(command, annotations, has_bind_mounts)| {
        MatchTarget { command, annotations, has_bind_mounts }
    })
}

fn files(hooks: &[HookSource]) -> Vec<HookFile> {
    let schema = ParseOptions::default().with_path_check(PathCheck::Skip);
    let file = |(number, (path, when, stages)): (usize, &HookSource)| {
        let stages = serde_json::to_string(stages).unwrap();
        let text = format!(
            r#"{{"version":"1.0.0","hook":{{"path":"/h{path}"}},"when":{{{when}}},"stages":{stages}}}"#
        );
        let definition = HookDefinition::parse(text.as_bytes(), schema).unwrap();
        // Includes names that differ only in case.
        let name = if number % 2 == 0 {
            format!("{}.JSON.json", number / 2)
        } else {
            format!("{}.json.json", number / 2)
        };
        HookFile::new(PathBuf::from(name), definition)
    };
    hooks.iter().enumerate().map(file).collect()
}

/// Returns the configuration with the matching hooks, or nothing if a hook cannot be matched.
fn inject(
    set: &HookSet,
    target: &MatchTarget,
    config: &[u8],
    options: InjectOptions,
) -> Option<Vec<u8>> {
    let selection = set.select(target, &PODMAN).ok()?;
    Some(ConfigDocument::parse(config).unwrap().inject(&selection, options).unwrap())
}

/// Returns all members of an object except one, as raw bytes.
fn other_members<'d>(object: JsonValue<'d>, name: &str) -> Vec<(&'d [u8], &'d [u8])> {
    let others = object.members().filter(|member| !member.is_named(name));
    others.map(|member| (member.key.raw(), member.value.raw())).collect()
}

/// Returns the raw hooks at each stage.
fn stages<'d>(root: JsonValue<'d>) -> BTreeMap<String, Vec<&'d [u8]>> {
    let members = root.get("hooks").into_iter().flat_map(JsonValue::members);
    members
        .map(|member| {
            let elements = member.value.elements().map(JsonValue::raw).collect();
            (member.key.as_str().unwrap().into_owned(), elements)
        })
        .collect()
}

/// Returns whether a text is another with parts removed.
fn is_subsequence(part: &[u8], whole: &[u8]) -> bool {
    let mut whole = whole.iter();
    part.iter().all(|byte| whole.any(|b| b == byte))
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn injection_keeps_other_members(config in config(), hooks in hooks(), target in target()) {
        let set: HookSet = files(&hooks).into_iter().collect();
        let Some(injected) = inject(&set, &target, config.as_bytes(), InjectOptions::default()) else {
            return Ok(());
        };
        let before = JsonDocument::parse(config.as_bytes()).unwrap();
        let after = JsonDocument::parse(&injected).unwrap();
        prop_assert_eq!(other_members(before.root(), "hooks"), other_members(after.root(), "hooks"));

        // Each stage keeps its hooks, followed by the matching hooks in order.
        let selection = set.select(&target, &PODMAN).unwrap();
        let (old, new) = (stages(before.root()), stages(after.root()));
        for stage in OciStage::ALL {
            let none = Vec::new();
            let old = old.get(stage.name()).unwrap_or(&none);
            let new = new.get(stage.name()).unwrap_or(&none);
            prop_assert!(new.starts_with(old), "{}", stage);
            let added: Vec<_> = new[old.len()..].iter().map(|hook| {
                serde_json::from_slice::<serde_json::Value>(hook).unwrap()["path"].as_str().unwrap().to_owned()
            }).collect();
            let expected: Vec<_> = selection.hooks_at(stage).map(|hook| hook.path.clone()).collect();
            prop_assert_eq!(added, expected);
        }

        // Only `null` and the space in empty lists are removed.
        let bare = |text: &[u8]| -> Vec<u8> {
            let text = String::from_utf8_lossy(text).replace("null", "");
            text.bytes().filter(|b| !b.is_ascii_whitespace()).collect()
        };
        prop_assert!(is_subsequence(&bare(config.as_bytes()), &bare(&injected)));
    }

    #[test]
    fn repeated_injection_with_once_changes_nothing(config in config(), hooks in hooks(), target in target()) {
        let set: HookSet = files(&hooks).into_iter().collect();
        let once = InjectOptions::once();
        if let Some(first) = inject(&set, &target, config.as_bytes(), once) {
            prop_assert_eq!(inject(&set, &target, &first, once).unwrap(), first);
        }
    }

    #[test]
    fn loading_order_does_not_matter(
        config in config(),
        hooks in hooks(),
        target in target(),
        order in any::<prop::sample::Index>(),
    ) {
        let mut files = files(&hooks);
        let one = inject(&files.iter().cloned().collect(), &target, config.as_bytes(), InjectOptions::default());
        let middle = order.index(files.len().max(1)).min(files.len());
        files.rotate_left(middle);
        files.reverse();
        let other = inject(&files.into_iter().collect(), &target, config.as_bytes(), InjectOptions::default());
        prop_assert_eq!(one, other);
    }

    #[test]
    fn verdict_agrees_with_its_reason(hooks in hooks(), target in target()) {
        let set: HookSet = files(&hooks).into_iter().collect();
        for verdict in set.evaluate(&target) {
            if let Ok(outcome) = verdict.outcome {
                // In schema 1.0.0 all conditions must hold, so the result and the deciding condition agree.
                prop_assert_eq!(outcome.matched, outcome.reason.holds());
            }
        }
    }

    #[test]
    fn arbitrary_json_is_parsed_and_formatted(text in with_spaces(json())) {
        let document = JsonDocument::parse(text.as_bytes()).unwrap();
        let pretty = document.to_pretty(" ");
        let again = JsonDocument::parse(&pretty).unwrap();
        let values = |document: &JsonDocument<'_>| -> Vec<_> {
            document.values().map(|value| {
                let is_scalar = !matches!(value.kind(), JsonKind::Array | JsonKind::Object);
                (value.kind(), value.location().pointer, is_scalar.then(|| value.raw().to_vec()))
            }).collect()
        };
        prop_assert_eq!(values(&document), values(&again));
        prop_assert_eq!(&again.to_pretty(" "), &pretty);
    }

    #[test]
    fn arbitrary_bytes_are_a_hook_or_an_error(bytes in prop::collection::vec(any::<u8>(), 0..200), text in json()) {
        for text in [&bytes[..], text.as_bytes()] {
            let schema = ParseOptions::new(&[]).with_path_check(PathCheck::Skip);
            let _ = HookDefinition::parse(text, schema);
            let _ = ConfigDocument::parse(text).map(|config| config.target(PODMAN.bind_mounts).map(drop));
        }
    }
}
