//! Completion in bash, as after a press of the Tab key.

use std::path::Path;
use std::process::Command;

/// Sources the completion script of the program `$1`, and completes the other arguments as its command line.
const SCRIPT: &str = r#"
source <("$1" completions bash) || exit 1
function=$(complete -p "$1" | sed 's/.* -F \([^ ]*\).*/\1/')
COMP_WORDS=("$@") COMP_CWORD=$(($# - 1)) COMP_TYPE=9
"$function" "$1" "${@: -1}" "${@: -2:1}" 2>/dev/null
printf '%s\n' "${COMPREPLY[@]}"
"#;

/// Returns the completions that bash offers for the last word of a command line.
pub fn complete_words(
    program: &str,
    variable: Option<(&str, &Path)>,
    words: &[&str],
) -> Vec<String> {
    let program = Path::new(program);
    let directory = program.parent().unwrap().display();
    let mut bash = Command::new("bash");
    bash.args(["--norc", "-c", SCRIPT, "bash"]).arg(program.file_name().unwrap()).args(words);
    bash.env_clear().env("PATH", format!("{directory}:/usr/bin:/bin")).envs(variable);
    let output = bash.output().unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap().lines().map(str::to_owned).collect()
}
