//! Order and conditions of steps, and the values passed between them.

use step_runner::engine::{CancelHandle, CancelReason};
use step_runner::wire::proto::step_result::Status;

use crate::engine::play::{FinishedJob, JobPlay};

fn run(steps: &str) -> FinishedJob {
    let dir = tempfile::tempdir().unwrap();
    JobPlay::new(dir.path(), &format!("{{}}\n---\n{steps}")).run()
}

#[test]
fn only_steps_with_a_status_condition_run_after_a_failure() {
    let played = run(r"
run:
- {name: a, script: exit 3}
- {name: b, script: echo never}
- {name: c, if: '${{ failure() }}', script: echo on failure}
- {name: d, if: always(), script: 'echo always ${{ steps.a.status }} ${{ steps.b.status }}'}
- {name: e, if: success(), script: echo never}
");
    assert_eq!(played.outcome.message, "step \"a\": exec: exit status 3");
    let text = "Running step name=a\nRunning step name=c\non failure\nRunning step name=d\n\
                always failure skipped\n";
    assert_eq!(played.text, text);
}

#[test]
fn first_failure_determines_the_result_of_the_job() {
    let played = run(r"
run:
- {name: a, script: exit 3}
- {name: b, if: failure(), script: exit 4}
");
    assert_eq!(played.outcome.exit_code, 3);
}

#[test]
fn step_may_fail_if_it_continues_on_error() {
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
            "Running step name=b\nfailure\nSkipping step \"c\": its condition is false\n"
        ),
        "{}",
        played.text
    );
}

#[test]
fn conditions_have_the_context_of_expressions() {
    let dir = tempfile::tempdir().unwrap();
    let steps = r#"{}
---
run:
- {name: a, if: 'vars.BRANCH == "main"', script: echo main}
- {name: b, if: '${{ vars.BRANCH != "main" }}', script: echo other}
- {name: c, if: false, script: echo never}
"#;
    let mut play = JobPlay::new(dir.path(), steps);
    play.vars.insert("BRANCH".to_owned(), "main".to_owned());
    let played = play.run();
    assert_eq!(played.outcome.status, Status::Success, "{}", played.outcome.message);
    assert!(
        played.text.starts_with("Running step name=a\nmain\nSkipping step \"b\""),
        "{}",
        played.text
    );
}

#[test]
fn invalid_condition_fails_its_step() {
    let played = run("\nrun:\n- {name: a, if: 'inputs.none', script: echo never}\n");
    assert_eq!(played.outcome.message, "step \"a\": if: inputs.none: the \"none\" was not found");
}

#[test]
fn cleanup_steps_run_even_if_the_job_is_cancelled_before_its_start() {
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
    for reason in [CancelReason::Requested, CancelReason::Timeout] {
        let cancel = CancelHandle::new().unwrap();
        cancel.stop(reason);
        // A second stop changes nothing.
        cancel.stop(CancelReason::Requested);
        let played = JobPlay::new(dir.path(), steps).run_until(&cancel, |_| {});
        let text = "Running step name=in\nnested\nRunning step name=d\ncleaned\n";
        assert_eq!(played.text, text);
        assert_eq!(played.outcome.error, "the job was cancelled");
    }
}

#[test]
fn cleanup_steps_run_after_a_cancellation() {
    let dir = tempfile::tempdir().unwrap();
    let steps = r"{}
---
run:
- {name: a, script: echo ready; sleep 1000}
- {name: b, script: echo never}
- {name: c, if: cancelled(), script: echo cleaned}
- {name: d, if: failure() && !cancelled(), script: echo never}
";
    let cancel = CancelHandle::new().unwrap();
    let played = JobPlay::new(dir.path(), steps).run_until(&cancel, |text| {
        if text.ends_with("ready\n") && cancel.reason().is_none() {
            cancel.cancel(CancelReason::Requested);
        }
    });
    assert_eq!(played.outcome.status, Status::Cancelled);
    assert!(played.text.ends_with("Running step name=c\ncleaned\n"), "{}", played.text);
}

