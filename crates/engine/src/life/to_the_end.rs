//! A change that is carried out to the end, whoever waits for it.

use std::pin::Pin;
use std::task::{Context, Poll};

use futures_util::future::BoxFuture;
use tokio::runtime::Handle;

/// A change that goes on in the background when whoever waits for it goes away. As long as somebody waits it is no task of its
/// own: handing it to another thread takes as long as many a change.
pub(super) struct ToTheEnd<T: Send + 'static>(Option<BoxFuture<'static, T>>);

impl<T: Send + 'static> ToTheEnd<T> {
    /// Of a change that has not begun.
    pub(super) fn new(change: impl Future<Output = T> + Send + 'static) -> Self {
        Self(Some(Box::pin(change)))
    }
}

impl<T: Send + 'static> Future for ToTheEnd<T> {
    type Output = T;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<T> {
        let Some(change) = &mut self.0 else { return Poll::Pending };
        let polled = change.as_mut().poll(context);
        if polled.is_ready() {
            self.0 = None;
        }
        polled
    }
}

impl<T: Send + 'static> Drop for ToTheEnd<T> {
    fn drop(&mut self) {
        // One that has panicked cannot go on.
        let rest = self.0.take().filter(|_| !std::thread::panicking());
        if let (Some(rest), Ok(runtime)) = (rest, Handle::try_current()) {
            runtime.spawn(rest);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
    use std::time::Duration;

    use tokio::sync::Notify;

    use super::*;

    #[tokio::test]
    async fn what_nobody_waits_for_any_more_goes_on() {
        let (go_on, done, count) = (Arc::new(Notify::new()), Arc::new(Notify::new()), Arc::new(AtomicU32::new(0)));
        let change = {
            let (go_on, done, count) = (go_on.clone(), done.clone(), count.clone());
            async move {
                count.fetch_add(1, Relaxed);
                go_on.notified().await;
                count.fetch_add(1, Relaxed);
                done.notify_one();
            }
        };
        // Whoever waits for it gives up in the middle.
        assert!(tokio::time::timeout(Duration::from_millis(1), ToTheEnd::new(change)).await.is_err());
        assert_eq!(count.load(Relaxed), 1);
        go_on.notify_one();
        done.notified().await;
        assert_eq!(count.load(Relaxed), 2);
        assert_eq!(ToTheEnd::new(async { 5 }).await, 5, "and what somebody waits for has its answer");
    }
}
