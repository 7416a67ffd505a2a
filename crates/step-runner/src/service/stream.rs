//! Streams of responses, and handling of panics.

use std::future::{Future, poll_fn};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::task::{Context, Poll};

use futures_util::stream::{Stream, StreamExt as _, try_unfold};
use tonic::body::Body;
use tonic::codegen::Service;
use tonic::codegen::http::{Request, Response};
use tonic::{Code, Status};

/// A stream of responses. It is dropped when the client disconnects, which stops their producer.
pub type MessageStream<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

/// Returns a stream of the results of repeated calls of `next`, until it returns `None` or an
/// error.
pub fn unfold<S, T, F, W>(state: S, next: F) -> MessageStream<T>
where
    S: Send + 'static,
    T: Send + 'static,
    F: Fn(S) -> W + Send + 'static,
    W: Future<Output = Result<Option<(T, S)>, Status>> + Send + 'static,
{
    let results = AssertUnwindSafe(try_unfold(state, next)).catch_unwind();
    Box::pin(results.map(|result| result.unwrap_or_else(|_| Err(Status::internal(PANICKED)))))
}

/// Error message for a client whose request caused a panic. The message of the panic itself, on
/// standard error, may be confidential.
pub const PANICKED: &str = "internal error: the server panicked";

/// A service that responds to a request with an error if its handler panics.
#[derive(Clone, Debug)]
pub struct CatchPanics<S>(pub S);

impl<S, B> Service<Request<B>> for CatchPanics<S>
where
    S: Service<Request<B>, Response = Response<Body>>,
    S::Future: Send + 'static,
    S::Error: 'static,
{
    type Response = Response<Body>;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Body>, S::Error>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.0.poll_ready(context)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let Ok(call) = catch_unwind(AssertUnwindSafe(|| self.0.call(request))) else {
            return Box::pin(async { Ok(answer()) });
        };
        let mut call = Box::pin(call);
        Box::pin(poll_fn(move |context| {
            catch_unwind(AssertUnwindSafe(|| call.as_mut().poll(context)))
                .unwrap_or_else(|_| Poll::Ready(Ok(answer())))
                .map_ok(with_code_of_bad_request)
        }))
    }
}

/// Start of the message of a request that is no valid protobuf message, such as one with invalid UTF-8.
const NOT_DECODED: &str = "failed to decode Protobuf message";

/// Replaces tonic's code for a request that cannot be decoded, `INTERNAL`, by `INVALID_ARGUMENT`.
fn with_code_of_bad_request(response: Response<Body>) -> Response<Body> {
    match Status::from_header_map(response.headers()) {
        Some(status)
            if status.code() == Code::Internal && status.message().starts_with(NOT_DECODED) =>
        {
            Status::invalid_argument(status.message()).into_http()
        }
        _ => response,
    }
}

fn answer() -> Response<Body> {
    Status::internal(PANICKED).into_http()
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use tower::{ServiceExt as _, service_fn};

    use super::*;

    fn collect(mut stream: MessageStream<u32>) -> Vec<Result<u32, Code>> {
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
    fn stream_ends_with_none_or_an_error() {
        let three = |count: u32| async move { Ok((count < 3).then_some((count, count + 1))) };
        assert_eq!(collect(unfold(0, three)), [Ok(0), Ok(1), Ok(2)]);
        let fails = |count: u32| async move {
            if count < 1 { Ok(Some((count, count + 1))) } else { Err(Status::internal("")) }
        };
        assert_eq!(collect(unfold(0, fails)), [Ok(0), Err(Code::Internal)]);
    }

    #[test]
    fn panic_ends_only_its_stream() {
        let panics = |count: u32| async move {
            assert!(count < 2, "for this test");
            Ok(Some((count, count + 1)))
        };
        assert_eq!(collect(unfold(0, panics)), [Ok(0), Ok(1), Err(Code::Internal)]);
    }

    fn code(
        answer: impl Future<Output = Result<Response<Body>, Infallible>> + Send + 'static,
    ) -> Option<String> {
        let mut answer = Some(answer);
        let service =
            CatchPanics(service_fn(move |_: Request<()>| answer.take().expect("called once")));
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let answer = runtime.block_on(service.oneshot(Request::new(()))).unwrap();
        answer.headers().get("grpc-status").map(|code| code.to_str().unwrap().to_owned())
    }

    #[test]
    fn a_panic_is_an_internal_error() {
        assert_eq!(code(async { panic!("for this test") }).as_deref(), Some("13"));
        let later = async {
            tokio::task::yield_now().await;
            panic!("for this test")
        };
        assert_eq!(code(later).as_deref(), Some("13"));
        assert_eq!(code(async { Ok(Response::new(Body::empty())) }), None);
    }
}
