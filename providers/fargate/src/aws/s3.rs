//! Objects of S3, each call allowed by a query of its own: so others can be let do one of them.

use std::time::{Duration, SystemTime};

use reqwest::{Method, Url};
use sandbox_agent_client::{feed, open_source};
use sandbox_core::{Result, SandboxError, bytes::Bytes};
use sandbox_protocol::{Body, BodySender};
use tokio::time::Instant;

use super::{Aws, CallError, Called, Class, backoff, body, failure::Failure, innermost, region, sign::Unsigned};

/// The most that is sent as one object, as S3 has it.
pub(crate) const OBJECT_MAX_BYTES: u64 = 5 << 30;
/// How long a query holds, beyond the time that the transfer may take: clocks differ.
const MORE_VALID: Duration = Duration::from_secs(300);
/// How long removing an object may take.
const REMOVE_LIMIT: Duration = Duration::from_secs(30);
/// How often an object is sent anew.
const TRIES: u32 = 3;
const REFUSAL_MAX_BYTES: usize = 64 * 1024;

/// A bucket, seen from here.
#[derive(Clone, Debug)]
pub(crate) struct Bucket {
    /// The base URL of its objects, without a slash at its end.
    base: Url,
}

/// One object of a bucket.
#[derive(Clone, Debug)]
pub(crate) struct Object {
    url: Url,
}

impl Bucket {
    /// Host and port of where its objects are.
    pub(crate) fn address(&self) -> String {
        format!("{}:{}", self.base.host_str().unwrap_or_default(), self.base.port_or_known_default().unwrap_or(443))
    }

    pub(crate) fn host(&self) -> &str {
        self.base.host_str().unwrap_or_default()
    }

    /// Whether it is reached by TLS.
    pub(crate) fn is_https(&self) -> bool {
        self.base.scheme() == "https"
    }

    /// An object whose key is of letters, digits and `/ . _ -`.
    pub(crate) fn object(&self, key: &str) -> Object {
        let mut url = self.base.clone();
        url.set_path(&format!("{}/{key}", self.base.path().trim_end_matches('/')));
        Object { url }
    }
}

/// What one is let do with an object: as an HTTP request says it.
pub(crate) struct Allowed {
    url: Url,
}

impl Allowed {
    /// The value of the header `Host`.
    pub(crate) fn host(&self) -> String {
        let host = self.url.host_str().unwrap_or_default();
        self.url.port().map_or_else(|| host.to_owned(), |port| format!("{host}:{port}"))
    }

    /// All of it.
    pub(crate) fn url(&self) -> String {
        self.url.as_str().to_owned()
    }

    /// Path and query.
    pub(crate) fn target(&self) -> String {
        format!("{}?{}", self.url.path(), self.url.query().unwrap_or_default())
    }
}

/// How long a transfer of so many bytes may take.
pub(crate) fn transfer_limit(bytes: u64) -> Duration {
    const LEAST: Duration = Duration::from_secs(60);
    const BYTES_PER_SECOND: u64 = 256 * 1024;
    LEAST + Duration::from_secs(bytes / BYTES_PER_SECOND)
}

impl Aws {
    /// A bucket of this region.
    ///
    /// # Errors
    /// `InvalidInput` for a name that is none.
    pub(crate) fn bucket(&self, name: &str) -> Result<Bucket> {
        let base = region::bucket(name, &self.region, &self.config, &self.environment);
        let wrong = || SandboxError::invalid_input("s3_bucket", "is not the name of a bucket");
        Ok(Bucket { base: Url::parse(&base).map_err(|_| wrong())? })
    }

    /// Lets whoever gets this do one thing with an object, for as long as a transfer may take.
    ///
    /// # Errors
    /// What the credentials failed with.
    pub(crate) async fn allow(&self, method: &Method, object: &Object, bytes: u64) -> Result<Allowed> {
        let credentials = self.chain.get().await?;
        let (method, url) = (method.as_str(), object.url.as_str());
        let request = Unsigned { service: "s3", region: &self.region, method, url, headers: &[], body: b"" };
        let valid = transfer_limit(bytes) + MORE_VALID;
        let query = request.presign(&credentials, SystemTime::now(), valid)?;
        let mut url = object.url.clone();
        url.set_query(Some(&query));
        Ok(Allowed { url })
    }

    /// Sends a file of this machine as an object.
    ///
    /// # Errors
    /// What reading it failed with; what S3 refuses with.
    pub(crate) async fn put_file(&self, object: &Object, local: &std::path::Path) -> Result<u64> {
        for attempt in 0.. {
            let source = open_source(local).await?;
            let size = source.size;
            let (sender, file) = Body::channel();
            let (sent, ()) = tokio::join!(self.put(object, size, file), feed(source, sender));
            let error = match sent {
                Ok(()) => return Ok(size),
                Err(error) => error,
            };
            if attempt + 1 >= TRIES || !matches!(error.class(), Class::Throttle | Class::Transient) {
                return Err(error.into());
            }
            tokio::time::sleep(backoff(attempt)).await;
        }
        Err(SandboxError::internal("no tries are left"))
    }

