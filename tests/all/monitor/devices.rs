//! `oci-hooks monitor --cdi`.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::monitor::process::{MonitorProcess, remove_time};
use crate::monitor::support::HookTree;

/// Returns a specification with one device, which sets a variable.
fn lamp(value: &str) -> String {
    format!(
        "cdiVersion: 0.5.0\nkind: vendor.com/lamp\ndevices:\n- name: red\n  containerEdits: {{env: [{value}]}}\n"
    )
}

/// Returns a tree with two directories of specifications, `etc` and `run`.
fn tree() -> HookTree {
    let tree = HookTree::new();
    tree.mkdir("etc");
    tree.mkdir("run");
    tree
}

fn start(tree: &HookTree, args: &[&str]) -> MonitorProcess {
    let (etc, run) = (tree.path("etc"), tree.path("run"));
    MonitorProcess::start_with(tree, args, |command| {
        command.arg("--cdi").arg("--cdi-spec-dir").arg(etc).arg("--cdi-spec-dir").arg(run);
    })
}

/// Returns the kind of the next event, its device or file, and the path in the tree.
#[track_caller]
fn next(program: &MonitorProcess, tree: &HookTree) -> String {
    let event = program.event();
    let text = |key: &str| event[key].as_str().unwrap().to_owned();
    let path = text("path").replace(&tree.path("").display().to_string(), "");
    format!("{} {} {path}", text("event"), text("name"))
}

#[test]
fn events_of_devices_have_their_documented_fields() {
    let tree = tree();
    tree.remove("run");
    tree.put_file("etc/lamp.yaml", lamp("A=1"));
    tree.put_file("etc/broken.json", "{\n  \"cdiVersion\": \"9\"\n}");
    let (etc, run) = (tree.path("etc"), tree.path("run"));
    let program = start(&tree, &[]);
    let device = |event: Value, value: &str| {
        let mut device = json!({
            "name": "vendor.com/lamp=red", "path": etc.join("lamp.yaml"), "cdiVersion": "0.5.0",
            "containerEdits": {"env": [value]}, "specEdits": {},
        });
        device.as_object_mut().unwrap().extend(event.as_object().unwrap().clone());
        device
    };
    let snapshot = remove_time(program.event());
    assert_eq!(
        (&snapshot["event"], &snapshot["dirs"], &snapshot["devices"], &snapshot["hooks"]),
        (
            &json!("snapshot"),
            &json!([{"path": etc, "exists": true}, {"path": run, "exists": false}]),
            &json!([device(json!({}), "A=1")]),
            &Value::Null
        )
    );
    let problem = &snapshot["problems"][0];
    assert_eq!((&problem["class"], &problem["line"]), (&json!("cdi"), &json!(2)));

    tree.put_file("etc/lamp.yaml", lamp("A=2"));
    let changed = device(json!({"event": "changed"}), "A=2");
    assert_eq!(remove_time(program.event()), changed);

    tree.put_file("etc/lamp.yaml", lamp("A=2").replace("name:", "nam:"));
    let removed =
        json!({"event": "removed", "name": "vendor.com/lamp=red", "path": etc.join("lamp.yaml")});
    assert_eq!(remove_time(program.event()), removed);
    let mut broken = remove_time(program.event());
    let problem = broken.as_object_mut().unwrap().remove("problem").unwrap();
    assert_eq!(problem["message"], "unknown key \"nam\": did you mean `name`?");
    let file = json!({"name": "lamp.yaml", "path": etc.join("lamp.yaml")});
    assert_eq!((&broken["event"], &broken["in_force"]), (&json!("broken"), &json!(false)));
    assert_eq!((&broken["name"], &broken["path"]), (&file["name"], &file["path"]));

    tree.put_file("etc/lamp.yaml", lamp("A=2"));
    let added = device(json!({"event": "added"}), "A=2");
    assert_eq!(remove_time(program.event()), added);
    let readable = json!({"event": "readable", "name": "lamp.yaml", "path": etc.join("lamp.yaml")});
    assert_eq!(remove_time(program.event()), readable);
}

#[test]
fn specifications_are_followed_by_their_names() {
    let tree = tree();
    let program = start(&tree, &[]);
    assert_eq!(program.next_event(), "snapshot ");
    // Neither is a specification.
    tree.put_file("etc/lamp.yml", lamp("A=1"));
    tree.mkdir("etc/dir.yaml");
    tree.put_file("etc/lamp.yaml", lamp("A=1"));
    assert_eq!(next(&program, &tree), "added vendor.com/lamp=red etc/lamp.yaml");
    tree.rename("etc/lamp.yaml", "etc/lamp.json");
    assert_eq!(next(&program, &tree), "changed vendor.com/lamp=red etc/lamp.json");
    // Comments do not change a device.
    tree.put_file("etc/lamp.json", lamp("A=1").replace('\n', " # comment\n"));
    tree.put_file("etc/broken.yaml", "[");
    assert_eq!(next(&program, &tree), "broken broken.yaml etc/broken.yaml");
    tree.remove("etc/broken.yaml");
    assert_eq!(next(&program, &tree), "removed broken.yaml etc/broken.yaml");
    tree.remove("etc/lamp.json");
    assert_eq!(next(&program, &tree), "removed vendor.com/lamp=red etc/lamp.json");
}

