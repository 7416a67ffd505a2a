//! What the admin's commands were about when they were killed is done by the next of their kind.

use std::process::Command;

use crate::setup::with_each_runtime;
use crate::support::installation::Installation;
use crate::support::kills::{Play, Victim};
use crate::support::program;

/// How often each command is killed on each runtime if nobody asks for more.
const KILLS: u32 = 5;

/// A command, and what is done before and after it.
struct Killed {
    words: Vec<String>,
    before: Vec<&'static str>,
    after: Vec<String>,
}

#[test]
fn commands_of_the_admin_that_are_killed_leave_nothing_after_the_next() {
    with_each_runtime("", |installation| {
        let layout = installation.host().path().join("layout").display().to_string();
        let mut skopeo = Command::new(program::find("skopeo"));
        skopeo.args(["copy", "--quiet", "docker://node:22", &format!("oci:{layout}:node")]);
        installation.host().run(&mut skopeo).success();
        let hook = installation.entry().with_file_name("").display().to_string();
        let words = |words: &[&str]| words.iter().map(|&word| word.to_owned()).collect::<Vec<_>>();
        let pull = vec!["pull", "node:22"];
        let all = [
            Killed { words: words(&pull), before: vec![], after: words(&pull) },
            Killed {
                words: words(&["import", &layout, "local/node"]),
                before: vec![],
                after: words(&["import", &layout, "local/node"]),
            },
            Killed { words: words(&["prune", "--all"]), before: pull.clone(), after: vec![] },
            Killed { words: words(&["rmi", "node:22"]), before: pull, after: vec![] },
            Killed {
                words: words(&["install", &hook]),
                before: vec![],
                after: words(&["install", &hook]),
            },
        ];
        let mut play = Play::new(installation, KILLS);
        for killed in &all {
            kill(&mut play, installation, killed);
        }
        play.end();
    });
}

fn kill(
    play: &mut Play<'_, Installation<'_>>,
    installation: &Installation<'_>,
    Killed { words, before, after }: &Killed,
) {
    let start = |(): &mut (), _| {
        if words[0] == "install" {
            // It leaves alone what is as it should be.
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
    play.kill(&mut (), &Victim { name: &words[0], took, start: &start, finish: &finish });
}
