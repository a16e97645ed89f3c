//! Credentials of the machine or container that this program runs on.

use std::{net::IpAddr, time::Duration};

use aws_credential_types::Credentials;
use reqwest::{Method, Url};
use sandbox_core::{Result, SandboxError};

use super::Printed;
use crate::aws::{Http, environment::Environment};

/// Where ECS serves them to a container.
const CONTAINER: &str = "http://169.254.170.2";
/// Where EC2 serves them to a machine.
const INSTANCE: &str = "http://169.254.169.254";
/// Other hosts that may be asked without TLS, beside the loopback.
const LINK_LOCAL: [&str; 3] = ["169.254.170.2", "169.254.170.23", "fd00:ec2::23"];

const CONTAINER_LIMIT: Duration = Duration::from_secs(5);
/// Where there is no such service nobody answers.
const INSTANCE_LIMIT: Duration = Duration::from_secs(1);
const TOKEN_LIFE_S: &str = "21600";
/// The longest answer that is read, in bytes.
const ANSWER_MAX_BYTES: usize = 64 * 1024;

/// Those of the container's own role; none outside of such containers.
pub(super) async fn of_container(http: &Http, environment: &Environment) -> Result<Option<Credentials>> {
    let relative = environment.get("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI").map(|path| format!("{CONTAINER}{path}"));
    let full = environment.get("AWS_CONTAINER_CREDENTIALS_FULL_URI").map(str::to_owned);
    let Some(url) = relative.or(full) else { return Ok(None) };
    let failed = |what: &str| SandboxError::unauthorized(format!("the container's credentials {what}"));
    let url = Url::parse(&url).map_err(|_| failed("are at an address that is none"))?;
    if !may_be_asked(&url) {
        return Err(failed("are at an address that needs https").with_field("AWS_CONTAINER_CREDENTIALS_FULL_URI"));
    }
    let mut headers = Vec::new();
    if let Some(path) = environment.get("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE") {
        let token = tokio::fs::read_to_string(path).await;
        headers.push(("authorization", token.map_err(|_| failed("need a token file that is not there"))?));
    } else if let Some(token) = environment.get("AWS_CONTAINER_AUTHORIZATION_TOKEN") {
        headers.push(("authorization", token.to_owned()));
    }
    let text = ask(http, Method::GET, url, &headers, CONTAINER_LIMIT).await.ok_or_else(|| failed("cannot be had"))?;
    Printed::read(&text, "container").map(Some)
}

/// Those of the machine's role; none where no such service answers.
pub(super) async fn of_instance(http: &Http, environment: &Environment) -> Result<Option<Credentials>> {
    if environment.get("AWS_EC2_METADATA_DISABLED").is_some_and(|text| text.eq_ignore_ascii_case("true")) {
        return Ok(None);
    }
    let base = environment.get("AWS_EC2_METADATA_SERVICE_ENDPOINT").unwrap_or(INSTANCE).trim_end_matches('/');
    let url = |path: &str| Url::parse(&format!("{base}{path}")).ok();
    let life = [("x-aws-ec2-metadata-token-ttl-seconds", TOKEN_LIFE_S.to_owned())];
    let Some(token_url) = url("/latest/api/token") else { return Ok(None) };
    let token = ask(http, Method::PUT, token_url, &life, INSTANCE_LIMIT).await;
    let Some(token) = token.and_then(|token| String::from_utf8(token).ok()) else { return Ok(None) };
    let shown = [("x-aws-ec2-metadata-token", token)];
    let folder = "/latest/meta-data/iam/security-credentials/";
    let Some(folder_url) = url(folder) else { return Ok(None) };
    let Some(names) = ask(http, Method::GET, folder_url, &shown, CONTAINER_LIMIT).await else { return Ok(None) };
    let names = String::from_utf8_lossy(&names);
    let Some(role_url) =
        names.lines().next().filter(|name| !name.is_empty()).and_then(|name| url(&format!("{folder}{name}")))
    else {
        return Ok(None);
    };
    let text = ask(http, Method::GET, role_url, &shown, CONTAINER_LIMIT).await;
    let text = text.ok_or_else(|| SandboxError::unauthorized("the machine's credentials cannot be had"))?;
    Printed::read(&text, "instance").map(Some)
}

