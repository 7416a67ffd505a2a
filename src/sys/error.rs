//! Errors and their causes, in one line.

use std::error::Error;
use std::io;

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

/// Returns whether an error comes of a file system, or a quota of one, with no room left.
pub fn is_full(error: &(dyn Error + 'static)) -> bool {
    let mut cause = Some(error);
    while let Some(error) = cause {
        if let Some(error) = error.downcast_ref::<io::Error>()
            && matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
        {
            return true;
        }
        cause = error.source();
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::fs::PathError;

    #[test]
    fn a_full_disk_is_seen_through_other_errors() {
        let error = |errno| PathError::new("write", "/x".as_ref(), errno);
        assert!(is_full(&error(rustix::io::Errno::NOSPC)));
        assert!(is_full(&io::Error::other(error(rustix::io::Errno::DQUOT))));
        assert!(!is_full(&error(rustix::io::Errno::FBIG)));
    }

    #[test]
    fn causes_follow_what_they_caused() {
        let source = io::Error::other("no reason");
        let error = PathError { action: "read", path: "/x".into(), source };
        assert_eq!(chain(&error), "cannot read /x: no reason");
    }
}
