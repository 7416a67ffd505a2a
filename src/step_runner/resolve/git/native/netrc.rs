//! `.netrc`: names and passwords of the user, by host.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use crate::sys::fs::read_bounded;

/// More than anybody's file has.
const MAX_BYTES: u64 = 1 << 20;

/// Returns name and password for a host; none if there is no readable file or nothing for the host in it.
pub(super) fn login(env: &BTreeMap<String, String>, host: &str) -> Option<(String, String)> {
    let set = |name: &str| env.get(name).filter(|value| !value.is_empty());
    let path = match set("NETRC") {
        Some(path) => PathBuf::from(path),
        None => Path::new(set("HOME")?).join(".netrc"),
    };
    // As curl does: whoever cannot read it has none.
    let text = String::from_utf8(read_bounded(&path, MAX_BYTES).ok()?).ok()?;
    find(&text, host)
}

fn find(text: &str, host: &str) -> Option<(String, String)> {
    let mut words = words(text).into_iter();
    let (mut is_meant, mut login, mut password) = (false, None, None);
    while let Some(word) = words.next() {
        match word.as_str() {
            "machine" | "default" if is_meant => break,
            "machine" => {
                is_meant = bare(&words.next()?).eq_ignore_ascii_case(bare(host));
            }
            "default" => is_meant = true,
            "login" if is_meant => login = words.next(),
            "password" if is_meant => password = words.next(),
            "login" | "password" | "account" => drop(words.next()),
            _ => {}
        }
    }
    Some((login.filter(|_| is_meant).unwrap_or_default(), password?))
}

/// Returns a host without the brackets of an IPv6 address.
fn bare(host: &str) -> &str {
    host.trim_matches(['[', ']'])
}

/// Splits the text into words, which may be quoted, without comments and macros.
fn words(text: &str) -> Vec<String> {
    let mut words = Vec::new();
    let mut in_macro = false;
    for line in text.lines() {
        let line = line.trim();
        if in_macro {
            in_macro = !line.is_empty();
            continue;
        }
        if line.starts_with('#') {
            continue;
        }
        let mut chars = line.chars().peekable();
        while let Some(&c) = chars.peek() {
            if c.is_whitespace() {
                chars.next();
                continue;
            }
            let word = if c == '"' {
                chars.next();
                quoted(&mut chars)
            } else {
                let mut word = String::new();
                while let Some(c) = chars.next_if(|c| !c.is_whitespace()) {
                    word.push(c);
                }
                word
            };
            if word == "macdef" {
                in_macro = true;
                break;
            }
            words.push(word);
        }
    }
    words
}

fn quoted(chars: &mut impl Iterator<Item = char>) -> String {
    let mut word = String::new();
    while let Some(c) = chars.next() {
        match c {
            '"' => break,
            '\\' => word.extend(chars.next().map(|c| match c {
                'n' => '\n',
                'r' => '\r',
                't' => '\t',
                c => c,
            })),
            c => word.push(c),
        }
    }
    word
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_login_of_a_host_is_found() {
        let text = "# machine host login no password no\n\
                    machine other login o password secret\n\
                    macdef init\nmachine host login m password m\n\n\
                    machine Host\n  login \"a b\"\n  account x\n  password \"p\\\"w\\\\\"\n\
                    machine ::1 login six password p6\n\
                    machine host login later password later\n\
                    machine named password alone\n\
                    default login d password dp";
        let find = |host| find(text, host);
        let pair = |login: &str, password: &str| Some((login.to_owned(), password.to_owned()));
        assert_eq!(find("host"), pair("a b", "p\"w\\"));
        assert_eq!(find("other"), pair("o", "secret"));
        assert_eq!(find("[::1]"), pair("six", "p6"));
        assert_eq!(find("named"), pair("", "alone"));
        assert_eq!(find("unknown"), pair("d", "dp"));
        assert_eq!(super::find("machine a login b", "a"), None);
        assert_eq!(super::find("machine a login b password c", "x"), None);
        assert_eq!(super::find("machine", "x"), None);
        assert_eq!(super::find("\"machine a password", "a"), None);
    }
}