    /// Sends so many bytes as an object.
    ///
    /// # Errors
    /// What S3 refuses with.
    pub(crate) async fn put(&self, object: &Object, size: u64, bytes: Body) -> Called<()> {
        let allowed = self.allow(&Method::PUT, object, size).await?;
        let pieces = futures_util::stream::unfold((bytes, size), |(mut bytes, left)| async move {
            if left == 0 {
                return None;
            }
            let piece = match bytes.next().await {
                Ok(piece) => piece?,
                Err(error) => return Some((Err(std::io::Error::other(error)), (bytes, 0))),
            };
            // Not more than was announced.
            let piece = piece.slice(..piece.len().min(usize::try_from(left).unwrap_or(usize::MAX)));
            let left = left - piece.len() as u64;
            Some((Ok::<Bytes, std::io::Error>(piece), (bytes, left)))
        });
        let request = self.http.to(allowed.url.as_str()).put(allowed.url).header("content-length", size);
        let request = request.body(reqwest::Body::wrap_stream(pieces));
        answered("PutObject", request, transfer_limit(size)).await.map(drop)
    }

    /// Fetches an object of so many bytes into a body.
    ///
    /// # Errors
    /// What S3 refuses with; `Lost` for another size. What breaks off later is the body's failure.
    pub(crate) async fn get(&self, object: &Object, size: u64, sender: BodySender) -> Result<()> {
        let allowed = self.allow(&Method::GET, object, size).await?;
        let limit = transfer_limit(size);
        let answer = answered("GetObject", self.http.to(allowed.url.as_str()).get(allowed.url), limit).await;
        let mut answer = match answer.map_err(SandboxError::from) {
            Ok(answer) if answer.content_length() == Some(size) => answer,
            Ok(answer) => {
                let length = answer.content_length().unwrap_or_default();
                let error = SandboxError::internal(format!("GetObject: the object has {length} bytes, not {size}"));
                sender.fail(SandboxError::internal(error.message().to_owned())).await;
                return Err(error);
            }
            Err(error) => {
                sender.fail(SandboxError::new(error.kind(), error.message().to_owned())).await;
                return Err(error);
            }
        };
        let end = Instant::now() + limit;
        let mut left = size;
        loop {
            match tokio::time::timeout_at(end, answer.chunk()).await {
                Ok(Ok(Some(bytes))) => {
                    left = left.saturating_sub(bytes.len() as u64);
                    if !sender.send(bytes).await {
                        return Ok(());
                    }
                }
                Ok(Ok(None)) if left == 0 => break,
                Ok(Ok(None)) => return broken_off(sender, "it is shorter than it should be").await,
                Ok(Err(error)) => return broken_off(sender, &innermost(&error)).await,
                Err(_) => return broken_off(sender, "it took too long").await,
            }
        }
        sender.finish().await;
        Ok(())
    }

