//! Waiting for one of two things.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::Poll;

/// Waits until one of two is done.
pub(in crate::step_runner) async fn either(
    one: impl Future<Output = ()>,
    other: impl Future<Output = ()>,
) {
    let (mut one, mut other) = (pin!(one), pin!(other));
    poll_fn(|context| {
        if one.as_mut().poll(context).is_ready() {
            return Poll::Ready(());
        }
        other.as_mut().poll(context)
    })
    .await;
}