#[test]
fn device_of_a_later_directory_is_in_force() {
    let tree = tree();
    tree.put_file("run/lamp.json", lamp("A=1"));
    let program = start(&tree, &[]);
    assert_eq!(program.next_event(), "snapshot ");
    // The device of the earlier directory is not in force.
    tree.put_file("etc/lamp.yaml", lamp("A=2"));
    program.signal(Signal::HUP);
    assert_eq!(program.event()["devices"][0]["path"], json!(tree.path("run/lamp.json")));
    tree.remove("run/lamp.json");
    assert_eq!(next(&program, &tree), "changed vendor.com/lamp=red etc/lamp.yaml");
    tree.put_file("run/lamp.json", lamp("A=1"));
    assert_eq!(next(&program, &tree), "changed vendor.com/lamp=red run/lamp.json");
}

#[test]
fn device_of_two_files_is_broken_until_one_is_removed() {
    let tree = tree();
    tree.put_file("etc/a.yaml", lamp("A=1"));
    let program = start(&tree, &[]);
    assert_eq!(program.next_event(), "snapshot ");
    tree.put_file("etc/b.yaml", lamp("A=1"));
    let event = program.event();
    assert_eq!(
        (&event["event"], &event["name"]),
        (&json!("broken"), &json!("vendor.com/lamp=red"))
    );
    let message = event["problem"]["message"].as_str().unwrap();
    assert!(message.starts_with("several files define device"), "{message}");
    program.signal(Signal::HUP);
    let snapshot = program.event();
    assert_eq!(snapshot["problems"][0]["message"], message);
    tree.remove("etc/a.yaml");
    assert_eq!(next(&program, &tree), "restored vendor.com/lamp=red etc/b.yaml");
}

#[test]
fn specification_directory_created_later_is_followed() {
    let tree = HookTree::new();
    let program = start(&tree, &[]);
    assert_eq!(program.event()["dirs"][1]["exists"], false);
    tree.mkdir("new");
    tree.put_file("new/lamp.yaml", lamp("A=1"));
    tree.rename("new", "run");
    assert_eq!(next(&program, &tree), "added vendor.com/lamp=red run/lamp.yaml");
    tree.rename("run", "old");
    assert_eq!(next(&program, &tree), "removed vendor.com/lamp=red run/lamp.yaml");
}

#[test]
fn specification_behind_a_link_is_followed() {
    let tree = tree();
    tree.mkdir("share");
    tree.put_file("share/lamp", lamp("A=1"));
    tree.link("../share/lamp", "etc/lamp.yaml");
    let program = start(&tree, &[]);
    assert_eq!(program.next_event(), "snapshot ");
    tree.put_file("share/lamp", lamp("A=2"));
    assert_eq!(next(&program, &tree), "changed vendor.com/lamp=red etc/lamp.yaml");
    tree.remove("share/lamp");
    assert_eq!(next(&program, &tree), "removed vendor.com/lamp=red etc/lamp.yaml");
    assert_eq!(next(&program, &tree), "broken lamp.yaml etc/lamp.yaml");
    tree.remove("etc/lamp.yaml");
    assert_eq!(next(&program, &tree), "removed lamp.yaml etc/lamp.yaml");
}

#[test]
fn command_after_a_change_lints_who_can_change_a_specification() {
    let tree = tree();
    let exec = r#""$OCI_HOOKS" lint --cdi --cdi-spec-dir "$CDI" | grep -o 'OH401' >&2"#;
    let etc = tree.path("etc");
    let program = MonitorProcess::start_with(&tree, &["--exec", exec], |command| {
        command.arg("--cdi").arg("--cdi-spec-dir").arg(&etc).env("CDI", &etc);
        command.env("OCI_HOOKS", env!("CARGO_BIN_EXE_oci-hooks"));
    });
    assert_eq!(program.next_event(), "snapshot ");
    tree.write("new-file", lamp("A=1"));
    fs::set_permissions(tree.path("new-file"), fs::Permissions::from_mode(0o666)).unwrap();
    tree.rename("new-file", "etc/lamp.yaml");
    assert_eq!(program.next_event(), "added vendor.com/lamp=red");
    assert_eq!(program.error_line(), "OH401");
}

#[test]
fn human_format_prints_changes_of_devices() {
    let tree = tree();
    tree.put_file("etc/lamp.yaml", lamp("A=1"));
    let program = start(&tree, &["--format", "human"]);
    let path = |path| tree.path(path).display().to_string();
    assert!(program.line().ends_with(&format!("Z watching {}", path("etc"))));
    assert!(program.line().ends_with(&format!("Z watching {}", path("run"))));
    let device = format!("vendor.com/lamp=red  {}", path("etc/lamp.yaml"));
    assert!(program.line().ends_with(&format!("Z in force {device}")));
    tree.put_file("etc/lamp.yaml", lamp("A=2"));
    assert!(program.line().ends_with(&format!("Z changed  {device}")));
    tree.put_file("etc/lamp.yaml", "");
    assert!(program.line().ends_with(&format!("Z removed  {device}")));
    let broken = program.line();
    assert!(broken.ends_with("etc/lamp.yaml: the file is empty"), "{broken}");
}
