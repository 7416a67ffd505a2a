//! Response streams.

use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio_stream::Stream;
use tonic::Status;

use super::panics::PANICKED;

/// A stream of responses. It is dropped when the client disconnects, which stops their producer.
pub(super) type Responses<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

type Step<S, T> = Pin<Box<dyn Future<Output = (S, Result<Option<T>, Status>)> + Send>>;

struct Unfold<S, T, F> {
    next: F,
    step: Option<Step<S, T>>,
}

/// Returns a stream of the results of a function, until it returns `None` or an error.
pub(super) fn unfold<S, T, F, W>(state: S, next: F) -> Responses<T>
where
    S: Send + 'static,
    T: Send + 'static,
    F: Fn(S) -> W + Send + Unpin + 'static,
    W: Future<Output = (S, Result<Option<T>, Status>)> + Send + 'static,
{
    let step: Step<S, T> = Box::pin(next(state));
    Box::pin(Unfold { next, step: Some(step) })
}

impl<S, T, F, W> Stream for Unfold<S, T, F>
where
    F: Fn(S) -> W + Unpin,
    W: Future<Output = (S, Result<Option<T>, Status>)> + Send + 'static,
{
    type Item = Result<T, Status>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let Some(step) = &mut self.step else { return Poll::Ready(None) };
        let polled = catch_unwind(AssertUnwindSafe(|| step.as_mut().poll(context)));
        let Ok(polled) = polled else {
            self.step = None;
            return Poll::Ready(Some(Err(Status::internal(PANICKED))));
        };
        let (state, item) = ready!(polled);
        self.step = match &item {
            Ok(Some(_)) => Some(Box::pin((self.next)(state))),
            _ => None,
        };
        Poll::Ready(item.transpose())
    }
}

#[cfg(test)]
mod tests {
    use tokio_stream::StreamExt as _;

    use super::*;

    fn collect(mut stream: Responses<u32>) -> Vec<Result<u32, tonic::Code>> {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(async {
            let mut all = Vec::new();
            while let Some(item) = stream.next().await {
                all.push(item.map_err(|status| status.code()));
            }
            all
        })
    }

    #[test]
    fn a_stream_ends_with_nothing_or_an_error() {
        let three = |count: u32| async move { (count + 1, Ok((count < 3).then_some(count))) };
        assert_eq!(collect(unfold(0, three)), [Ok(0), Ok(1), Ok(2)]);
        let fails = |count: u32| async move {
            (count + 1, if count < 1 { Ok(Some(count)) } else { Err(Status::internal("")) })
        };
        assert_eq!(collect(unfold(0, fails)), [Ok(0), Err(tonic::Code::Internal)]);
    }

    #[test]
    fn a_panic_ends_its_stream_alone() {
        let panics = |count: u32| async move {
            assert!(count < 2, "for this test");
            (count + 1, Ok(Some(count)))
        };
        assert_eq!(collect(unfold(0, panics)), [Ok(0), Ok(1), Err(tonic::Code::Internal)]);
    }
}
