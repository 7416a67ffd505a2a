//! The shell scripts of jobs: their lines, with each shown before it runs.
//!
//! One shell runs all lines, so that variables, functions and directories stay. What users see is what
//! GitLab's runner shows them. The scripts run in bash, dash and busybox alike.

use super::quote::quote;

/// How lines are shown and checked.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Tracing {
    /// Whether the shell prints each command that it executes.
    pub(super) xtrace: bool,
    /// Whether the exit code of each line is checked, besides `errexit`.
    pub(super) check: bool,
    /// Whether lines with several lines of text are sections that can be unfolded.
    pub(super) sections: bool,
}

/// Options of a section that is folded at first.
const FOLDED: &str = "[hide_duration=true,collapsed=true]";

/// Options that scripts begin with. Neither dash nor an old busybox knows `pipefail`.
const OPTIONS: &str = "\
(set -o pipefail) 2>/dev/null && set -o pipefail
set +o noclobber
set -o errexit
";

/// Ends the script if its last line failed.
const CHECK: &str =
    "_step_exit_code=$?; [ \"$_step_exit_code\" -eq 0 ] || exit \"$_step_exit_code\"\n";

/// Returns the script of `script_legacy`.
pub(super) fn legacy(shell: &str, lines: &[String], tracing: Tracing) -> String {
    // A shell that ends by a signal would print the command that it was at.
    let mut script = format!("#!{shell}\n\ntrap exit HUP TERM\n{OPTIONS}{}\n", xtrace(tracing));
    for (index, line) in lines.iter().enumerate() {
        let line = line.trim();
        match line.split_once('\n') {
            _ if line.is_empty() => {
                script.push_str("echo\n");
                continue;
            }
            Some(_) if tracing.sections => {
                let name = format!("section_script_step_{index}");
                let shown = quote(&format!("\x1b[32;1m$ {line}\x1b[0;m"));
                script.push_str(&format!(
                    "printf 'section_start:%s:%s{FOLDED}\\r\\033[0K%s\\n' \"$(date +%s)\" {name} {shown}\n"
                ));
                script.push_str(&with_check(line, tracing));
                script.push_str(&format!(
                    "printf 'section_end:%s:%s\\r\\033[0K\\n' \"$(date +%s)\" {name}\n"
                ));
                continue;
            }
            several => script.push_str(&show("\x1b[1;32m", line, several)),
        }
        script.push_str(&with_check(line, tracing));
    }
    script
}

/// Returns the script of a step of `concrete`.
///
/// The lines run in a subshell: `kill -USR1 $$` reaches the outer shell. With `pipe`, they are at the end
/// of a pipe, as in older runners.
pub(super) fn step(
    shell: &str,
    name: &str,
    lines: &[String],
    tracing: Tracing,
    pipe: bool,
) -> String {
    let mut body = xtrace(tracing).to_owned();
    for (index, line) in lines.iter().enumerate() {
        let line = line.trim();
        match line.split_once('\n') {
            _ if line.is_empty() => {
                body.push('\n');
                continue;
            }
            Some(_) if tracing.sections => {
                let name = quote(&format!("{name}_{index}"));
                let shown = quote(&format!("\x1b[32;1m$ {line}\x1b[0m"));
                body.push_str(&format!(
                    "printf 'section_start:%s:%s{FOLDED}\\r\\033[0K%s\\n' \"$(date +%s)\" {name} {shown}\n\
                     printf 'section_end:%s:%s\\r\\033[0K' \"$(date +%s)\" {name}\n"
                ));
            }
            several => body.push_str(&show("\x1b[32;1m", line, several)),
        }
        body.push_str(&with_check(line, tracing));
    }
    let body = quote(&body);
    let run = match pipe {
        true => format!(": | eval {body}"),
        // The trap of the outer shell does not hold in a subshell.
        false => format!("(trap 'exit 1' TERM; eval {body}) </dev/null"),
    };
    format!("#!{shell}\n\ntrap 'exit 1' TERM\n{OPTIONS}{run}\nexit 0\n")
}

fn xtrace(tracing: Tracing) -> &'static str {
    if tracing.xtrace { "set -o xtrace\n" } else { "" }
}

fn with_check(line: &str, tracing: Tracing) -> String {
    format!("{line}\n{}", if tracing.check { CHECK } else { "" })
}

/// Returns the command that shows a line, of several lines the first one.
fn show(color: &str, line: &str, several: Option<(&str, &str)>) -> String {
    let line = several
        .map_or(line.to_owned(), |(first, _)| format!("{first} # collapsed multi-line command"));
    format!("printf '%s\\n' {}\n", quote(&format!("{color}$ {line}\x1b[0m")))
}