#[test]
fn second_cancellation_skips_cleanup_steps() {
    let dir = tempfile::tempdir().unwrap();
    let steps = r"{}
---
run:
- {name: a, script: echo ready; sleep 1000}
- {name: c, if: always(), script: trap '' TERM; echo cleaning; sleep 1000}
";
    let cancel = CancelHandle::new().unwrap();
    let played = JobPlay::new(dir.path(), steps).run_until(&cancel, |text| {
        if text.ends_with("ready\n") || text.ends_with("cleaning\n") {
            cancel.cancel(CancelReason::Requested);
        }
    });
    assert_eq!(played.outcome.status, Status::Cancelled);
    assert_eq!(played.outcome.result.sub_step_results.len(), 2);
}

#[test]
fn exports_reach_every_later_step_even_for_existing_variables() {
    let dir = tempfile::tempdir().unwrap();
    let steps = r#"{}
---
run:
- name: a
  script: echo '{"name":"X","value":"new"}' > ${{export_file}}; echo inner [$X]
- name: b
  script: echo "[$X] ${{env.X}}"
"#;
    // In a script, `export_file` is that of the surrounding step, so the value is visible only after `w`.
    std::fs::create_dir(dir.path().join("w")).unwrap();
    std::fs::write(dir.path().join("w/step.yml"), steps).unwrap();
    let mut play = JobPlay::new(
        dir.path(),
        "{}\n---\nrun:\n- {name: w, step: ./w}\n- {name: after, script: 'echo \"after [$X]\"'}\n",
    );
    play.env.insert("X".to_owned(), "old".to_owned());
    let played = play.run();
    assert!(played.text.ends_with("after [new]\n"), "{}", played.text);
}

#[test]
fn script_provides_the_outputs_of_its_step() {
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
    let played = JobPlay::new(dir.path(), steps).run();
    assert!(played.text.ends_with("written\n"), "{} {}", played.text, played.outcome.message);
}

#[test]
fn recursive_step_is_stopped() {
    let dir = tempfile::tempdir().unwrap();
    let steps = "{}\n---\nrun:\n- {name: again, step: .}\n";
    std::fs::write(dir.path().join("step.yml"), steps).unwrap();
    let played = JobPlay::new(dir.path(), steps).run();
    assert!(
        played.outcome.message.ends_with("does a step call itself?"),
        "{}",
        played.outcome.message
    );
}

#[test]
fn results_arrive_as_steps_end_inner_before_outer() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir(dir.path().join("w")).unwrap();
    let inner = "{}\n---\nrun:\n- {name: i, script: 'true'}\n- {name: j, script: exit 9}\n";
    std::fs::write(dir.path().join("w/step.yml"), inner).unwrap();
    let played = JobPlay::new(dir.path(), "{}\n---\nrun:\n- {name: w, step: ./w}\n").run();
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
fn dynamic_reference_is_relative_to_its_file() {
    let dir = tempfile::tempdir().unwrap();
    for (path, steps) in [
        ("o/step.yml", "{}\n---\nrun:\n- {name: b, step: './${{ \"in\" + \"ner\" }}'}\n"),
        ("o/inner/step.yml", "{}\n---\nexec: {command: [echo, found]}\n"),
    ] {
        let path = dir.path().join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, steps).unwrap();
    }
    let played = JobPlay::new(dir.path(), "{}\n---\nrun:\n- {name: a, step: ./o}\n").run();
    assert!(played.text.ends_with("found\n"), "{} {}", played.text, played.outcome.message);
}

#[test]
fn expressions_are_expanded_in_references() {
    let dir = tempfile::tempdir().unwrap();
    let steps = "{}\n---\nrun:\n- name: a\n  step:\n    git: {url: '${{vars.HOST}}/p', rev: 'v${{4 / 2}}', dir: 'a/${{8 / 2}}'}\n";
    let mut play = JobPlay::new(dir.path(), steps);
    play.vars.insert("HOST".to_owned(), "example.com".to_owned());
    // The reference is resolved up to the lookup.
    let message = play.run().outcome.message;
    assert!(message.ends_with("no cache directory for remote steps"), "{message}");
    play.vars.clear();
    let message = play.run().outcome.message;
    let expected =
        "expanding step path \"${{vars.HOST}}/p\": vars.HOST: the \"HOST\" was not found";
    assert!(message.ends_with(expected), "{message}");
}
