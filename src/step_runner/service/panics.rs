//! Panics of handlers, which are bugs: the call fails with `INTERNAL`, and nothing else is disturbed.
//!
//! Without this a panic would end the connection, and with it the other calls of the client.

use std::future::{Future, poll_fn};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::task::{Context, Poll};

use tonic::Status;
use tonic::body::Body;
use tonic::codegen::Service;
use tonic::codegen::http::{Request, Response};

/// What the client is told. What the panic said, on standard error, may be confidential.
pub(super) const PANICKED: &str = "internal error: the server panicked";

/// A service whose panics are answered.
#[derive(Clone, Debug)]
pub(super) struct CatchPanics<S>(pub(super) S);

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
        }))
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