    /// Whether an object of this size is there. Whoever may not list a bucket is refused where it is not.
    ///
    /// # Errors
    /// What S3 refuses with.
    pub(crate) async fn has_object(&self, object: &Object, size: u64) -> Result<bool> {
        let allowed = self.allow(&Method::HEAD, object, 0).await?;
        match answered("HeadObject", self.http.to(allowed.url.as_str()).head(allowed.url), REMOVE_LIMIT).await {
            Ok(answer) => {
                let length = answer.headers().get("content-length").and_then(|length| length.to_str().ok());
                Ok(length.is_some_and(|length| length == size.to_string()))
            }
            Err(CallError::Failed(failure)) if matches!(failure.status, 403 | 404) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// Removes an object. One that is not there is fine.
    ///
    /// # Errors
    /// What S3 refuses with.
    pub(crate) async fn remove_object(&self, object: &Object) -> Result<()> {
        let end = Instant::now() + REMOVE_LIMIT;
        for attempt in 0.. {
            let allowed = self.allow(&Method::DELETE, object, 0).await?;
            let error =
                match answered("DeleteObject", self.http.to(allowed.url.as_str()).delete(allowed.url), REMOVE_LIMIT)
                    .await
                {
                    Ok(_) => return Ok(()),
                    Err(CallError::Failed(failure)) if failure.status == 404 && failure.code == "NoSuchKey" => {
                        return Ok(());
                    }
                    Err(error) => error,
                };
            let wait = backoff(attempt);
            if !matches!(error.class(), Class::Throttle | Class::Transient) || Instant::now() + wait >= end {
                return Err(error.into());
            }
            tokio::time::sleep(wait).await;
        }
        Err(SandboxError::internal("no tries are left"))
    }
}

async fn broken_off(sender: BodySender, why: &str) -> Result<()> {
    let text = format!("GetObject: the answer broke off: {why}");
    sender.fail(SandboxError::unavailable(text.clone())).await;
    Err(SandboxError::unavailable(text))
}

/// Sends a request; the answer's head has come, and is a good one.
async fn answered(action: &str, request: reqwest::RequestBuilder, limit: Duration) -> Called<reqwest::Response> {
    let unanswered = |text: String| CallError::Failed(Failure::unanswered(action, text));
    let work = async {
        // Its text would name the address, and with it the right to ask.
        let answer = request.send().await.map_err(|error| unanswered(innermost(&error)))?;
        let status = answer.status().as_u16();
        if (200..300).contains(&status) {
            return Ok(answer);
        }
        let text = body(answer, REFUSAL_MAX_BYTES).await.unwrap_or_default();
        Err(CallError::Failed(Failure::read(action, status, None, &text)))
    };
    tokio::time::timeout(limit, work).await.unwrap_or_else(|_| Err(unanswered("no answer in time".to_owned())))
}

#[cfg(test)]
mod tests {
    use sandbox_core::{ErrorKind, SandboxError, Secret};
    use sandbox_protocol::Body;

    use crate::aws::{Aws, Environment, testing::Stub};

    fn aws(stub: &Stub) -> Aws {
        let mut config = stub.config("S3");
        config.credentials.as_mut().unwrap().session_token = Some(Secret::new("tok/en"));
        Aws::new(&config, Environment::default()).unwrap()
    }

    #[tokio::test]
    async fn an_object_is_sent_with_its_size_fetched_whole_and_removed() {
        let stub = Stub::start(|asked| match asked.method.as_str() {
            "GET" => (200, "hello".into()),
            "DELETE" => (204, String::new()),
            _ => (200, String::new()),
        })
        .await;
        let aws = aws(&stub);
        let object = aws.bucket("b").unwrap().object("p/k");
        aws.put(&object, 3, Body::from_bytes("abcdef")).await.unwrap();
        for (size, kind) in [(5, None), (6, Some(ErrorKind::Internal))] {
            let (sender, body) = Body::channel();
            let (fetched, read) = tokio::join!(aws.get(&object, size, sender), body.collect(100));
            assert_eq!(fetched.err().map(|error| error.kind()), kind);
            assert_eq!(read.is_ok(), kind.is_none());
        }
        aws.remove_object(&object).await.unwrap();
        let asked = stub.asked();
        assert_eq!((asked[0].header("content-length"), asked[0].body.as_str()), (Some("3"), "abc"));
        for one in &asked {
            assert!(one.path.starts_with("/b/p/k?"), "{}", one.path);
            assert!(one.path.contains("X-Amz-Security-Token=tok%2Fen"), "{}", one.path);
            assert!(one.header("authorization").is_none(), "the query alone allows it");
        }
    }

    #[tokio::test]
    async fn a_refusal_names_no_address_and_one_that_passes_is_asked_again() {
        let stub = Stub::start(|_| (404, "<Error><Code>NoSuchBucket</Code><Message>no</Message></Error>".into())).await;
        let aws_ = aws(&stub);
        let object = aws_.bucket("b").unwrap().object("k");
        let error: SandboxError = aws_.put(&object, 0, Body::empty()).await.unwrap_err().into();
        assert_eq!((error.kind(), error.field()), (ErrorKind::NotFound, Some("s3_bucket")), "{error}");
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("file");
        std::fs::write(&file, "12345").unwrap();
        let count = std::sync::atomic::AtomicUsize::new(0);
        let stub = Stub::start(move |_| match count.fetch_add(1, std::sync::atomic::Ordering::Relaxed) {
            0 => (503, "<Error><Code>SlowDown</Code></Error>".into()),
            _ => (200, String::new()),
        })
        .await;
        let aws_ = aws(&stub);
        let object = aws_.bucket("b").unwrap().object("k");
        assert_eq!(aws_.put_file(&object, &file).await.unwrap(), 5);
        assert_eq!(stub.asked().iter().map(|asked| asked.body.as_str()).collect::<Vec<_>>(), ["12345", "12345"]);
        let silent = Stub::start(|_| (0, String::new())).await;
        let aws_ = aws(&silent);
        let object = aws_.bucket("b").unwrap().object("k");
        let error: SandboxError = aws_.put(&object, 0, Body::empty()).await.unwrap_err().into();
        assert!(!error.to_string().contains("Signature") && !error.to_string().contains("127.0.0.1"), "{error}");
    }
}
