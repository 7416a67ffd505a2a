//! Administrator's commands that are killed: the next command of the same kind finishes their work.

use std::process::Command;

use oci_hooks_testsupport::installation::HookInstallation;
use oci_hooks_testsupport::kills::{KillSeries, KillVictim};
use oci_hooks_testsupport::program;

use crate::runner::setup::with_each_runtime;

/// Default number of kills of each command on each runtime.
const KILLS: u32 = 5;

/// A command to kill, and the commands to run before and after it.
struct KilledCommand {
    words: Vec<String>,
    before: Vec<&'static str>,
    after: Vec<String>,
}

#[test]
fn killed_admin_commands_leave_nothing_after_the_next_command() {
    with_each_runtime("", |installation| {
        let layout = installation.host().path().join("layout").display().to_string();
        let mut skopeo = Command::new(program::find("skopeo"));
        skopeo.args(["copy", "--quiet", "docker://node:22", &format!("oci:{layout}:node")]);
        installation.host().run(&mut skopeo).success();
        let hook = installation.entry().with_file_name("").display().to_string();
        let words = |words: &[&str]| words.iter().map(|&word| word.to_owned()).collect::<Vec<_>>();
        let pull = vec!["pull", "node:22"];
        let all = [
            KilledCommand { words: words(&pull), before: vec![], after: words(&pull) },
            KilledCommand {
                words: words(&["import", &layout, "local/node"]),
                before: vec![],
                after: words(&["import", &layout, "local/node"]),
            },
            KilledCommand {
                words: words(&["prune", "--all"]),
                before: pull.clone(),
                after: vec![],
            },
            KilledCommand { words: words(&["rmi", "node:22"]), before: pull, after: vec![] },
            KilledCommand {
                words: words(&["install", &hook]),
                before: vec![],
                after: words(&["install", &hook]),
            },
        ];
        let mut play = KillSeries::new(installation, KILLS);
        for killed in &all {
            kill(&mut play, installation, killed);
        }
        play.end();
    });
}

fn kill(
    play: &mut KillSeries<'_, HookInstallation<'_>>,
    installation: &HookInstallation<'_>,
    KilledCommand { words, before, after }: &KilledCommand,
) {
    let start = |(): &mut (), _| {
        if words[0] == "install" {
            // `install` does not rewrite an intact file.
            installation.host().shell(&format!("echo >{}", installation.entry().display()));
        }
        if !before.is_empty() {
            installation.admin(before).success();
        }
        let words: Vec<_> = words.iter().map(String::as_str).collect();
        installation.start_admin(&words)
    };
    let finish = |(): &mut ()| {
        if !after.is_empty() {
            let words: Vec<_> = after.iter().map(String::as_str).collect();
            installation.admin(&words).success();
        }
        installation.admin(&["prune", "--all"]).success();
    };
    let took = start(&mut (), 0).wait().success().took;
    finish(&mut ());
    play.kill(&mut (), &KillVictim { name: &words[0], took, start: &start, finish: &finish });
}
