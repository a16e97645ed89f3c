//! The calls of the registry of images.

use sandbox_core::{Result, SandboxError};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::{Aws, CallError, Called, Service};

const PREFIX: &str = "AmazonEC2ContainerRegistry_V20150921";

/// A repository that is there, or is said to be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Repository {
    /// `HOST/NAME`.
    pub(crate) uri: String,
    registry_id: Option<String>,
}

#[derive(Deserialize)]
struct Described {
    #[serde(default)]
    repositories: Vec<DescribedRepository>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct DescribedRepository {
    repository_uri: String,
}

impl Repository {
    /// One whose address is known: `ACCOUNT.dkr.ecr.REGION.…/NAME`.
    pub(crate) fn of_uri(uri: &str) -> Option<Self> {
        let (host, name) = uri.split_once('/')?;
        let account = host.split('.').next().filter(|account| account.chars().all(|c| c.is_ascii_digit()))?;
        let is_one = host.contains(".dkr.ecr.") && !name.is_empty() && !account.is_empty();
        is_one.then(|| Self { uri: uri.to_owned(), registry_id: Some(account.to_owned()) })
    }

    /// The host that is logged in to.
    pub(crate) fn registry(&self) -> &str {
        self.uri.split('/').next().unwrap_or_default()
    }

    fn name(&self) -> &str {
        self.uri.split_once('/').map_or("", |(_, name)| name)
    }

    /// The reference of one of its images.
    pub(crate) fn image(&self, tag: &str) -> String {
        format!("{}:{tag}", self.uri)
    }
}

/// Whether an image is in AWS's own registry already.
pub(crate) fn is_in_ecr(image: &str) -> bool {
    image.split_once('/').is_some_and(|(host, _)| host.contains(".dkr.ecr.") || host == "public.ecr.aws")
}

fn missing(name: &str, error: CallError) -> SandboxError {
    if error.code() != "RepositoryNotFoundException" {
        return error.into();
    }
    SandboxError::not_found(format!("there is no repository {name:?} of images in this region"))
        .with_field("ecr_repository")
        .with_help(format!("aws ecr create-repository --repository-name {name}, or name another one"))
}

impl Aws {
    /// The repository of this name or address.
    ///
    /// # Errors
    /// `NotFound`, saying what to do.
    pub(crate) async fn repository(&self, named: &str, deadline: Instant) -> Result<Repository> {
        if let Some(repository) = Repository::of_uri(named) {
            return Ok(repository);
        }
        let input = json!({ "repositoryNames": [named] });
        let target = (PREFIX, "DescribeRepositories");
        let described: Called<Described> = self.json(Service::Ecr, target, &input, deadline).await;
        let described = described.map_err(|error| missing(named, error))?;
        let uri = described.repositories.into_iter().next().map(|found| found.repository_uri);
        uri.as_deref().and_then(Repository::of_uri).ok_or_else(|| {
            SandboxError::internal("DescribeRepositories: the answer names no repository").with_field("ecr_repository")
        })
    }

    /// Whether a repository has an image of this tag.
    ///
    /// # Errors
    /// `NotFound` for the repository, saying what to do.
    pub(crate) async fn has_image(&self, repository: &Repository, tag: &str, deadline: Instant) -> Result<bool> {
        let mut input = json!({ "repositoryName": repository.name(), "imageIds": [{ "imageTag": tag }] });
        if let Some(id) = &repository.registry_id {
            input["registryId"] = id.as_str().into();
        }
        let described: Called<Value> = self.json(Service::Ecr, (PREFIX, "DescribeImages"), &input, deadline).await;
        match described {
            Ok(found) => Ok(found["imageDetails"].as_array().is_some_and(|all| !all.is_empty())),
            Err(error) if error.code() == "ImageNotFoundException" => Ok(false),
            Err(error) => Err(missing(repository.name(), error)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Repository, is_in_ecr};

    #[test]
    fn a_repository_is_known_by_its_address() {
        let uri = "123456789012.dkr.ecr.eu-west-1.amazonaws.com/team/boxes";
        let found = Repository::of_uri(uri).unwrap();
        assert_eq!(found.registry(), "123456789012.dkr.ecr.eu-west-1.amazonaws.com");
        assert_eq!((found.name(), found.image("t").as_str()), ("team/boxes", format!("{uri}:t").as_str()));
        for other in ["boxes", "team/boxes", "docker.io/x", "x.dkr.ecr.y/z", "1.dkr.ecr.y/"] {
            assert_eq!(Repository::of_uri(other), None, "{other}");
        }
        assert!(is_in_ecr(&found.image("t")) && is_in_ecr("public.ecr.aws/docker/library/x:1"));
        assert!(!is_in_ecr("docker.io/library/x") && !is_in_ecr("debian"));
    }
}
