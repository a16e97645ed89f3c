//! Credentials of registries, from the settings, the user's docker config, and the programs that it names.

use std::{
    collections::{BTreeMap, HashMap},
    path::Path,
};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use bollard::auth::DockerCredentials;
use sandbox_core::{Result, SandboxError, Secret, tracing};
use serde::Deserialize;

use crate::{
    config::{DockerConfig, RegistryAuth},
    credential_helper,
};

/// How docker's own client writes docker.io.
const HUB: &str = "https://index.docker.io/v1/";

/// The largest docker config that is read, in bytes.
const CONFIG_MAX_BYTES: u64 = 4 << 20;

#[derive(Default, Deserialize)]
#[serde(default)]
struct DockerFile {
    auths: BTreeMap<String, FileAuth>,
    /// Programs by registry.
    #[serde(rename = "credHelpers")]
    helpers: BTreeMap<String, String>,
    /// The program for every other one.
    #[serde(rename = "credsStore")]
    store: Option<String>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct FileAuth {
    auth: Option<Secret>,
    identitytoken: Option<Secret>,
}

/// The credentials for a registry, if there are any.
///
/// # Errors
/// `InvalidInput` for a docker config that cannot be read.
pub(crate) async fn find(config: &DockerConfig, registry: &str) -> Result<Option<DockerCredentials>> {
    let is_same = |key: &str| host(key) == host(registry);
    if let Some((_, auth)) = config.registry_auth.iter().find(|(key, _)| is_same(key)) {
        return Ok(Some(credentials(auth, registry)));
    }
    let file = docker_file(config).await?;
    let helper = file.helpers.iter().find(|(key, _)| is_same(key)).map(|(_, helper)| helper);
    if let Some(helper) = helper.or(file.store.as_ref().filter(|store| !store.is_empty()))
        && let Some(auth) = kept(helper, address(registry)).await
    {
        return Ok(Some(credentials(&auth, registry)));
    }
    let found = file.auths.into_iter().find(|(key, _)| is_same(key)).and_then(|(_, auth)| from_file(auth));
    Ok(found.map(|auth| credentials(&auth, registry)))
}

/// All credentials that there are, by the address that they are for: a build says only on its way which it needs.
///
/// # Errors
/// As [`find`].
pub(crate) async fn all(config: &DockerConfig) -> Result<HashMap<String, DockerCredentials>> {
    let file = docker_file(config).await?;
    let mut found: Vec<(String, RegistryAuth)> =
        file.auths.into_iter().filter_map(|(key, auth)| Some((key, from_file(auth)?))).collect();
    let mut helpers: Vec<(String, String)> = Vec::new();
    if let Some(store) = file.store.filter(|store| !store.is_empty()) {
        let listed = credential_helper::list(&store).await.unwrap_or_else(|error| {
            unused(&error);
            Vec::new()
        });
        helpers.extend(listed.into_iter().map(|key| (key, store.clone())));
    }
    helpers.extend(file.helpers);
    for (key, helper) in helpers {
        if let Some(auth) = kept(&helper, address(&key)).await {
            found.push((key, auth));
        }
    }
    found.extend(config.registry_auth.iter().map(|(key, auth)| (key.clone(), auth.clone())));
    // The later one wins.
    let all = found.iter().map(|(key, auth)| credentials(auth, host(key)));
    Ok(all.filter_map(|one| Some((one.serveraddress.clone()?, one))).collect())
}

/// What a program keeps. One that fails is no reason not to try without: most images are for everybody.
async fn kept(helper: &str, address: &str) -> Option<RegistryAuth> {
    credential_helper::get(helper, address).await.unwrap_or_else(|error| {
        unused(&error);
        None
    })
}

fn unused(error: &SandboxError) {
    tracing::warn!(%error, "credentials of the docker config are not used");
}

async fn docker_file(config: &DockerConfig) -> Result<DockerFile> {
    let Some(path) = config.docker_config() else { return Ok(DockerFile::default()) };
    let read = tokio::task::spawn_blocking(move || read(&path)).await;
    read.unwrap_or_else(|_| Err(SandboxError::internal("reading the docker config panicked")))
}

/// The host of a key: docker's client writes whole URLs.
fn host(key: &str) -> &str {
    let host = key.split_once("://").map_or(key, |(_, rest)| rest).split('/').next().unwrap_or_default();
    match host {
        "index.docker.io" | "registry-1.docker.io" => "docker.io",
        host => host,
    }
}

fn read(path: &Path) -> Result<DockerFile> {
    let unreadable = |why: String| {
        SandboxError::invalid_input("use_docker_config", format!("{} {why}", path.display()))
            .with_help("mend the file, or set use_docker_config = false")
    };
    match std::fs::metadata(path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(DockerFile::default()),
        Ok(found) if found.len() > CONFIG_MAX_BYTES => return Err(unreadable("is too large".to_owned())),
        _ => {}
    }
    let text = std::fs::read(path).map_err(|error| unreadable(format!("cannot be read: {error}")))?;
    // What serde says may quote what is in there.
    serde_json::from_slice(&text).map_err(|error| unreadable(format!("is no docker config (line {})", error.line())))
}

fn from_file(file: FileAuth) -> Option<RegistryAuth> {
    if let Some(token) = file.identitytoken.filter(|token| !token.expose().is_empty()) {
        return Some(RegistryAuth { identity_token: Some(token), ..RegistryAuth::default() });
    }
    let decoded = String::from_utf8(STANDARD.decode(file.auth?.expose()).ok()?).ok()?;
    let (username, password) = decoded.split_once(':')?;
    let password = Some(Secret::new(password.trim_end_matches('\0')));
    Some(RegistryAuth { username: Some(username.to_owned()), password, identity_token: None })
}

/// How docker's own client writes a registry.
fn address(registry: &str) -> &str {
    match host(registry) {
        "docker.io" => HUB,
        host => host,
    }
}

fn credentials(auth: &RegistryAuth, registry: &str) -> DockerCredentials {
    let text = |secret: &Option<Secret>| secret.as_ref().map(|secret| secret.expose().to_owned());
    DockerCredentials {
        username: auth.username.clone(),
        password: text(&auth.password),
        identitytoken: text(&auth.identity_token),
        serveraddress: Some(address(registry).to_owned()),
        ..DockerCredentials::default()
    }
}

#[cfg(test)]
mod tests {
    use sandbox_core::from_json;
    use serde_json::json;

