//! Signals of the runner while no step is there to get them.

use std::future::Future;
use std::io;
use std::os::fd::BorrowedFd;

use tokio::io::Interest;
use tokio::net::UnixStream;

use super::error::KubernetesError;
use crate::container::StepSignals;

/// Does work, unless a signal comes before it is done: then it is dropped, and the signal is the error.
pub async fn unless_interrupted<T, E: From<KubernetesError>>(
    signals: &mut dyn StepSignals,
    work: impl Future<Output = Result<T, E>>,
) -> Result<T, E> {
    let descriptor = duplicate(signals.descriptor()).map_err(KubernetesError::Signals)?;
    tokio::select! {
        result = work => result,
        signal = next(signals, &descriptor) => {
            Err(KubernetesError::Interrupted { signal: signal.map_err(KubernetesError::Signals)? }.into())
        }
    }
}

/// Returns the descriptor as one of a socket, which it is; whatever it is, nothing is read here.
fn duplicate(descriptor: BorrowedFd<'_>) -> io::Result<UnixStream> {
    let socket = std::os::unix::net::UnixStream::from(descriptor.try_clone_to_owned()?);
    socket.set_nonblocking(true)?;
    UnixStream::from_std(socket)
}

async fn next(signals: &mut dyn StepSignals, descriptor: &UnixStream) -> io::Result<i32> {
    loop {
        if let Some(signal) = signals.take().first() {
            return Ok(*signal);
        }
        descriptor.readable().await?;
        if let Some(signal) = signals.take().first() {
            return Ok(*signal);
        }
        // Nothing was there, so that the next `readable` has to wait.
        let nothing = || io::Result::<()>::Err(io::ErrorKind::WouldBlock.into());
        let _ = descriptor.try_io(Interest::READABLE, nothing);
    }
}

/// Signals that a step gets, of which one is remembered: whoever cancelled it waits for little more.
pub struct Remembered<'a> {
    signals: &'a mut dyn StepSignals,
    pub is_cancelled: bool,
}

impl<'a> Remembered<'a> {
    pub(super) fn new(signals: &'a mut dyn StepSignals) -> Self {
        Remembered { signals, is_cancelled: false }
    }
}

impl StepSignals for Remembered<'_> {
    fn descriptor(&self) -> BorrowedFd<'_> {
        self.signals.descriptor()
    }

    fn take(&mut self) -> Vec<i32> {
        let taken = self.signals.take();
        self.is_cancelled |= !taken.is_empty();
        taken
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;
    use std::os::fd::AsFd as _;
    use std::os::unix::net::UnixStream;

    use super::*;

    /// Signals that are bytes of a socket.
    struct Sent(UnixStream);

    impl StepSignals for Sent {
        fn descriptor(&self) -> BorrowedFd<'_> {
            self.0.as_fd()
        }

        fn take(&mut self) -> Vec<i32> {
            let mut bytes = [0; 16];
            let count = io::Read::read(&mut self.0, &mut bytes).unwrap_or(0);
            bytes[..count].iter().map(|byte| i32::from(*byte)).collect()
        }
    }

    fn pair() -> (UnixStream, Sent) {
        let (write, read) = UnixStream::pair().unwrap();
        read.set_nonblocking(true).unwrap();
        (write, Sent(read))
    }

    fn run<F: Future>(future: F) -> F::Output {
        tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(future)
    }

    #[test]
    fn a_signal_ends_what_waits() {
        let (mut write, mut signals) = pair();
        let result: Result<(), _> = run(async {
            write.write_all(&[15]).unwrap();
            unless_interrupted(&mut signals, std::future::pending()).await
        });
        assert!(matches!(result, Err(KubernetesError::Interrupted { signal: 15 })), "{result:?}");
    }

    #[test]
    fn a_signal_from_before_counts_too() {
        let (mut write, mut signals) = pair();
        write.write_all(&[2]).unwrap();
        let result: Result<(), _> =
            run(async { unless_interrupted(&mut signals, std::future::pending()).await });
        assert!(matches!(result, Err(KubernetesError::Interrupted { signal: 2 })), "{result:?}");
    }

    #[test]
    fn work_that_is_done_has_its_result() {
        let (_write, mut signals) = pair();
        let result: Result<_, KubernetesError> =
            run(async { unless_interrupted(&mut signals, async { Ok(3) }).await });
        assert_eq!(result.unwrap(), 3);
    }
}
