//! Formatting and classification of errors by their chain of causes.

use std::error::Error;
use std::{io, iter};

/// Returns an error and its causes on one line, joined with `: `.
pub fn chain(error: &(dyn Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    text
}

/// Returns whether a full file system or an exceeded disk quota caused an error.
pub fn is_full(error: &(dyn Error + 'static)) -> bool {
    is_caused_by(error, &[io::ErrorKind::StorageFull, io::ErrorKind::QuotaExceeded])
}

/// Returns whether a timeout, such as that of a lock, caused an error.
pub fn has_timed_out(error: &(dyn Error + 'static)) -> bool {
    is_caused_by(error, &[io::ErrorKind::TimedOut])
}

/// Finds an error of type `T` among the causes of another.
pub fn cause<T: Error + 'static>(error: &io::Error) -> Option<&T> {
    let mut cause = error.get_ref().map(|inner| inner as &(dyn Error + 'static));
    while let Some(error) = cause {
        if let Some(found) = error.downcast_ref() {
            return Some(found);
        }
        // `io::Error::source` skips the inner error, which only `get_ref` returns.
        cause = match error.downcast_ref::<io::Error>().and_then(io::Error::get_ref) {
            Some(inner) => Some(inner),
            None => error.source(),
        };
    }
    None
}

fn is_caused_by(error: &(dyn Error + 'static), kinds: &[io::ErrorKind]) -> bool {
    let mut causes = iter::successors(Some(error), |&error| error.source());
    causes.any(|error| {
        error.downcast_ref::<io::Error>().is_some_and(|error| kinds.contains(&error.kind()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fs::PathError;

    #[test]
    fn full_disk_is_recognized_below_other_errors() {
        let error = |errno| PathError::new("write", "/x".as_ref(), errno);
        assert!(is_full(&error(rustix::io::Errno::NOSPC)));
        assert!(is_full(&io::Error::other(error(rustix::io::Errno::DQUOT))));
        assert!(!is_full(&error(rustix::io::Errno::FBIG)));
    }

    #[test]
    fn timeout_is_recognized_below_other_errors() {
        let error = PathError::new("lock", "/x".as_ref(), io::ErrorKind::TimedOut);
        assert!(has_timed_out(&io::Error::other(error)));
        assert!(!has_timed_out(&io::Error::from(io::ErrorKind::WouldBlock)));
    }

    #[test]
    fn causes_follow_their_effect() {
        let source = io::Error::other("no reason");
        let error = PathError { action: "read", path: "/x".into(), source };
        assert_eq!(chain(&error), "cannot read /x: no reason");
    }
}
