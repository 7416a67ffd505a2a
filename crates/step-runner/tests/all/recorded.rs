//! Recordings of GitLab's step-runner.

/// Returns recordings of version 0.11, in JSON, with the lines that later versions write to the log:
/// `Running step name=a` instead of `Running step "a"`.
pub(crate) fn with_current_lines(recordings: &str) -> String {
    let (begin, quote) = (r#"Running step \""#, r#"\""#);
    let mut parts = recordings.split(begin);
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |text, part| {
        let (name, rest) = part.split_once(quote).unwrap();
        let quote = if name.is_empty() { quote } else { "" };
        text + "Running step name=" + quote + name + quote + rest
    })
}
