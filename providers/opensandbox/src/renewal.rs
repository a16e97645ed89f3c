//! Moving the expiry of a sandbox again and again, as long as its maker lives.

use std::{
    sync::{Arc, Mutex, PoisonError, Weak},
    time::Duration,
};

use sandbox_core::ErrorKind;

use crate::shared::Shared;

/// A task that moves the expiry. Dropping it ends it.
#[derive(Debug)]
pub(crate) struct Renewal {
    task: tokio::task::AbortHandle,
    failure: Arc<Mutex<Option<String>>>,
}

impl Renewal {
    pub(crate) fn start(shared: &Arc<Shared>, id: &str, ttl: Duration, interval: Duration) -> Arc<Self> {
        let failure = Arc::new(Mutex::new(None));
        let (weak, id, told) = (Arc::downgrade(shared), id.to_owned(), failure.clone());
        let task = tokio::spawn(async move {
            let why = renew(&weak, &id, ttl, interval).await;
            *told.lock().unwrap_or_else(PoisonError::into_inner) = why;
        });
        Arc::new(Self { task: task.abort_handle(), failure })
    }

    /// Why the expiry is not moved any more.
    pub(crate) fn failure(&self) -> Option<String> {
        self.failure.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Drop for Renewal {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Ends with the reason, or with none when there is nothing to move any more.
async fn renew(shared: &Weak<Shared>, id: &str, ttl: Duration, interval: Duration) -> Option<String> {
    loop {
        tokio::time::sleep(interval).await;
        let shared = shared.upgrade()?;
        match shared.renew_for(id, ttl).await {
            Ok(_) => tracing::debug!(sandbox_id = id, "the expiry was moved"),
            // It is gone: every other call says so.
            Err(error) if error.kind() == ErrorKind::NotFound => return None,
            Err(error) => {
                tracing::warn!(sandbox_id = id, kind = %error.kind(), "the expiry could not be moved");
                return Some(error.message().to_owned());
            }
        }
    }
}
