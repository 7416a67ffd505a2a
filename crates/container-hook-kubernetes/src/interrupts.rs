//! Signals of the runner that arrive while no step runs.

use std::future::Future;
use std::io;
use std::os::fd::BorrowedFd;

use oci_hooks_engine::container::StepSignals;
use tokio::io::Interest;
use tokio::net::UnixStream;

use super::error::SignalError;

/// Awaits `work`, or drops it and returns [`SignalError::Interrupted`] at the first signal.
pub async fn run_unless_interrupted<T, E: From<SignalError>>(
    signals: &mut dyn StepSignals,
    work: impl Future<Output = Result<T, E>>,
) -> Result<T, E> {
    let descriptor = duplicate(signals.descriptor()).map_err(SignalError::Signals)?;
    tokio::select! {
        result = work => result,
        signal = next(signals, &descriptor) => {
            Err(SignalError::Interrupted { signal: signal.map_err(SignalError::Signals)? }.into())
        }
    }
}

/// Duplicates the signal descriptor as a socket that is only polled, never read.
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
        // No signal had arrived: clears the readiness so that the next `readable` waits.
        let nothing = || io::Result::<()>::Err(io::ErrorKind::WouldBlock.into());
        let _ = descriptor.try_io(Interest::READABLE, nothing);
    }
}

/// Signals for a step, with a flag that is set at the first one: after a cancellation the runner waits only briefly.
pub struct CancelFlagged<'a> {
    signals: &'a mut dyn StepSignals,
    pub is_cancelled: bool,
}

impl<'a> CancelFlagged<'a> {
    pub(super) fn new(signals: &'a mut dyn StepSignals) -> Self {
        CancelFlagged { signals, is_cancelled: false }
    }
}

impl StepSignals for CancelFlagged<'_> {
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
    struct SocketSignals(UnixStream);

    impl StepSignals for SocketSignals {
        fn descriptor(&self) -> BorrowedFd<'_> {
            self.0.as_fd()
        }

        fn take(&mut self) -> Vec<i32> {
            let mut bytes = [0; 16];
            let count = io::Read::read(&mut self.0, &mut bytes).unwrap_or(0);
            bytes[..count].iter().map(|byte| i32::from(*byte)).collect()
        }
    }

    fn pair() -> (UnixStream, SocketSignals) {
        let (write, read) = UnixStream::pair().unwrap();
        read.set_nonblocking(true).unwrap();
        (write, SocketSignals(read))
    }

    fn run<F: Future>(future: F) -> F::Output {
        tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(future)
    }

    #[test]
    fn signal_interrupts_waiting_work() {
        let (mut write, mut signals) = pair();
        let result: Result<(), _> = run(async {
            write.write_all(&[15]).unwrap();
            run_unless_interrupted(&mut signals, std::future::pending()).await
        });
        assert!(matches!(result, Err(SignalError::Interrupted { signal: 15 })), "{result:?}");
    }

    #[test]
    fn earlier_signal_interrupts_too() {
        let (mut write, mut signals) = pair();
        write.write_all(&[2]).unwrap();
        let result: Result<(), _> =
            run(async { run_unless_interrupted(&mut signals, std::future::pending()).await });
        assert!(matches!(result, Err(SignalError::Interrupted { signal: 2 })), "{result:?}");
    }

    #[test]
    fn finished_work_returns_its_result() {
        let (_write, mut signals) = pair();
        let result: Result<_, SignalError> =
            run(async { run_unless_interrupted(&mut signals, async { Ok(3) }).await });
        assert_eq!(result.unwrap(), 3);
    }
}
