//! Errors and their causes, in one line.

use std::error::Error;
use std::{io, iter};

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
    comes_of(error, &[io::ErrorKind::StorageFull, io::ErrorKind::QuotaExceeded])
}

/// Returns whether an error comes of waiting too long, as for a lock.
pub fn has_timed_out(error: &(dyn Error + 'static)) -> bool {
    comes_of(error, &[io::ErrorKind::TimedOut])
}

fn comes_of(error: &(dyn Error + 'static), kinds: &[io::ErrorKind]) -> bool {
    let mut causes = iter::successors(Some(error), |&error| error.source());
    causes.any(|error| {
        error.downcast_ref::<io::Error>().is_some_and(|error| kinds.contains(&error.kind()))
    })
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
    fn a_wait_that_took_too_long_is_seen_through_other_errors() {
        let error = PathError::new("lock", "/x".as_ref(), io::ErrorKind::TimedOut);
        assert!(has_timed_out(&io::Error::other(error)));
        assert!(!has_timed_out(&io::Error::from(io::ErrorKind::WouldBlock)));
    }

    #[test]
    fn causes_follow_what_they_caused() {
        let source = io::Error::other("no reason");
        let error = PathError { action: "read", path: "/x".into(), source };
        assert_eq!(chain(&error), "cannot read /x: no reason");
    }
}