    use super::find;
    use crate::config::DockerConfig;

    fn config(folder: &std::path::Path) -> DockerConfig {
        let settings = json!({"registry_auth": {"r.example": {"username": "u", "password": "p"}}});
        let config: DockerConfig = from_json(settings, "config").unwrap();
        assert!(config.docker_config().is_some());
        let text = r#"{"auths": {"https://index.docker.io/v1/": {"auth": "aHViOnM6ZWNyZXQ="}, "t.example:5000":
            {"identitytoken": "tok"}}, "credHelpers": {"h.example": "one"}, "credsStore": "every"}"#;
        std::fs::write(folder.join("config.json"), text).unwrap();
        config
    }

    #[tokio::test]
    async fn settings_go_before_the_docker_config_and_hosts_are_compared_as_a_whole() {
        let folder = tempfile::tempdir().unwrap();
        let config = config(folder.path());
        let file = super::read(&folder.path().join("config.json")).unwrap();
        assert_eq!((file.helpers["h.example"].as_str(), file.store.as_deref()), ("one", Some("every")));
        let hub = file.auths.into_iter().find(|(key, _)| super::host(key) == "docker.io").unwrap().1;
        let hub = super::from_file(hub).unwrap();
        assert_eq!((hub.username.as_deref(), hub.password.unwrap().expose()), (Some("hub"), "s:ecret"));
        let found = find(&config, "r.example").await.unwrap().unwrap();
        assert_eq!((found.username.as_deref(), found.serveraddress.as_deref()), (Some("u"), Some("r.example")));
        let settings = json!({"use_docker_config": false, "registry_auth": {
            "r.example": {"username": "u", "password": "p"}, "docker.io": {"identity_token": "t"},
        }});
        let all = super::all(&from_json(settings, "config").unwrap()).await.unwrap();
        let mut keys: Vec<_> = all.keys().map(String::as_str).collect();
        keys.sort_unstable();
        assert_eq!(keys, [super::HUB, "r.example"]);
    }

    #[test]
    fn a_broken_docker_config_is_named_without_its_contents() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("config.json");
        std::fs::write(&path, r#"{"auths": {"x": {"auth": canary}}}"#).unwrap();
        let error = super::read(&path).err().unwrap();
        assert!(!format!("{error:?}").contains("canary") && error.message().contains("config.json"), "{error:?}");
        assert!(super::read(&folder.path().join("none")).unwrap().auths.is_empty());
    }
}
