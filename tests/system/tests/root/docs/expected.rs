//! Comparison of a page's printed output with that of the command.

/// Placeholder for any text in a line, or alone on a line for any number of lines.
const ANY: &str = "…";

/// Returns whether an output matches the page. Trailing spaces and trailing empty lines are ignored.
pub(crate) fn is_as_printed(printed: &[impl AsRef<str>], actual: &str) -> bool {
    let printed: Vec<_> = printed.iter().map(|line| line.as_ref().trim_end()).collect();
    let actual: Vec<_> = actual.trim_end().lines().map(str::trim_end).collect();
    let end = printed.iter().rposition(|line| !line.is_empty()).map_or(0, |last| last + 1);
    lines_match(&printed[..end], &actual)
}

fn lines_match(printed: &[&str], actual: &[&str]) -> bool {
    match printed.split_first() {
        None => actual.is_empty(),
        Some((line, rest)) if line.trim() == ANY => {
            (0..=actual.len()).any(|skipped| lines_match(rest, &actual[skipped..]))
        }
        Some((line, rest)) => actual
            .split_first()
            .is_some_and(|(first, others)| line_matches(line, first) && lines_match(rest, others)),
    }
}

fn line_matches(printed: &str, actual: &str) -> bool {
    match printed.split_once(ANY) {
        None => printed == actual,
        Some((before, after)) => actual.strip_prefix(before).is_some_and(|rest| {
            rest.char_indices()
                .map(|(at, _)| at)
                .chain([rest.len()])
                .any(|at| line_matches(after, &rest[at..]))
        }),
    }
}

#[test]
fn different_output_is_reported() {
    for (printed, actual) in [
        ("a", ""),
        ("a", "b"),
        ("a", "a\nb"),
        ("a\nb", "a"),
        ("a … d", "a b c"),
        ("a\n…\nd", "a\nb\nc"),
        ("  a", "a"),
    ] {
        let printed: Vec<_> = printed.split('\n').collect();
        assert!(!is_as_printed(&printed, actual), "{printed:?} {actual:?}");
    }
}
