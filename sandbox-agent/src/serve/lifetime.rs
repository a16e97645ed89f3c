//! When the sandbox ends: at its expiry, without clients, or because somebody says so.

use std::{
    sync::{Mutex, PoisonError},
    time::{Duration, SystemTime},
};

use tokio::{
    sync::watch,
    time::{Instant, sleep_until},
};

/// An expiry that is noticed so late came while everything was frozen, …
const OVERSLEPT: Duration = Duration::from_millis(50);
/// … and whoever thawed it may have moved it: that word is waited for so long.
const LAST_CALL: Duration = Duration::from_secs(2);

/// When everything ends, and whether it is ending.
#[derive(Debug)]
pub(super) struct Lifetime {
    expiry: watch::Sender<Option<Instant>>,
    expires_at: Mutex<Option<SystemTime>>,
    closing: watch::Sender<bool>,
}

impl Lifetime {
    pub(super) fn new(ttl: Option<Duration>) -> Self {
        let lifetime =
            Self { expiry: watch::Sender::new(None), expires_at: Mutex::new(None), closing: watch::Sender::new(false) };
        if let Some(ttl) = ttl {
            lifetime.renew(ttl);
        }
        lifetime
    }

    /// Moves the expiry to so long from now, and returns it.
    pub(super) fn renew(&self, ttl: Duration) -> SystemTime {
        let at = SystemTime::now() + ttl;
        *self.expires_at.lock().unwrap_or_else(PoisonError::into_inner) = Some(at);
        self.expiry.send_replace(Some(Instant::now() + ttl));
        at
    }

    pub(super) fn expires_at(&self) -> Option<SystemTime> {
        *self.expires_at.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn is_closing(&self) -> bool {
        *self.closing.borrow()
    }

    /// Ends everything.
    pub(super) fn close(&self) {
        self.closing.send_replace(true);
    }

    /// Waits for [`Lifetime::close`] or the expiry, which closes too.
    pub(super) async fn over(&self) {
        let (mut expiry, mut closing) = (self.expiry.subscribe(), self.closing.subscribe());
        loop {
            let at = *expiry.borrow_and_update();
            let expired = async {
                match at {
                    Some(at) => sleep_until(at).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                _ = closing.wait_for(|closing| *closing) => return,
                _ = expiry.changed() => {}
                () = expired => {
                    let is_late = at.is_some_and(|at| at.elapsed() > OVERSLEPT);
                    if is_late && tokio::time::timeout(LAST_CALL, expiry.changed()).await.is_ok() {
                        continue;
                    }
                    tracing::info!("the sandbox has expired");
                    return self.close();
                }
            }
        }
    }
}
