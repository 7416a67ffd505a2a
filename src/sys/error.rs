//! Errors and their causes, in one line.

use std::error::Error;

/// Joins an error and its causes with `: `.
pub fn chain(error: &(dyn Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::fs::PathError;

    #[test]
    fn causes_follow_what_they_caused() {
        let source = std::io::Error::other("no reason");
        let error = PathError { action: "read", path: "/x".into(), source };
        assert_eq!(chain(&error), "cannot read /x: no reason");
    }
}
