//! Waiting for a condition that the kernel reports by no event.

use std::thread;
use std::time::{Duration, Instant};

/// The pause after the first attempt; each further one is twice as long, up to [`LONGEST_PAUSE`].
const FIRST_PAUSE: Duration = Duration::from_micros(200);

const LONGEST_PAUSE: Duration = Duration::from_millis(5);

/// Repeats an attempt until it returns a value or the timeout has passed.
///
/// The last attempt begins after the timeout: if this process is stopped (`SIGSTOP`) for longer than that, a condition
/// that became true meanwhile is still seen.
pub fn retry_for<T>(timeout: Duration, mut attempt: impl FnMut() -> Option<T>) -> Option<T> {
    let end = Instant::now() + timeout;
    let mut pause = FIRST_PAUSE;
    loop {
        let is_last = Instant::now() >= end;
        let result = attempt();
        if result.is_some() || is_last {
            return result;
        }
        thread::sleep(pause);
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attempt_that_outlasts_the_timeout_is_repeated() {
        let mut attempts = 0;
        let result = retry_for(Duration::from_millis(1), || {
            attempts += 1;
            thread::sleep(Duration::from_millis(2));
            (attempts == 2).then_some(attempts)
        });
        assert_eq!(result, Some(2));
        assert_eq!(retry_for(Duration::ZERO, || None::<()>), None);
    }
}
