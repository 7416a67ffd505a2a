//! Suggestions for misspelt names.

use strsim::osa_distance;

/// Maximum length in characters of a word to compare; no known name is close to a longer word.
const MAX_LENGTH: usize = 32;

/// Finds the name that a word is most likely a misspelling of; `None` if no name is close.
pub fn closest_name<'n>(word: &str, names: impl IntoIterator<Item = &'n str>) -> Option<&'n str> {
    if word.chars().count() > MAX_LENGTH {
        return None;
    }
    let word = word.to_lowercase();
    let candidates = names.into_iter().filter_map(|name| {
        let limit = (name.len() / 3).clamp(1, 2);
        let distance = osa_distance(&word, &name.to_lowercase());
        (distance <= limit).then_some((distance, name))
    });
    candidates.min().map(|(_, name)| name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn misspellings_are_recognized() {
        let names = ["path", "args", "env", "timeout"];
        for (word, meant) in [
            ("pth", Some("path")),
            ("agrs", Some("args")),
            ("Timout", Some("timeout")),
            ("evn", Some("env")),
            ("command", None),
            ("x", None),
            ("", None),
        ] {
            assert_eq!(closest_name(word, names), meant, "{word}");
        }
        assert_eq!(closest_name(&"path".repeat(100), names), None);
    }
}
