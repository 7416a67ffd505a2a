//! Likely corrections of misspelt words.

/// Longest word that is compared; no name is close to a longer one.
const MAX_LENGTH: usize = 32;

/// Finds the name that a word is most likely a misspelling of.
pub(super) fn closest(word: &str, names: &[&'static str]) -> Option<&'static str> {
    let candidates = names.iter().filter_map(|name| {
        let limit = (name.len() / 3).clamp(1, 2);
        let distance = distance(&word.to_lowercase(), &name.to_lowercase())?;
        (distance <= limit).then_some((distance, *name))
    });
    candidates.min().map(|(_, name)| name)
}

/// Counts the letters to insert, delete, replace or swap with a neighbour to get from one word to the
/// other; none for long words.
fn distance(a: &str, b: &str) -> Option<usize> {
    let (a, b): (Vec<_>, Vec<_>) = (a.chars().collect(), b.chars().collect());
    if a.len() > MAX_LENGTH || b.len() > MAX_LENGTH {
        return None;
    }
    // Three rows of the usual table: the one before the last is for swaps.
    let mut before = Vec::new();
    let mut last: Vec<usize> = (0..=b.len()).collect();
    for i in 1..=a.len() {
        let mut row = vec![i];
        for j in 1..=b.len() {
            let replaced = last[j - 1] + usize::from(a[i - 1] != b[j - 1]);
            let mut best = replaced.min(last[j] + 1).min(row[j - 1] + 1);
            if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                best = best.min(before_at(&before, j - 2) + 1);
            }
            row.push(best);
        }
        before = last;
        last = row;
    }
    last.last().copied()
}

fn before_at(row: &[usize], at: usize) -> usize {
    row.get(at).copied().unwrap_or(usize::MAX / 2)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn misspellings_are_recognised() {
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
            assert_eq!(closest(word, &names), meant, "{word}");
        }
        assert_eq!(closest(&"path".repeat(100), &names), None);
    }

    #[test]
    fn distance_counts_swaps_once() {
        assert_eq!(distance("prestart", "perstart"), Some(1));
        assert_eq!(distance("stage", "stages"), Some(1));
        assert_eq!(distance("", "abc"), Some(3));
    }
}
