//! AWS, as far as it is needed: signed requests, repeated where that helps, within one deadline.
//!
//! The SDK's own crates would cost ten times the build and twice the size of everything else here.

mod budget;
mod codebuild;
mod credentials;
mod ec2;
mod ecr;
mod ecs;
mod environment;
mod failure;
mod http;
mod profile;
mod region;
mod s3;
mod secrets;
mod sign;
#[cfg(test)]
pub(crate) mod testing;
mod xml;

use std::{sync::Arc, time::Duration};

use aws_credential_types::Credentials;
use sandbox_core::{Result, SandboxError, tracing};
use serde::{Serialize, de::DeserializeOwned};
use tokio::time::Instant;

use self::{budget::Budget, credentials::Chain, failure::Failure, profile::Profile, sign::Unsigned};
pub(crate) use self::{
    budget::backoff,
    codebuild::Build,
    ecr::{Repository, is_in_ecr},
    ecs::{Cluster, Failed, Launch, TASKS_MAX, Task, tag_list, task_id},
    environment::Environment,
    failure::{Class, by_words, one_line},
    http::Http,
    region::{Service, partition},
    s3::{Allowed, Bucket, OBJECT_MAX_BYTES, Object, transfer_limit},
};
use crate::{config::FargateConfig, error::NAME};

/// How long one try may take.
const TRY_LIMIT: Duration = Duration::from_secs(30);
/// The longest answer that is read, in bytes: a hundred tasks with all their tags.
const ANSWER_MAX_BYTES: usize = 16 << 20;

/// A call that failed.
#[derive(Debug)]
pub(crate) enum CallError {
    /// AWS has refused, or did not answer.
    Failed(Failure),
    /// It was not sent, or its answer is none.
    Other(SandboxError),
}

impl CallError {
    pub(crate) fn class(&self) -> Class {
        match self {
            Self::Failed(failure) => failure.class(),
            Self::Other(_) => Class::Fatal,
        }
    }

    /// The name of the refusal.
    pub(crate) fn code(&self) -> &str {
        match self {
            Self::Failed(failure) => &failure.code,
            Self::Other(_) => "",
        }
    }

    /// What was said.
    pub(crate) fn message(&self) -> &str {
        match self {
            Self::Failed(failure) => &failure.message,
            Self::Other(error) => error.message(),
        }
    }

    /// Whether the request may have been carried out all the same.
    pub(crate) fn is_unclear(&self) -> bool {
        match self {
            Self::Failed(failure) => failure.status == 0 || failure.status >= 500,
            Self::Other(_) => false,
        }
    }
}

impl From<SandboxError> for CallError {
    fn from(error: SandboxError) -> Self {
        Self::Other(error)
    }
}

impl From<CallError> for SandboxError {
    fn from(error: CallError) -> Self {
        match error {
            CallError::Failed(failure) => failure.into_error(),
            CallError::Other(error) => error,
        }
        .with_provider(NAME)
    }
}

pub(crate) type Called<T> = std::result::Result<T, CallError>;

/// One region of AWS, for one identity.
pub(crate) struct Aws {
    pub(crate) region: String,
    http: Http,
    environment: Environment,
    /// By service.
    endpoints: Vec<String>,
    config: FargateConfig,
    chain: Chain,
    budget: Arc<Budget>,
}

/// What came back, at most so many bytes.
///
/// # Errors
/// What the connection broke with; `Exhausted` for more.
pub(crate) async fn body(mut answer: reqwest::Response, max_bytes: usize) -> Result<Vec<u8>> {
    let mut text = Vec::new();
    let broken =
        |error: reqwest::Error| SandboxError::unavailable(format!("the answer broke off: {}", innermost(&error)));
    while let Some(chunk) = answer.chunk().await.map_err(broken)? {
        if text.len() + chunk.len() > max_bytes {
            return Err(SandboxError::exhausted(format!("an answer has more than {max_bytes} bytes")));
        }
        text.extend_from_slice(&chunk);
    }
    Ok(text)
}

/// The last cause of an error of the connection; the others hold addresses.
fn innermost(error: &reqwest::Error) -> String {
    let mut deepest: &dyn std::error::Error = error;
    while let Some(cause) = deepest.source() {
        deepest = cause;
    }
    one_line(&deepest.to_string())
}