/// Without TLS only hosts that are this machine.
fn may_be_asked(url: &Url) -> bool {
    let host = url.host_str().unwrap_or_default().trim_matches(['[', ']']);
    let is_here = host == "localhost" || host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback());
    url.scheme() == "https" || (url.scheme() == "http" && (is_here || LINK_LOCAL.contains(&host)))
}

/// What comes back with a good status; none otherwise.
async fn ask(
    http: &Http,
    method: Method,
    url: Url,
    headers: &[(&'static str, String)],
    limit: Duration,
) -> Option<Vec<u8>> {
    let request = http.to(url.as_str()).request(method, url);
    let request = headers.iter().fold(request, |request, (name, value)| request.header(*name, value.trim()));
    let work = async {
        let answer = request.send().await.ok().filter(|answer| answer.status().is_success())?;
        crate::aws::body(answer, ANSWER_MAX_BYTES).await.ok()
    };
    tokio::time::timeout(limit, work).await.ok().flatten()
}

#[cfg(test)]
mod tests {
    use reqwest::Url;

    use super::{of_container, of_instance};
    use crate::aws::{Http, environment::Environment, testing::Stub};

    const KEYS: &str = r#"{"AccessKeyId":"A","SecretAccessKey":"s","Token":"t","Expiration":"2126-01-02T03:04:05Z"}"#;

    #[test]
    fn credentials_are_asked_for_in_plain_text_only_on_this_machine() {
        for (url, may) in [
            ("http://127.0.0.1/x", true),
            ("http://[::1]:80/x", true),
            ("http://169.254.170.23/x", true),
            ("http://evil.example/x", false),
            ("http://169.254.1.1/x", false),
            ("https://host.example/x", true),
        ] {
            assert_eq!(super::may_be_asked(&Url::parse(url).unwrap()), may, "{url}");
        }
    }

    #[tokio::test]
    async fn a_container_shows_its_token() {
        let stub = Stub::start(|request| match request.header("authorization") {
            Some("secret") => (200, KEYS.into()),
            _ => (403, String::new()),
        })
        .await;
        let http = Http::new().unwrap();
        let url = format!("{}/role", stub.url());
        let of = |token| {
            Environment::of(&[
                ("AWS_CONTAINER_CREDENTIALS_FULL_URI", &url),
                ("AWS_CONTAINER_AUTHORIZATION_TOKEN", token),
            ])
        };
        let found = of_container(&http, &of("secret")).await.unwrap().unwrap();
        assert_eq!(found.access_key_id(), "A");
        assert!(of_container(&http, &of("wrong")).await.is_err());
        assert!(of_container(&http, &Environment::default()).await.unwrap().is_none());
    }

    #[tokio::test]
    async fn a_machine_is_asked_with_a_token_and_where_nobody_answers_there_is_nothing() {
        let stub = Stub::start(|request| match (request.method.as_str(), request.path.as_str()) {
            ("PUT", "/latest/api/token") => (200, "tok".into()),
            _ if request.header("x-aws-ec2-metadata-token") != Some("tok") => (401, String::new()),
            ("GET", "/latest/meta-data/iam/security-credentials/") => (200, "role\n".into()),
            ("GET", "/latest/meta-data/iam/security-credentials/role") => (200, KEYS.into()),
            _ => (404, String::new()),
        })
        .await;
        let http = Http::new().unwrap();
        let at = |url: &str| Environment::of(&[("AWS_EC2_METADATA_SERVICE_ENDPOINT", url)]);
        let found = of_instance(&http, &at(&stub.url())).await.unwrap().unwrap();
        assert_eq!((found.access_key_id(), found.session_token()), ("A", Some("t")));
        // Port 9 of the loopback takes nothing.
        assert!(of_instance(&http, &at("http://127.0.0.1:9")).await.unwrap().is_none());
    }
}
