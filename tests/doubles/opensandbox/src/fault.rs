//! Failures on demand.

use std::{
    sync::{Mutex, PoisonError},
    time::Duration,
};

use bytes::Bytes;

use crate::http::{self, Answer, Dropped};

/// What goes wrong with one call.
#[derive(Clone, Debug)]
pub enum Fault {
    /// The connection ends without an answer, and nothing was done.
    Drop,
    /// The work is done, and the connection ends without an answer.
    DropAfter,
    /// This answer, and nothing is done.
    Answer {
        /// Status.
        status: u16,
        /// Further headers.
        headers: Vec<(String, String)>,
        /// Body.
        body: String,
    },
    /// Waits so long first, and then does the work.
    Delay(Duration),
    /// The body of the answer ends after so many bytes: with a broken connection if true, else as if it were whole.
    Cut(usize, bool),
    /// Nothing of the body comes after so many bytes, and no end either. Of the server only, not of a daemon.
    Stall(usize),
}

impl Fault {
    /// An answer with a JSON error of a server.
    pub fn error(status: u16, code: &str) -> Self {
        let body = serde_json::json!({ "code": code, "message": format!("{code} on purpose") }).to_string();
        let headers = vec![("content-type".to_owned(), "application/json".to_owned())];
        Self::Answer { status, headers, body }
    }

    /// An answer of something in between that knows no JSON.
    pub fn html(status: u16) -> Self {
        let headers = vec![("content-type".to_owned(), "text/html".to_owned())];
        Self::Answer { status, headers, body: format!("<html><body><h1>{status} from a proxy</h1></body></html>") }
    }

    /// With one more header.
    #[must_use]
    pub fn with_header(mut self, name: &str, value: &str) -> Self {
        if let Self::Answer { headers, .. } = &mut self {
            headers.push((name.to_owned(), value.to_owned()));
        }
        self
    }

    pub(crate) fn answer(&self) -> Option<Answer> {
        match self {
            Self::Drop => Some(Err(Dropped)),
            Self::Answer { status, headers, body } => {
                let mut response = http::full(*status, None, Bytes::from(body.clone()));
                for (name, value) in headers {
                    let name = hyper::header::HeaderName::from_bytes(name.as_bytes()).expect("a header of the test");
                    response.headers_mut().append(name, value.parse().expect("a header of the test"));
                }
                Some(Ok(response))
            }
            Self::DropAfter | Self::Delay(_) | Self::Cut(..) | Self::Stall(_) => None,
        }
    }
}

struct Planned {
    method: String,
    path: String,
    fault: Fault,
    left: usize,
}

/// The faults that are to come, in order.
#[derive(Default)]
pub struct Faults(Mutex<Vec<Planned>>);

impl std::fmt::Debug for Faults {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Faults")
    }
}

impl Faults {
    /// The next `times` calls with this method whose path holds this text go wrong.
    pub fn plan(&self, method: &str, path: &str, fault: Fault, times: usize) {
        let planned = Planned { method: method.to_owned(), path: path.to_owned(), fault, left: times };
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(planned);
    }

    /// Forgets what is still to come.
    pub fn clear(&self) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }

    pub(crate) fn take(&self, method: &str, path: &str) -> Option<Fault> {
        let mut planned = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let next = planned.iter_mut().find(|one| one.left > 0 && one.method == method && path.contains(&one.path))?;
        next.left -= 1;
        Some(next.fault.clone())
    }
}