impl Aws {
    /// Reads the environment and the AWS files; reaches nothing.
    ///
    /// # Errors
    /// `InvalidInput` without a region.
    pub(crate) fn new(config: &FargateConfig, environment: Environment) -> Result<Self> {
        let profile = Profile::read(config.profile.as_deref(), &environment);
        let region = region::region(config, &environment, &profile)?;
        let at = |service| region::endpoint(service, &region, config, &environment);
        let endpoints: Vec<String> = Service::ALL.map(at).into();
        let http = Http::new()?;
        // The account's number is in every ARN of it; without one, whoever asks is a budget of his own.
        let account = config.execution_role_arn.as_deref().and_then(|arn| arn.split(':').nth(4)).map(str::to_owned);
        let account = account.or_else(|| Some(config.credentials.as_ref()?.access_key_id.clone()));
        let account = account.unwrap_or_else(|| profile.name.clone());
        let budget = Budget::of(&format!("{account}@{}", endpoints[Service::Ecs as usize]), &region);
        let chain = Chain::new(config, environment.clone(), profile, http.clone(), &region);
        Ok(Self { region, http, environment, endpoints, config: config.clone(), chain, budget })
    }

    pub(crate) fn environment(&self) -> &Environment {
        &self.environment
    }

    fn endpoint(&self, service: Service) -> &str {
        &self.endpoints[service as usize]
    }

    /// A call with JSON, repeated while that may help and time is left.
    pub(crate) async fn json<R: DeserializeOwned>(
        &self,
        service: Service,
        target: (&'static str, &'static str),
        input: &impl Serialize,
        deadline: Instant,
    ) -> Called<R> {
        self.json_tries(service, target, input, deadline, u32::MAX).await
    }

    /// As [`Aws::json`], at most so often.
    pub(crate) async fn json_tries<R: DeserializeOwned>(
        &self,
        service: Service,
        target: (&'static str, &'static str),
        input: &impl Serialize,
        deadline: Instant,
        tries: u32,
    ) -> Called<R> {
        let (prefix, action) = target;
        let body = serde_json::to_vec(input).map_err(|_| SandboxError::internal("a request could not be written"))?;
        let headers =
            [("content-type", "application/x-amz-json-1.1".to_owned()), ("x-amz-target", format!("{prefix}.{action}"))];
        let answer = self.repeated(&Call { service, action, headers: &headers, body: &body, tries }, deadline).await?;
        // The text of the error may quote what was answered.
        Ok(serde_json::from_slice(&answer)
            .map_err(|_| SandboxError::internal(format!("{action}: the answer is not what it should be")))?)
    }

    /// A call of the older kind: a form, answered with XML.
    pub(crate) async fn query(
        &self,
        service: Service,
        action: &'static str,
        form: &str,
        deadline: Instant,
    ) -> Called<String> {
        let headers = [("content-type", "application/x-www-form-urlencoded".to_owned())];
        let call = Call { service, action, headers: &headers, body: form.as_bytes(), tries: u32::MAX };
        Ok(String::from_utf8_lossy(&self.repeated(&call, deadline).await?).into_owned())
    }

    async fn repeated(&self, call: &Call<'_>, deadline: Instant) -> Called<Vec<u8>> {
        let mut was_renewed = false;
        for attempt in 0.. {
            if !self.budget.take(deadline).await {
                let text = format!("{}: AWS could not be asked in time: too much is asked at once", call.action);
                return Err(SandboxError::exhausted(text).into());
            }
            let credentials = self.chain.get().await?;
            let failure = match self.once(call, &credentials, deadline).await {
                Err(CallError::Failed(failure)) => failure,
                done => return done,
            };
            let wait = match failure.class() {
                Class::Throttle => {
                    self.budget.drain();
                    backoff(attempt)
                }
                Class::Transient => backoff(attempt),
                Class::Expired if !was_renewed => {
                    was_renewed = true;
                    self.chain.forget(&credentials).await;
                    Duration::ZERO
                }
                _ => return Err(CallError::Failed(failure)),
            };
            if attempt + 1 >= call.tries || Instant::now() + wait >= deadline {
                return Err(CallError::Failed(failure));
            }
            tracing::debug!(action = call.action, class = ?failure.class(), attempt, "AWS is asked again");
            tokio::time::sleep(wait).await;
        }
        Err(SandboxError::internal("no tries are left").into())
    }

