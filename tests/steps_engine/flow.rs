//! Which steps run, in what order, and what passes from one to the other.

use oci_hooks::step_runner::engine::{Cancel, Reason};
use oci_hooks::step_runner::wire::proto::step_result::Status;

use crate::play::{Play, Played};

fn run(steps: &str) -> Played {
    let dir = tempfile::tempdir().unwrap();
    Play::new(dir.path(), &format!("{{}}\n---\n{steps}")).run()
}

#[test]
fn after_a_failure_only_steps_run_that_ask_for_it() {
    let played = run(r"
run:
- {name: a, script: exit 3}
- {name: b, script: echo never}
- {name: c, if: '${{ failure() }}', script: echo on failure}
- {name: d, if: always(), script: 'echo always ${{ steps.a.status }} ${{ steps.b.status }}'}
- {name: e, if: success(), script: echo never}
");
    assert_eq!(played.outcome.message, "step \"a\": exec: exit status 3");
    let text = "Running step \"a\"\nRunning step \"c\"\non failure\nRunning step \"d\"\n\
                always failure skipped\n";
    assert_eq!(played.text, text);
}

#[test]
fn the_first_failure_is_that_of_the_job() {
    let played = run(r"
run:
- {name: a, script: exit 3}
- {name: b, if: failure(), script: exit 4}
");
    assert_eq!(played.outcome.exit_code, 3);
}

#[test]
fn a_step_may_fail_if_it_says_so() {
    let played = run(r"
run:
- {name: a, script: exit 3, continue_on_error: true}
- {name: b, script: 'echo ${{ steps.a.status }}'}
- {name: c, if: failure(), script: echo never}
");
    assert_eq!(played.outcome.status, Status::Success);
    assert!(played.text.contains("Step \"a\" failed, continuing: exec: exit status 3\n"));
    assert!(
        played.text.ends_with(
            "Running step \"b\"\nfailure\nSkipping step \"c\": its condition is false\n"
        ),
        "{}",
        played.text
    );
}

#[test]
fn conditions_see_what_expressions_see() {
    let dir = tempfile::tempdir().unwrap();
    let steps = r#"{}
---
run:
- {name: a, if: 'vars.BRANCH == "main"', script: echo main}
- {name: b, if: '${{ vars.BRANCH != "main" }}', script: echo other}
- {name: c, if: false, script: echo never}
"#;
    let mut play = Play::new(dir.path(), steps);
    play.vars.insert("BRANCH".to_owned(), "main".to_owned());
    let played = play.run();
    assert_eq!(played.outcome.status, Status::Success, "{}", played.outcome.message);
    assert!(
        played.text.starts_with("Running step \"a\"\nmain\nSkipping step \"b\""),
        "{}",
        played.text
    );
}

#[test]
fn a_condition_that_is_no_expression_fails_its_step() {
    let played = run("\nrun:\n- {name: a, if: 'inputs.none', script: echo never}\n");
    assert_eq!(played.outcome.message, "step \"a\": if: inputs.none: the \"none\" was not found");
}

#[test]
fn of_a_job_that_is_cancelled_before_it_begins_the_steps_that_clean_up_run() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir(dir.path().join("nested")).unwrap();
    let nested = "{}\n---\nrun: [{name: in, script: echo nested}]\n";
    std::fs::write(dir.path().join("nested/step.yml"), nested).unwrap();
    let steps = r"{}
---
run:
- {name: a, script: echo never; sleep 1000}
- {name: b, step: ./nested}
- {name: c, if: cancelled(), step: ./nested}
- {name: d, if: always(), script: echo cleaned}
";
    for reason in [Reason::Asked, Reason::Timeout] {
        let cancel = Cancel::new().unwrap();
        cancel.stop(reason);
        // Again is the same.
        cancel.stop(Reason::Asked);
        let played = Play::new(dir.path(), steps).run_until(&cancel, |_| {});
        let text = "Running step \"in\"\nnested\nRunning step \"d\"\ncleaned\n";
        assert_eq!(played.text, text);
        assert_eq!(played.outcome.error, "the job was cancelled");
    }
}

#[test]
fn after_a_cancellation_the_steps_that_clean_up_run() {
    let dir = tempfile::tempdir().unwrap();
    let steps = r"{}
---
run:
- {name: a, script: echo ready; sleep 1000}
- {name: b, script: echo never}
- {name: c, if: cancelled(), script: echo cleaned}
- {name: d, if: failure() && !cancelled(), script: echo never}
";
    let cancel = Cancel::new().unwrap();
    let played = Play::new(dir.path(), steps).run_until(&cancel, |text| {
        if text.ends_with("ready\n") && cancel.reason().is_none() {
            cancel.cancel(Reason::Asked);
        }
    });
    assert_eq!(played.outcome.status, Status::Cancelled);
    assert!(played.text.ends_with("Running step \"c\"\ncleaned\n"), "{}", played.text);
}

#[test]
fn a_second_cancellation_does_not_wait_for_the_steps_that_clean_up() {
    let dir = tempfile::tempdir().unwrap();
    let steps = r"{}
---
run:
- {name: a, script: echo ready; sleep 1000}
- {name: c, if: always(), script: trap '' TERM; echo cleaning; sleep 1000}
";
    let cancel = Cancel::new().unwrap();
    let played = Play::new(dir.path(), steps).run_until(&cancel, |text| {
        if text.ends_with("ready\n") || text.ends_with("cleaning\n") {
            cancel.cancel(Reason::Asked);
        }
    });
    assert_eq!(played.outcome.status, Status::Cancelled);
    assert_eq!(played.outcome.result.sub_step_results.len(), 2);
}

#[test]
fn exports_reach_every_later_step_whatever_the_variable_was_before() {
    let dir = tempfile::tempdir().unwrap();
    let steps = r#"{}
---
run:
- name: a
  script: echo '{"name":"X","value":"new"}' > ${{export_file}}; echo inner [$X]
- name: b
  script: echo "[$X] ${{env.X}}"
"#;
    // The script writes the file of the step that it is in, so both see it only after that.
    std::fs::create_dir(dir.path().join("w")).unwrap();
    std::fs::write(dir.path().join("w/step.yml"), steps).unwrap();
    let mut play = Play::new(
        dir.path(),
        "{}\n---\nrun:\n- {name: w, step: ./w}\n- {name: after, script: 'echo \"after [$X]\"'}\n",
    );
    play.env.insert("X".to_owned(), "old".to_owned());
    let played = play.run();
    assert!(played.text.ends_with("after [new]\n"), "{}", played.text);
}

#[test]
fn a_script_gives_the_outputs_of_the_step_it_is_in() {
    let dir = tempfile::tempdir().unwrap();
    let steps = r#"spec: {outputs: {o: {type: string}, p: {type: number, default: 5}}}
---
run:
- name: a
  script: echo '{"name":"o","value":"written"}' > ${{output_file}}
"#;
    std::fs::create_dir(dir.path().join("w")).unwrap();
    std::fs::write(dir.path().join("w/func.yml"), steps).unwrap();
    let steps = "{}\n---\nrun:\n- {name: w, func: ./w}\n- {name: z, script: 'echo ${{steps.w.outputs.o}}'}\n";
    let played = Play::new(dir.path(), steps).run();
    assert!(played.text.ends_with("written\n"), "{} {}", played.text, played.outcome.message);
}

#[test]
fn a_step_that_calls_itself_is_stopped() {
    let dir = tempfile::tempdir().unwrap();
    let steps = "{}\n---\nrun:\n- {name: again, step: .}\n";
    std::fs::write(dir.path().join("step.yml"), steps).unwrap();
    let played = Play::new(dir.path(), steps).run();
    assert!(
        played.outcome.message.ends_with("does a step call itself?"),
        "{}",
        played.outcome.message
    );
}

#[test]
fn results_come_as_steps_end_the_inner_before_the_outer() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir(dir.path().join("w")).unwrap();
    let inner = "{}\n---\nrun:\n- {name: i, script: 'true'}\n- {name: j, script: exit 9}\n";
    std::fs::write(dir.path().join("w/step.yml"), inner).unwrap();
    let played = Play::new(dir.path(), "{}\n---\nrun:\n- {name: w, step: ./w}\n").run();
    let names: Vec<_> =
        played.ended.iter().map(|r| (r.step.as_ref().unwrap().name.as_str(), r.status())).collect();
    let expected = [
        ("i", Status::Success),
        ("j", Status::Failure),
        ("w", Status::Failure),
        ("", Status::Failure),
    ];
    assert_eq!(names, expected);
    assert_eq!(played.ended.last(), Some(&played.outcome.result));
    assert_eq!(played.outcome.exit_code, 9);
}

#[test]
fn a_dynamic_reference_is_relative_to_the_file_that_it_is_in() {
    let dir = tempfile::tempdir().unwrap();
    for (path, steps) in [
        ("o/step.yml", "{}\n---\nrun:\n- {name: b, step: './${{ \"in\" + \"ner\" }}'}\n"),
        ("o/inner/step.yml", "{}\n---\nexec: {command: [echo, found]}\n"),
    ] {
        let path = dir.path().join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, steps).unwrap();
    }
    let played = Play::new(dir.path(), "{}\n---\nrun:\n- {name: a, step: ./o}\n").run();
    assert!(played.text.ends_with("found\n"), "{} {}", played.text, played.outcome.message);
}

#[test]
fn expressions_are_replaced_in_the_parts_of_a_reference() {
    let dir = tempfile::tempdir().unwrap();
    let steps = "{}\n---\nrun:\n- name: a\n  step:\n    git: {url: '${{vars.HOST}}/p', rev: 'v${{4 / 2}}', dir: 'a/${{8 / 2}}'}\n";
    let mut play = Play::new(dir.path(), steps);
    play.vars.insert("HOST".to_owned(), "example.com".to_owned());
    // It gets as far as to be looked for.
    let message = play.run().outcome.message;
    assert!(message.ends_with("no cache directory for remote steps"), "{message}");
    play.vars.clear();
    let message = play.run().outcome.message;
    let expected =
        "expanding step path \"${{vars.HOST}}/p\": vars.HOST: the \"HOST\" was not found";
    assert!(message.ends_with(expected), "{message}");
}