    /// One try.
    async fn once(&self, call: &Call<'_>, credentials: &Credentials, deadline: Instant) -> Called<Vec<u8>> {
        let url = format!("{}/", self.endpoint(call.service));
        let unsigned = Unsigned::post(call.service, &self.region, &url, call.headers, call.body);
        let signature = unsigned.sign(credentials, std::time::SystemTime::now())?;
        let mut request = self.http.to(&url).post(&url).body(call.body.to_vec());
        for (name, value) in call.headers {
            request = request.header(*name, value);
        }
        for (name, value) in signature {
            request = request.header(name, value);
        }
        let unanswered = |text: String| CallError::Failed(Failure::unanswered(call.action, text));
        let work = async {
            let answer = request.send().await.map_err(|error| unanswered(innermost(&error)))?;
            let status = answer.status().as_u16();
            let kind =
                answer.headers().get("x-amzn-errortype").and_then(|value| value.to_str().ok()).map(str::to_owned);
            let text = body(answer, ANSWER_MAX_BYTES).await.map_err(|error| unanswered(error.message().to_owned()))?;
            match status {
                200..300 => Ok(text),
                status => Err(CallError::Failed(Failure::read(call.action, status, kind.as_deref(), &text))),
            }
        };
        let end = deadline.min(Instant::now() + TRY_LIMIT);
        tokio::time::timeout_at(end, work).await.unwrap_or_else(|_| Err(unanswered("no answer in time".to_owned())))
    }
}

/// What is asked.
struct Call<'a> {
    service: Service,
    action: &'static str,
    headers: &'a [(&'static str, String)],
    body: &'a [u8],
    tries: u32,
}

#[cfg(test)]
mod tests {
    use std::{
        sync::atomic::{AtomicUsize, Ordering},
        time::Duration,
    };

    use sandbox_core::{ErrorKind, SandboxError};
    use serde_json::{Value, json};
    use tokio::time::Instant;

    use super::{Aws, Called, Service, testing::Stub};

    async fn ask(aws: &Aws, limit: Duration) -> Called<Value> {
        aws.json(Service::Ecs, ("P", "Act"), &json!({"a": 1}), Instant::now() + limit).await
    }

    #[tokio::test]
    async fn a_request_is_signed_and_named_and_its_answer_read() {
        let stub = Stub::start(|_| (200, r#"{"b":2}"#.into())).await;
        let answer = ask(&stub.aws("A1"), Duration::from_secs(10)).await.unwrap();
        assert_eq!(answer, json!({"b": 2}));
        let asked = &stub.asked()[0];
        assert_eq!((asked.header("x-amz-target"), asked.body.as_str()), (Some("P.Act"), r#"{"a":1}"#));
        let signature = asked.header("authorization").unwrap();
        assert!(signature.starts_with("AWS4-HMAC-SHA256 Credential=A1/"), "{signature}");
        assert!(signature.contains("/us-east-1/ecs/aws4_request"), "{signature}");
    }

    #[tokio::test]
    async fn f06_throttles_errors_of_the_server_and_silence_are_asked_again() {
        let count = AtomicUsize::new(0);
        let stub = Stub::start(move |_| match count.fetch_add(1, Ordering::Relaxed) {
            0 => (
                400,
                r#"{"__type":"InvalidParameterException","message":"Rate exceeded (ErrorCode: Throttling)"}"#.into(),
            ),
            1 => (500, "oops".into()),
            2 => (0, String::new()),
            _ => (200, "{}".into()),
        })
        .await;
        ask(&stub.aws("A2"), Duration::from_secs(60)).await.unwrap();
        assert_eq!(stub.asked().len(), 4);
    }

    #[tokio::test]
    async fn what_fails_for_good_is_asked_once_and_nothing_goes_on_beyond_the_deadline() {
        let stub = Stub::start(|_| (400, r#"{"__type":"AccessDeniedException","message":"no"}"#.into())).await;
        let error: SandboxError = ask(&stub.aws("A3"), Duration::from_secs(60)).await.unwrap_err().into();
        assert_eq!((error.kind(), stub.asked().len()), (ErrorKind::PermissionDenied, 1));
        let stub = Stub::start(|_| (500, String::new())).await;
        let begin = Instant::now();
        let error: SandboxError = ask(&stub.aws("A4"), Duration::from_millis(700)).await.unwrap_err().into();
        assert_eq!(error.kind(), ErrorKind::Unavailable);
        assert!(begin.elapsed() < Duration::from_secs(10) && stub.asked().len() > 1, "{:?}", begin.elapsed());
    }

    #[tokio::test]
    async fn a_service_that_is_not_there_is_told_without_its_address() {
        let stub = Stub::start(|_| (200, "{}".into())).await;
        let aws = stub.aws("A5");
        drop(stub);
        let error: SandboxError = ask(&aws, Duration::from_millis(300)).await.unwrap_err().into();
        assert!(error.to_string().starts_with("Act: "), "{error}");
    }
}
